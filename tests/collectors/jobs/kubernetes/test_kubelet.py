"""Kubelet client against a real gRPC server on a Unix socket, also when it refuses, hangs or is absent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.jobs.kubernetes.kubelet import KubeletCollector, KubeletError, call_grpc
from stepscope.collectors.jobs.kubernetes.pod_resources import (
    PodDevice,
    ProtobufError,
    parse_pod_devices,
    protobuf_fields,
)
from stepscope.core.metrics.readings import Collection, MissingReason
from tests.collectors.jobs.kubernetes.fake_kubelet import Kubelet, container, pod


@pytest.fixture(scope="module")
def kubelet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    with Kubelet(tmp_path_factory.mktemp("kubelet")) as running:
        yield running


def _why(collection: Collection) -> tuple[MissingReason, str]:
    (missing,) = collection.missing
    return missing.reason, missing.detail


def test_devices_of_plugins_and_claims(kubelet: Kubelet) -> None:
    claims = [
        ("gpu.nvidia.com", "gpu-0", "k8s.gpu.nvidia.com/device=gpu-0"),
        ("net.example.com", "eth0", "example.com/net=eth0"),
        ("", "", "k8s.gpu.nvidia.com/claim=0f3b7c1e-1111-4222-8333-444455556666-gpu-1"),  # kubelets before 1.31
        ("", "", "k8s.gpu.nvidia.com/claim=0f3b7c1e-1111-4222-8333-444455556666-gpu-1-mig-1g10gb-19-0"),
        ("", "", "example.com/net=gpu-7"),
    ]
    kubelet.answers(
        pods=[
            pod("ml", "llama-0", container("main", "GPU-a", "GPU-b::3"), container("sidecar")),
            pod("ml", "claimed", container("main", claims=claims)),
            pod("kube-system", "dns"),
        ]
    )
    collector = KubeletCollector(str(kubelet.socket))
    assert collector.collect() == Collection()
    assert collector.pod_devices() == (
        PodDevice("ml", "llama-0", "main", "GPU-a"),
        PodDevice("ml", "llama-0", "main", "GPU-b::3"),
        PodDevice("ml", "claimed", "main", "gpu-0", is_claim=True),
        PodDevice("ml", "claimed", "main", "gpu-1", is_claim=True),
        PodDevice("ml", "claimed", "main", "gpu-1-mig-1g10gb-19-0", is_claim=True),
    )


def test_an_answer_of_many_frames(kubelet: Kubelet) -> None:
    names = [f"GPU-{'x' * 100}-{number}" for number in range(8000)]  # 1 MB: windows of 64 KiB are filled many times
    kubelet.answers(pods=[pod("ml", "big", container("main", *names))])
    collector = KubeletCollector(str(kubelet.socket))
    assert not collector.collect().missing
    assert [one.name for one in collector.pod_devices()] == names


@pytest.mark.parametrize(
    ("status", "reason"),
    [(7, MissingReason.NO_PERMISSION), (12, MissingReason.NOT_SUPPORTED), (8, MissingReason.UNREACHABLE)],
)
def test_it_refuses(kubelet: Kubelet, status: int, reason: MissingReason) -> None:
    kubelet.answers(status=status, message="rejected by rate limit: 100 %")
    why, detail = _why(KubeletCollector(str(kubelet.socket)).collect())
    assert why is reason
    assert detail.endswith(f"gRPC status {status}: rejected by rate limit: 100 %")


def test_what_it_told_stays_for_a_minute(kubelet: Kubelet) -> None:
    kubelet.answers(pods=[pod("ml", "llama-0", container("main", "GPU-a"))])
    now = [1000.0]
    collector = KubeletCollector(str(kubelet.socket), clock=lambda: now[0])
    collector.collect()
    kubelet.answers(status=14, message="restarting")
    now[0] += 59
    assert collector.collect().missing
    assert len(collector.pod_devices()) == 1
    now[0] += 1
    collector.collect()
    assert collector.pod_devices() == ()


def test_it_hangs(kubelet: Kubelet) -> None:
    kubelet.answers(pods=[], seconds=0.6)
    why, detail = _why(KubeletCollector(str(kubelet.socket), seconds=0.2).collect())
    assert why is MissingReason.TIMED_OUT
    assert detail == f"kubelet at {kubelet.socket}: no answer within 0.2 s"


def test_another_method_is_not_implemented(kubelet: Kubelet) -> None:
    with pytest.raises(KubeletError) as refused:
        call_grpc(str(kubelet.socket), "/v1.PodResourcesLister/Other", b"", seconds=5)
    assert refused.value.status == 12


def test_there_is_no_kubelet(tmp_path: Path) -> None:
    why, _ = _why(KubeletCollector(str(tmp_path / "none.sock")).collect())
    assert why is MissingReason.NOT_INSTALLED
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    why, _ = _why(KubeletCollector(str(path)).collect())
    assert why is MissingReason.UNREACHABLE


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\0" * 64])
def test_it_is_no_grpc_server(tmp_path: Path, said: bytes) -> None:
    path = str(tmp_path / "other.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(1)

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        why, _ = _why(KubeletCollector(path, seconds=2.0).collect())
        thread.join()
    assert why is MissingReason.UNREACHABLE


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(message: bytes) -> None:
    with suppress(ProtobufError):
        assert isinstance(parse_pod_devices(message), list)


@pytest.mark.parametrize(
    "message", [b"\x0a", b"\x0a\x05ab", b"\x00\x00", b"\x0b", b"\x80" * 11, b"\x09abc", b"\x0d\x00", b"\x08\x80"]
)
def test_a_message_that_is_cut_short_is_said(message: bytes) -> None:
    with pytest.raises(ProtobufError):
        list(protobuf_fields(message))


def test_numbers_of_all_sizes_are_passed_over() -> None:
    message = b"\x08\xac\x02" + b"\x11" + b"\0" * 8 + b"\x1d" + b"\0" * 4 + b"\x22\x02hi"
    assert [(number, bytes(value)) for number, value in protobuf_fields(message)] == [(4, b"hi")]
