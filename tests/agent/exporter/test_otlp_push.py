"""Push by OTLP: what a real receiver decodes; a dead, slow or odd collector costs the agent nothing but counts."""

from __future__ import annotations

import gzip
import http.server
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stepscope.agent.exporter import otlp_push
from stepscope.agent.exporter.otlp_push import OtlpPush, otlp_endpoint_of
from stepscope.core.errors import UsageError

PAGE = b"""# HELP stepscope_gpu_power_watts Power.
# TYPE stepscope_gpu_power_watts gauge
stepscope_gpu_power_watts{gpu="0",uuid="GPU-0"} 650.5
stepscope_gpu_power_watts{gpu="1",uuid="GPU-\\"x\\\\"} 7
# HELP stepscope_gpu_energy_joules_total Energy.
# TYPE stepscope_gpu_energy_joules_total counter
stepscope_gpu_energy_joules_total{gpu="0",uuid="GPU-0"} 1e+06
# HELP stepscope_agent_info Version.
# TYPE stepscope_agent_info gauge
stepscope_agent_info{version="1"} 1
# HELP DCGM_FI_DEV_XID Xid.
# TYPE DCGM_FI_DEV_XID untyped
DCGM_FI_DEV_XID{gpu="0"} 79
"""
_NUM_POINTS = 5


def _counts(push: OtlpPush) -> dict[str, float]:
    found = {}
    for reading in push.readings():
        name = reading.metric.removeprefix("stepscope_agent_otlp_")
        found[dict(reading.labels).get("result", name)] = reading.value
    return found


