"""All GPUs are read, also when one is lost, the driver is away, or a GPU is split."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.collectors.nvml.collector import GpuNames, NvmlCollector
from stepscope.collectors.nvml.gpu import PollPart
from stepscope.core.metrics.readings import MissingReason
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml
from tests.collectors.nvml.reading_of import key_of, missing_of, value_of


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_what_changes_slowly_is_asked_seldom(nvml: FakeNvml) -> None:
    nvml.add(profiles.h100(0))
    nvml.write()
    clock = Clock()
    collector = NvmlCollector(slow_poll_seconds=10, clock=clock)
    key = key_of(collector)
    assert set(collector.sweep(key)) == {PollPart.FAST, PollPart.SLOW}
    clock.seconds = 9
    assert set(collector.sweep(key)) == {PollPart.FAST}
    clock.seconds = 10
    assert set(collector.sweep(key)) == {PollPart.FAST, PollPart.SLOW}


def test_a_reading_says_when_it_was_read(nvml: FakeNvml) -> None:
    nvml.add(profiles.h100(0))
    nvml.write()
    times = iter([1000, 2000])
    clock = Clock()
    collector = NvmlCollector(clock=clock, wall_clock_ns=lambda: next(times))
    collector.collect()
    clock.seconds = 1
    told = {reading.metric: reading.time_ns for reading in collector.collect().readings}
    assert told["stepscope_gpu_power_watts"] == 2000
    assert told["stepscope_gpu_power_limit_watts"] == 1000


def test_a_gpu_that_comes_back_is_read_again(nvml: FakeNvml) -> None:
    for index in range(2):
        nvml.add(profiles.h100(index))
    nvml.write()
    collector = NvmlCollector()
    keys = [key_of(collector, index) for index in range(2)]
    collector.sweep(keys[1])
    nvml.set(1, lost=1)
    nvml.write()
    lost = collector.sweep(keys[1])
    assert value_of(lost[PollPart.FAST], "up", reason="gone") == 0
    assert lost[PollPart.SLOW].readings == ()
    again = collector.sweep(keys[1])
    assert missing_of(again[PollPart.FAST], "", gpu=1) == missing_of(lost[PollPart.FAST], "", gpu=1)
    nvml.set(1, lost=None)
    nvml.write()
    assert value_of(collector.sweep(keys[1])[PollPart.FAST], "up") == 1


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        (9, MissingReason.NOT_INSTALLED, "modprobe"),
        (18, MissingReason.VERSION_MISMATCH, "reboot, or reload the module"),
        (4, MissingReason.NO_PERMISSION, "root"),
        (999, MissingReason.FAILED, "999"),
    ],
)
def test_a_driver_that_refuses_is_one_line_and_no_crash(
    nvml: FakeNvml, code: int, reason: MissingReason, words: str
) -> None:
    nvml.add(profiles.h100(0))
    nvml.values["error"] = str(code)
    nvml.write()
    collector = NvmlCollector()
    collection = collector.collect()
    assert not collection.readings
    told = missing_of(collection, "")
    assert told is not None
    assert told[0] is reason
    assert words in told[1]
    del nvml.values["error"]
    nvml.write()
    assert value_of(collector.collect(), "up") == 1


def test_no_driver_at_all_is_one_line() -> None:
    code = "from stepscope.collectors.nvml.collector import NvmlCollector; print(NvmlCollector().collect().missing)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    if "readings" in run.stdout:
        pytest.skip("there is a driver on this machine")
    assert run.returncode == 0, run.stderr
    assert "libnvidia-ml.so.1 is not here: no NVIDIA driver is installed" in run.stdout
    assert "NOT_INSTALLED" in run.stdout


def test_a_driver_library_that_is_broken_is_not_called_absent(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    code = "from stepscope.collectors.nvml.collector import NvmlCollector; print(NvmlCollector().collect().missing)"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "the driver's library cannot be loaded: " in run.stdout
    assert "FAILED" in run.stdout


def test_names_that_others_have_for_a_gpu_and_its_instances(nvml: FakeNvml) -> None:
    nvml.add({**profiles.h100(0), "mig_mode": 1})
    nvml.set(0, **profiles.mig_instance(0, 0, gpu_instance=7), **profiles.mig_instance(0, 2, gpu_instance=9))
    nvml.add({**profiles.h100(1), "mig_mode": 1})  # split, without an instance
    nvml.add({**profiles.h100(2), "minor": None})
    nvml.write()
    collector = NvmlCollector()
    instances = ((f"MIG-0000{slot:04x}-0000-4000-8000-000000000000", gi) for slot, gi in ((0, "7"), (2, "9")))
    assert [collector.names(key_of(collector, index)) for index in range(3)] == [
        GpuNames("7", True, tuple(instances)),
        GpuNames("6", True, ()),
        GpuNames("", False, ()),
    ]


def test_mig_instances_are_told_beside_the_whole_gpu(nvml: FakeNvml) -> None:
    nvml.add({**profiles.h100(0), "mig_mode": 1, "utilization": None, "utilization_memory": None})
    nvml.set(0, utilization=None, **profiles.mig_instance(0, 0, gpu_instance=7))
    nvml.set(0, **profiles.mig_instance(0, 2, gpu_instance=9))  # there are gaps
    nvml.write()
    collector = NvmlCollector(slow_poll_seconds=0.0)
    collection = collector.collect()
    assert value_of(collection, "mig_enabled") == 1
    first = {"gpu_instance": 7, "compute_instance": 0, "mig_profile": "1g.10gb"}
    assert value_of(collection, "memory_used_bytes", **first, uuid="MIG-00000000-0000-4000-8000-000000000000")
    whole = [r for r in collection.readings if r.metric.endswith("memory_used_bytes") and len(r.labels) == 2]
    assert len(whole) == 1
    parts = collector.sweep(key_of(collector))
    assert missing_of(parts[PollPart.FAST], "sm_active_ratio", gpu_instance=9) is not None  # not yet


def test_compute_instances_of_one_gpu_instance_are_counted_once(nvml: FakeNvml) -> None:
    nvml.add({**profiles.h100(0), "mig_mode": 1})
    nvml.set(0, **profiles.mig_instance(0, 0, gpu_instance=7, compute_instance=0))
    nvml.set(0, **profiles.mig_instance(0, 1, gpu_instance=7, compute_instance=1))
    nvml.write()
    collection = NvmlCollector().collect()
    assert value_of(collection, "memory_used_bytes", gpu_instance=7) == 14 * 1024**2


def test_a_mig_instance_that_is_taken_away_is_told_no_more(nvml: FakeNvml) -> None:
    nvml.add({**profiles.h100(0), "mig_mode": 1})
    instance = profiles.mig_instance(0, 0, gpu_instance=7)
    nvml.set(0, **instance)
    nvml.write()
    collector = NvmlCollector(slow_poll_seconds=0.0)
    assert value_of(collector.collect(), "memory_used_bytes", gpu_instance=7) is not None
    nvml.set(0, **dict.fromkeys(instance), mig_mode=0)
    nvml.write()
    assert value_of(collector.collect(), "memory_used_bytes", gpu_instance=7) is None


def test_processes_are_told_once_with_what_they_hold(nvml: FakeNvml) -> None:
    nvml.add({**profiles.h100(0), "compute__count": 2, "graphics__count": 1, "use__count": 2})
    nvml.set(0, compute__0__pid=11, compute__0__memory=5 * 1024**3, compute__1__pid=12)  # 12: memory not told
    nvml.set(0, graphics__0__pid=11, graphics__0__memory=5 * 1024**3)
    nvml.set(0, use__0__pid=11, use__0__sm=97, use__0__time_us=5, use__1__pid=99, use__1__sm=3, use__1__time_us=5)
    nvml.write()
    collector = NvmlCollector(slow_poll_seconds=0.0)
    collection = collector.collect()
    assert value_of(collection, "processes", kind="compute") == 2
    assert value_of(collection, "process_memory_bytes", pid=11, kind="compute+graphics") == 5 * 1024**3
    assert missing_of(collection, "process_memory_bytes", pid=12) is not None
    assert value_of(collection, "process_sm_utilization_ratio", pid=11) == 0.97
    assert value_of(collection, "process_sm_utilization_ratio", pid=12) is None  # not told is not 0
    assert value_of(collection, "process_sm_utilization_ratio", pid=99) is None  # holds the GPU no more
    later = collector.collect()  # no sample since: the driver says success, the binding raises
    assert value_of(later, "process_sm_utilization_ratio", pid=11) is None
    assert missing_of(later, "process_sm_utilization_ratio") is None


@pytest.mark.parametrize("mig_mode", [0, 1])
def test_an_instance_counts_only_on_a_gpu_that_is_split(nvml: FakeNvml, mig_mode: int) -> None:
    """NVIDIA's mocknvml has every process and XID in instance 0, also without MIG; the driver has none there."""
    nvml.add({**profiles.h100(0), "mig_mode": mig_mode, "compute__count": 1, "xid_instance": 0})
    nvml.set(0, compute__0__pid=11, compute__0__memory=5 * 1024**3, compute__0__gpu_instance=0)
    nvml.write()
    collector = NvmlCollector(slow_poll_seconds=0.0)
    collector.collect()
    nvml.set(0, xids=1, xid__0=31)
    nvml.write()
    collection = collector.collect()
    whose = {"gpu_instance": 0} if mig_mode else {}
    assert value_of(collection, "process_memory_bytes", pid=11, kind="compute", **whose) == 5 * 1024**3
    (xid,) = [finding for finding in collection.findings if finding.code == "xid"]
    assert ("gpu_instance" in dict(xid.labels)) == bool(mig_mode)


def test_of_very_many_processes_the_largest_are_told(nvml: FakeNvml) -> None:
    nvml.add({**profiles.h100(0), "compute__count": 300})
    for number in range(300):
        nvml.set(0, **{f"compute__{number}__pid": 1000 + number, f"compute__{number}__memory": number})
    nvml.write()
    collection = NvmlCollector().collect()
    assert value_of(collection, "processes", kind="compute") == 300
    told = [r.value for r in collection.readings if r.metric.endswith("process_memory_bytes")]
    assert len(told) == 128
    assert min(told) == 300 - 128
    assert [finding.code for finding in collection.findings] == ["processes_left_out"]
