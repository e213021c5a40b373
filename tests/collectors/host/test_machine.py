"""Machine-wide figures are read in base units; what is not there is missing instead of zero."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from stepscope.collectors.host import files
from stepscope.collectors.host.collector import HostCollector
from stepscope.collectors.host.processes import GpuUsers
from stepscope.core.metrics.host import HOST_BY_NAME
from stepscope.core.metrics.readings import MissingReason
from tests.collectors.host.trees import MACHINE, NOW, collect, make, missing, port, value, values


def test_each_figure_of_a_machine(tmp_path: Path) -> None:
    found = collect(make(tmp_path, MACHINE))
    assert value(found, "host_cpu_seconds_total", mode="user") == 10.0
    assert value(found, "host_cpu_seconds_total", mode="iowait") == 0.5
    assert value(found, "host_cpus") == 2
    assert value(found, "host_context_switches_total") == 123
    assert value(found, "host_processes_blocked") == 2
    assert value(found, "host_boot_time_seconds") == 1_700_000_000
    assert values(found, "host_load_average") == [1.5, 2.25, 3.0]
    assert value(found, "host_memory_total_bytes") == 1_024_000
    assert value(found, "host_huge_pages_total_bytes") == 4 * 2048 * 1024
    assert value(found, "host_oom_kills_total") == 1
    assert value(found, "host_swapped_out_bytes_total") == 3 * 4096
    assert value(found, "host_reclaim_stalls_total") == 10
    assert value(found, "host_numa_memory_total_bytes", node="1") == 400 * 1024
    assert value(found, "host_numa_misses_total", node="0") == 7
    assert value(found, "host_tcp_retransmits_total") == 12
    assert all(reading.time_ns == NOW for reading in found.readings)


def test_bug_47_available_memory_is_the_kernels_own_figure(tmp_path: Path) -> None:
    assert value(collect(make(tmp_path, MACHINE)), "host_memory_available_bytes") == 700 * 1024
    old = MACHINE["proc/meminfo"].replace("MemAvailable:    700 kB\n", "")  # before Linux 3.14
    found = collect(make(tmp_path, {"proc/meminfo": old}))
    assert values(found, "host_memory_available_bytes") == []
    (absent,) = missing(found, "host_memory_available_bytes")
    assert absent.reason is MissingReason.NOT_SUPPORTED
    assert "MemAvailable" in absent.detail


def test_pressure(tmp_path: Path) -> None:
    found = collect(make(tmp_path, MACHINE))
    assert value(found, "host_pressure_seconds_total", resource="cpu", share="some") == 5.0
    assert value(found, "host_pressure_seconds_total", resource="io", share="some") == 1.000001
    assert value(found, "host_pressure_ratio", resource="cpu", share="some", window="10s") == 0.1234
    assert value(found, "host_pressure_ratio", resource="io", share="full", window="10s") == 0.25


def test_a_kernel_without_pressure_is_told_with_what_to_do(tmp_path: Path) -> None:
    (absent,) = missing(collect(tmp_path), "host_pressure_seconds_total", resource="io")
    assert absent.reason is MissingReason.NOT_SUPPORTED
    assert "psi=1" in absent.detail


def test_disks_are_told_whole_and_once(tmp_path: Path) -> None:
    found = collect(make(tmp_path, MACHINE))
    assert value(found, "host_disk_read_bytes_total") == 2000 * 512
    assert value(found, "host_disk_written_bytes_total", device="nvme0n1") == 4000 * 512
    assert value(found, "host_disk_read_seconds_total") == 0.3
    assert value(found, "host_disk_busy_seconds_total") == 0.8
    assert value(found, "host_disk_in_flight") == 7


def test_disks_are_known_by_name_where_sysfs_is_not_there(tmp_path: Path) -> None:
    found = collect(make(tmp_path, {"proc/diskstats": MACHINE["proc/diskstats"]}))
    assert values(found, "host_disk_reads_total") == [100]


def test_interfaces_with_hardware(tmp_path: Path) -> None:
    found = collect(make(tmp_path, MACHINE))
    assert value(found, "host_network_receive_bytes_total") == 1000
    assert value(found, "host_network_transmit_drops_total", device="eth0") == 4
    assert value(found, "host_network_receive_errors_total") == 1
    assert value(found, "host_network_up") == 1
    assert value(found, "host_network_speed_bytes_per_second") == 12.5e9
    assert value(found, "host_network_carrier_changes_total") == 3


@pytest.mark.parametrize("speed", ["-1\n", "4294967295\n", "\n"])
def test_a_link_that_is_down_has_no_speed(tmp_path: Path, speed: str) -> None:
    down = {"sys/class/net/eth0/speed": speed, "sys/class/net/eth0/operstate": "down\n"}
    found = collect(make(tmp_path, MACHINE | down))
    assert value(found, "host_network_up") == 0
    assert values(found, "host_network_speed_bytes_per_second") == []
    gap = missing(found, "host_network_speed_bytes_per_second")[0]
    assert gap.reason is MissingReason.NOT_SUPPORTED
    assert gap.detail.startswith("/sys/class/net/eth0/speed: ")


def test_a_container_has_the_end_of_a_pair(tmp_path: Path) -> None:
    found = collect(make(tmp_path, {"proc/net/dev": MACHINE["proc/net/dev"]}))
    assert values(found, "host_network_receive_bytes_total") == [1000, 5]


def test_a_mounted_machine_has_the_interfaces_of_its_first_process(tmp_path: Path) -> None:
    host = "h: 1\nx: 2\n  ib0: 777 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
    found = collect(make(tmp_path, MACHINE | {"proc/1/net/dev": host}))
    assert values(found, "host_network_receive_bytes_total") == [777]


def test_ports(tmp_path: Path) -> None:
    found = collect(make(tmp_path, port("mlx5_0", "1")))
    labels = {"device": "mlx5_0", "port": "1"}
    assert value(found, "host_infiniband_up", **labels) == 1
    assert value(found, "host_infiniband_speed_bytes_per_second", **labels) == 50e9
    assert value(found, "host_infiniband_transmit_bytes_total", **labels) == 4000
    assert value(found, "host_infiniband_receive_bytes_total", **labels) == 8000
    assert value(found, "host_infiniband_transmit_waits_total", **labels) == 5
    assert value(found, "host_infiniband_errors_total", kind="link_downed") == 1
    assert value(found, "host_infiniband_errors_total", kind="out_of_sequence") == 6
    assert value(found, "host_infiniband_congestion_total", kind="np_cnp_sent") == 8
    info = {"state": "active", "physical_state": "linkup", "link_layer": "infiniband", "rate": "400 Gb/sec (4X NDR)"}
    assert value(found, "host_infiniband_info", **labels, **info) == 1
    assert found.findings == ()


def test_a_port_that_is_down(tmp_path: Path) -> None:
    folder = "sys/class/infiniband/mlx5_0/ports/1"
    tree = port("mlx5_0", "1") | {f"{folder}/state": "1: DOWN\n", f"{folder}/rate": "\n"}
    found = collect(make(tmp_path, tree))
    assert value(found, "host_infiniband_up") == 0
    assert missing(found, "host_infiniband_speed_bytes_per_second")[0].reason is MissingReason.UNREADABLE


def test_counters_at_the_end_of_their_width_are_no_values(tmp_path: Path) -> None:
    found = collect(make(tmp_path, port("mlx5_0", "1", port_xmit_data=2**32 - 1, link_downed=255, symbol_error=65535)))
    assert values(found, "host_infiniband_transmit_bytes_total") == []
    assert "32 bits" in missing(found, "host_infiniband_transmit_bytes_total")[0].detail
    assert {dict(finding.labels)["kind"] for finding in found.findings} == {"link_downed", "symbol_error"}


def test_counters_of_64_bits_go_on(tmp_path: Path) -> None:
    found = collect(make(tmp_path, port("mlx5_0", "1", port_xmit_data=2**40)))
    assert value(found, "host_infiniband_transmit_bytes_total") == 2**42


def test_a_machine_without_adapters(tmp_path: Path) -> None:
    (absent,) = missing(collect(tmp_path), "host_infiniband_up")
    assert absent.reason is MissingReason.NOT_INSTALLED


def test_an_empty_tree_raises_nothing_and_has_no_values(tmp_path: Path) -> None:
    found = collect(tmp_path / "nowhere", (17, ()))
    assert found.readings == ()
    assert {absent.metric for absent in found.missing} <= HOST_BY_NAME.keys()
    assert len(found.missing) > 40


@pytest.mark.parametrize("text", ["", "\n", "garbage\n", "cpu\n", "cpu x y\n", "\x00\xff", "a: b: c:\n", "1 2 3\n" * 9])
def test_files_that_make_no_sense_raise_nothing(tmp_path: Path, text: str) -> None:
    tree = dict.fromkeys([*MACHINE, *port("mlx5_0", "1")], text)
    found = collect(make(tmp_path, tree))
    assert {reading.metric for reading in found.readings} <= {"stepscope_host_infiniband_info"} | (
        {"stepscope_host_infiniband_up", "stepscope_host_network_up", "stepscope_host_load_average"}
        if text
        else {"stepscope_host_infiniband_up", "stepscope_host_network_up"}
    )


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EACCES, MissingReason.NO_PERMISSION),
        (errno.EPERM, MissingReason.NO_PERMISSION),
        (errno.ESRCH, MissingReason.GONE),
        (errno.EOPNOTSUPP, MissingReason.NOT_SUPPORTED),
        (errno.EIO, MissingReason.FAILED),
    ],
)
def test_each_error_of_a_file_is_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, reason: MissingReason
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "open", refuse, raising=False)
    (absent,) = missing(collect(make(tmp_path, MACHINE)), "host_memory_total_bytes")
    assert (absent.reason, absent.detail) == (reason, f"/proc/meminfo: {os.strerror(number)}")


def test_this_very_machine() -> None:
    pid = os.getpid()
    found = HostCollector(gpu_users=lambda: GpuUsers(processes=((pid, ()),))).collect()
    metrics = {reading.metric for reading in found.readings}
    assert metrics | {absent.metric for absent in found.missing} <= HOST_BY_NAME.keys()
    assert value(found, "host_cpus") == len(re.findall(r"^cpu\d", Path("/proc/stat").read_text(), re.M))
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert value(found, "host_memory_total_bytes") == pytest.approx(total, rel=0.01)
    assert 0 < value(found, "host_memory_available_bytes") <= total
    assert value(found, "process_resident_memory_bytes", pid=str(pid)) > 10e6
    assert value(found, "process_allowed_cpus") == len(os.sched_getaffinity(0))
    assert values(found, "process_cpu_seconds_total", mode="user")[0] > 0
    assert all(HOST_BY_NAME[reading.metric].labels or not reading.labels for reading in found.readings)
    for reading in found.readings:
        assert {name for name, _ in reading.labels} <= set(HOST_BY_NAME[reading.metric].labels)


def test_counters_of_this_machine_do_not_go_back() -> None:
    collector = HostCollector()
    first, second = (
        {
            (reading.metric, reading.labels): reading.value
            for reading in collector.collect().readings
            if reading.metric.endswith("_total") and ("mode", "iowait") not in reading.labels
        }
        for _ in range(2)
    )
    assert all(second[key] >= first[key] for key in first if key in second)