def _wait(condition: Callable[[], bool], seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def _push(endpoint: str = "http://127.0.0.1:9/v1/metrics", interval: float = 0.2, timeout: float = 5.0) -> OtlpPush:
    return OtlpPush(endpoint, host="n1", interval=interval, timeout=timeout)


@contextmanager
def _receiver(answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> Iterator[tuple[str, list[bytes]]]:
    """An OTLP endpoint; its URL and the bodies that it got."""
    bodies: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bodies.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _accept(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def test_names_labels_and_kinds_arrive_as_they_are_on_the_page() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    with _receiver(_accept) as (url, bodies):
        push = _push(otlp_endpoint_of(url))
        with push.running(lambda: PAGE):
            _wait(lambda: _counts(push)["ok"] >= 2)
    request = ExportMetricsServiceRequest.FromString(bodies[0])
    (of_resource,) = request.resource_metrics
    facts = {one.key: one.value.string_value for one in of_resource.resource.attributes}
    assert (facts["service.name"], facts["service.instance.id"], facts["host.name"]) == ("stepscope", "n1", "n1")
    (scope,) = of_resource.scope_metrics
    found: dict[tuple[Any, ...], float] = {}
    for metric in scope.metrics:
        kind = metric.WhichOneof("data")
        assert metric.unit == ""
        for point in getattr(metric, kind).data_points:
            labels = tuple(sorted((one.key, one.value.string_value) for one in point.attributes))
            found[metric.name, kind, labels] = point.as_double
            assert abs(point.time_unix_nano / 1e9 - time.time()) < 120
    assert found == {
        ("stepscope_gpu_power_watts", "gauge", (("gpu", "0"), ("uuid", "GPU-0"))): 650.5,
        ("stepscope_gpu_power_watts", "gauge", (("gpu", "1"), ("uuid", 'GPU-"x\\'))): 7.0,
        ("stepscope_gpu_energy_joules_total", "sum", (("gpu", "0"), ("uuid", "GPU-0"))): 1e6,
        ("stepscope_agent_info", "gauge", (("version", "1"),)): 1.0,
        ("DCGM_FI_DEV_XID", "gauge", (("gpu", "0"),)): 79.0,
    }
    (energy,) = (metric for metric in scope.metrics if metric.WhichOneof("data") == "sum")
    assert energy.sum.is_monotonic
    assert energy.sum.aggregation_temporality == 2  # cumulative
    counts = _counts(push)
    assert (counts["failed"], counts["points_dropped_total"]) == (0, 0)


def test_a_collector_that_refuses_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

    def refuse(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(400)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    with _receiver(refuse) as (url, _):
        push = _push(otlp_endpoint_of(url))
        with push.running(lambda: PAGE):
            _wait(lambda: _counts(push)["failed"] >= 3)
    counts = _counts(push)
    assert counts["ok"] == 0
    assert counts["points_dropped_total"] == counts["failed"] * _NUM_POINTS
    assert sum("OTLP" in record.message for record in caplog.records) == 1


def test_a_collector_whose_answer_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    go_on = threading.Event()

    def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not go_on.wait(0.1):
            try:
                handler.wfile.write(b"x")
            except OSError:
                return

    with _receiver(drip) as (url, _):
        monkeypatch.setattr(otlp_push, "_START_SECONDS", 10.0)
        push = _push(otlp_endpoint_of(url), interval=0.2, timeout=1.0)
        with push.running(lambda: PAGE):
            _wait(lambda: _counts(push)["failed"] >= 1)
        go_on.set()
    assert _counts(push)["skipped"] >= 1


def _instead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """Another program as the process that pushes."""
    script = tmp_path / "pusher.py"
    script.write_text(code)
    monkeypatch.setattr(otlp_push, "_COMMAND", (sys.executable, "-S", str(script)))
    monkeypatch.setattr(otlp_push, "_START_SECONDS", 1.0)


_READS = (
    "import sys, json, time\n"
    "def page():\n"
    "    n = json.loads(sys.stdin.buffer.readline())['bytes']\n"
    "    return sys.stdin.buffer.read(n)\n"
)


def test_one_page_at_a_time_and_those_that_come_due_meanwhile_are_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _instead(
        monkeypatch, tmp_path, _READS + "while True:\n page(); time.sleep(0.5); print('{\"ok\": true}', flush=True)\n"
    )
    made = []

    def page() -> bytes:
        made.append(1)
        return PAGE

    push = _push(interval=0.1)
    with push.running(page):
        _wait(lambda: _counts(push)["ok"] >= 2)
    counts = _counts(push)
    assert counts["skipped"] >= 4
    assert len(made) <= counts["ok"] + 1


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(60)",  # takes nothing
        _READS + "page(); time.sleep(60)",  # answers nothing
        _READS + "page(); print('hm', flush=True); time.sleep(60)",
        _READS + "page(); print('[]', flush=True); time.sleep(60)",
        _READS + "page(); sys.stdout.write('x' * (1 << 22)); sys.stdout.flush(); time.sleep(60)",
        "raise SystemExit(1)",
        _READS + 'page(); print(\'{"ok": false, "error": "503"}\', flush=True); time.sleep(60)',
    ],
)
def test_a_process_that_does_not_push_is_replaced_and_its_values_are_dropped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str
) -> None:
    _instead(monkeypatch, tmp_path, code)
    push = _push(interval=0.05, timeout=0.2)
    large = PAGE * 3000  # more than a pipe holds
    begin = time.monotonic()
    with push.running(lambda: large):
        _wait(lambda: _counts(push)["failed"] >= 1, 20)
        ending = time.monotonic()
    assert time.monotonic() - ending < 5.0
    assert time.monotonic() - begin < 20.0
    counts = _counts(push)
    assert counts["ok"] == 0
    assert counts["points_dropped_total"] >= 3000 * _NUM_POINTS
    assert counts["push_age_seconds"] > 0


def test_it_goes_on_when_the_collector_is_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flag = tmp_path / "up"
    answer = (
        f"import os\nwhile True:\n page(); print(json.dumps({{'ok': os.path.exists({str(flag)!r})}}), flush=True)\n"
    )
    _instead(monkeypatch, tmp_path, _READS + answer)
    push = _push(interval=0.05)
    with push.running(lambda: PAGE):
        _wait(lambda: _counts(push)["failed"] >= 2)
        flag.touch()
        _wait(lambda: _counts(push)["ok"] >= 2)
    said = [record.message for record in caplog.records if "OTLP" in record.message]
    assert len(said) == 2
    assert said[1].endswith("takes metrics again")


@pytest.mark.parametrize("text", ["collector:4318", "ftp://c", "http://", "http://me:word@c:4318", "http://c:x"])
def test_endpoints_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="is not the URL") as raised:
        otlp_endpoint_of(text)
    assert "word" not in str(raised.value)


def test_an_endpoint_has_the_protocols_path_unless_it_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    assert otlp_endpoint_of("http://c:4318") == otlp_endpoint_of("http://c:4318/") == "http://c:4318/v1/metrics"
    assert otlp_endpoint_of("https://p/api/v1/otlp/v1/metrics") == "https://p/api/v1/otlp/v1/metrics"
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"stepscope\[otlp\]"):
        otlp_endpoint_of("http://c:4318")


def test_the_library_itself_gives_up_on_a_dead_collector() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}/v1/metrics"
    push = _push(endpoint, timeout=1.0)
    with push.running(lambda: PAGE):
        _wait(lambda: _counts(push)["failed"] >= 2, 60)
    assert _counts(push)["ok"] == 0
