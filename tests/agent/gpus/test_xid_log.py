"""XID log: each XID is reported once and counted permanently."""

from __future__ import annotations

from stepscope.agent.gpus.targets import XidLog
from stepscope.core.metrics.readings import GPU, Finding, labels_of, with_labels

LABELS = labels_of(gpu=0, uuid="GPU-0")


def xid(number: int, time_ns: int) -> Finding:
    return Finding("xid", f"XID {number}", with_labels(LABELS, xid=number), time_ns)


def test_the_same_xid_twice_is_counted_twice_and_the_last_one_is_known_by_its_time() -> None:
    log = XidLog()
    log.add([xid(94, 1_000_000_000), xid(79, 3_000_000_000), Finding("clamped", "", LABELS, 5)], "nvml")
    log.add([xid(94, 2_000_000_000)], "nvml")
    told = {(r.metric.removeprefix(GPU), dict(r.labels).get("xid")): r.value for r in log.readings()}
    assert told == {
        ("xid_errors_total", "94"): 2,
        ("xid_last_timestamp_seconds", "94"): 2.0,
        ("xid_errors_total", "79"): 1,
        ("xid_last_timestamp_seconds", "79"): 3.0,
        ("xid_last", None): 79,
    }
    assert [finding.time_ns for finding in log.take()] == [1_000_000_000, 3_000_000_000, 2_000_000_000]
    assert log.take() == []
    assert len(log.readings()) == 5


def test_an_xid_of_before_the_clock_was_set_back_is_not_the_last_for_ever() -> None:
    now_ns = [20_000_000_000]
    log = XidLog(wall_clock_ns=lambda: now_ns[0])
    log.add([xid(94, 20_000_000_000), xid(79, 19_000_000_000)], "nvml")
    now_ns[0] = 5_000_000_000
    log.add([xid(79, 5_000_000_000)], "nvml")
    told = {(r.metric.removeprefix(GPU), dict(r.labels).get("xid")): r.value for r in log.readings()}
    assert told["xid_last", None] == 79
    assert told["xid_last_timestamp_seconds", "79"] == 5.0


def test_a_mig_instance_s_xid_counts_for_its_gpu() -> None:
    log = XidLog()
    log.add([Finding("xid", "", with_labels(LABELS, xid=13, gpu_instance=7), 1), xid(13, 2)], "nvml")
    assert [reading.value for reading in log.readings() if reading.metric == GPU + "xid_errors_total"] == [2]


def count(log: XidLog) -> list[float]:
    return [reading.value for reading in log.readings() if reading.metric == GPU + "xid_errors_total"]


def test_what_both_sources_tell_is_counted_once_and_what_one_misses_is_not_lost() -> None:
    log = XidLog()
    log.add([xid(94, 1), xid(94, 3)], "kernel_log")
    log.add([xid(94, 2)], "nvml")  # it listened later
    assert count(log) == [2]
    log.add([xid(94, 4), xid(94, 5)], "nvml")
    assert count(log) == [3]
    log.add([xid(94, 5)], "kernel_log")
    assert count(log) == [3]
    assert [finding.time_ns for finding in log.take()] == [1, 3, 5]
