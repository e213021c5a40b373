"""Training processes: their metrics, and whether they run next to their GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.collectors.host.processes import GpuPlace, gpu_users_of, sysfs_address
from stepscope.core.metrics.readings import GPU, Collection, MissingReason, Reading, labels_of
from tests.collectors.host.trees import GPU_A, GPU_B, TWO_SOCKETS, collect, make, missing, process, value, values


def test_each_figure_of_a_process(tmp_path: Path) -> None:
    found = collect(make(tmp_path, process(17)), (17, ()))
    assert value(found, "process_info", pid="17", command="python", cgroup="") == 1
    assert value(found, "process_cpu_seconds_total", mode="user") == 2.5
    assert value(found, "process_cpu_seconds_total", mode="system") == 0.5
    assert value(found, "process_major_page_faults_total") == 7
    assert value(found, "process_threads") == 9
    assert value(found, "process_resident_memory_bytes") == 200 * 1024**2
    assert value(found, "process_context_switches_total", kind="involuntary") == 7
    assert value(found, "process_run_queue_seconds_total") == 1.5
    assert value(found, "process_read_bytes_total") == 8192
    assert value(found, "process_written_bytes_total") == 4096
    assert value(found, "process_allowed_cpus") == 64


@pytest.mark.parametrize("command", ["a b", "x) S 1 (y", "((", ""])
def test_a_command_may_hold_anything(tmp_path: Path, command: str) -> None:
    found = collect(make(tmp_path, process(17, command=command)), (17, ()))
    assert value(found, "process_info", command=command) == 1
    assert value(found, "process_threads") == 9


def test_a_process_that_is_not_there_is_gone(tmp_path: Path) -> None:
    found = collect(make(tmp_path, process(17)), (17, ()), (18, (GPU_A,)))
    (absent,) = [one for one in found.missing if ("pid", "18") in one.labels]
    assert absent.reason is MissingReason.GONE
    assert "PID namespace" in absent.detail


def test_a_process_next_to_its_gpu(tmp_path: Path) -> None:
    found = collect(make(tmp_path, process(17, cpus="0-7") | TWO_SOCKETS), (17, (GPU_A,)), places=(GPU_A, GPU_B))
    assert value(found, "process_gpu_local_cpus", pid="17", uuid="GPU-a") == 8
    assert value(found, "host_gpu_numa_node", uuid="GPU-a", pci_bus_id="00000000:0F:00.0") == 0
    assert value(found, "host_gpu_numa_node", uuid="GPU-b") == 1
    assert found.findings == ()


def test_a_process_on_the_other_socket_is_a_finding_with_what_to_do(tmp_path: Path) -> None:
    found = collect(make(tmp_path, process(17, cpus="0-7") | TWO_SOCKETS), (17, (GPU_B,)))
    assert value(found, "process_gpu_local_cpus") == 0
    (finding,) = found.findings
    assert finding.code == "remote_affinity"
    assert finding.message == (
        "process 17 may run on CPUs 0-7, none of which is next to its GPU (00000000:B3:00.0): "
        "bind it to CPUs 32-63,96-127"
    )
    assert finding.labels == (("pid", "17"), ("uuid", "GPU-b"))


def test_a_process_that_may_run_anywhere_and_one_with_gpus_of_both_sockets(tmp_path: Path) -> None:
    tree = process(17, cpus="0-127") | process(18, cpus="0-40") | TWO_SOCKETS
    found = collect(make(tmp_path, tree), (17, (GPU_A,)), (18, (GPU_A, GPU_B)))
    assert value(found, "process_gpu_local_cpus", pid="17") == 64
    assert value(found, "process_gpu_local_cpus", pid="18", uuid="GPU-a") == 32
    assert value(found, "process_gpu_local_cpus", pid="18", uuid="GPU-b") == 9
    assert found.findings == ()


def test_a_process_that_is_bound_to_one_cpu_is_a_finding(tmp_path: Path) -> None:
    found = collect(make(tmp_path, process(17, cpus="5") | TWO_SOCKETS), (17, (GPU_A,)))
    assert [finding.code for finding in found.findings] == ["single_cpu"]


def test_a_machine_that_tells_no_node(tmp_path: Path) -> None:
    folder = "sys/bus/pci/devices/0000:0f:00.0"
    tree = process(17) | {f"{folder}/numa_node": "-1\n", f"{folder}/local_cpulist": "\n"}
    found = collect(make(tmp_path, tree), (17, (GPU_A,)), places=(GPU_A,))
    assert values(found, "host_gpu_numa_node") == values(found, "process_gpu_local_cpus") == []
    assert missing(found, "host_gpu_numa_node")[0].reason is MissingReason.NOT_SUPPORTED
    assert missing(found, "process_gpu_local_cpus")[0].reason is MissingReason.UNREADABLE
    assert found.findings == ()


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [
        ("00000000:0F:00.0", "0000:0f:00.0"),
        ("0000:0f:00.0", "0000:0f:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("", None),
        ("../../etc", None),
    ],
)
def test_addresses(bus_id: str, address: str | None) -> None:
    assert sysfs_address(bus_id) == address


def test_users_of_gpus_come_from_what_a_gpu_collector_saw() -> None:
    collection = Collection(
        (
            Reading(GPU + "info", 1, labels_of(gpu=0, uuid="GPU-a", pci_bus_id="00000000:0F:00.0"), 1),
            Reading(GPU + "info", 1, labels_of(gpu=1, uuid="GPU-b", pci_bus_id="00000000:B3:00.0"), 1),
            Reading(GPU + "process_memory_bytes", 5, labels_of(gpu=0, uuid="GPU-a", pid=17, kind="compute"), 1),
            Reading(GPU + "process_sm_utilization_ratio", 0.5, labels_of(gpu=0, uuid="GPU-a", pid=17), 1),
            Reading(GPU + "process_memory_bytes", 5, labels_of(gpu=1, uuid="MIG-x", pid=17, kind="compute"), 1),
            Reading(GPU + "process_memory_bytes", 5, labels_of(gpu=2, uuid="GPU-c", pid=9, kind="compute"), 1),
        )
    )
    users = gpu_users_of(collection)
    assert users.places == (GPU_A, GPU_B)
    assert users.processes == ((9, ()), (17, (GPU_A, GpuPlace("GPU-b", "00000000:B3:00.0"))))
