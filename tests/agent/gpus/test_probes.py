"""Reader processes on the fake driver: all readable GPUs stay reported, whatever one GPU does."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.agent.gpus.probes import GpuProbes
from stepscope.agent.gpus.supervisor import ProbeTiming
from stepscope.agent.gpus.targets import ProbeSnapshot
from stepscope.core.metrics.readings import GPU, Finding, MissingReason, labels_of
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml

QUICK = ProbeTiming(
    interval=0.1,
    slow_poll=0.2,
    deadline=1.0,
    start_deadline=20,
    look=2.0,
    slow=0.3,
    first_retry=0.2,
    last_retry=0.5,
    lost_retry=0.5,
    grace=2,
)
PATIENCE_SECONDS = 40.0


def until(probes: GpuProbes, is_so: Callable[[ProbeSnapshot], bool]) -> ProbeSnapshot:
    """The first snapshot of which it is so."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        snapshot = probes.snapshot()
        if is_so(snapshot):
            return snapshot
        time.sleep(0.02)
    raise AssertionError(f"never so: {probes.snapshot().targets} {probes.snapshot().counts}")


def value(snapshot: ProbeSnapshot, name: str, gpu: int) -> float | None:
    found = [
        reading.value
        for reading in snapshot.collection.readings
        if reading.metric == GPU + name and dict(reading.labels).get("gpu") == str(gpu)
    ]
    return found[0] if found else None


def reasons(snapshot: ProbeSnapshot) -> list[MissingReason | None]:
    return [target.reason for target in snapshot.targets]


def all_well(num_gpus: int) -> Callable[[ProbeSnapshot], bool]:
    return lambda snapshot: (
        reasons(snapshot) == [None] * num_gpus
        and all(
            value(snapshot, "up", gpu) == 1 and value(snapshot, "power_limit_watts", gpu) for gpu in range(num_gpus)
        )
    )


def with_gpus(machine: FakeNvml, num_gpus: int) -> None:
    for index in range(num_gpus):
        machine.add({**profiles.h100(index), "power_mw": 100_000 + index})
    machine.write()


def watt(snapshot: ProbeSnapshot, gpu: int) -> float | None:
    return value(snapshot, "power_watts", gpu)


def changed(machine: FakeNvml, gpu: int, mw: int) -> float:
    """Give a GPU another power draw; it in watts."""
    machine.set(gpu, power_mw=mw)
    machine.write()
    return mw / 1000


def test_bug_gpu_monitoring_tools_46_a_gpu_that_hangs_for_ever_hides_no_other(machine: FakeNvml) -> None:
    with_gpus(machine, 4)
    with GpuProbes(QUICK, environment=machine.environment()) as probes:
        until(probes, all_well(4))
        machine.set(2, hang="nvmlDeviceGetPowerUsage")
        machine.write()
        hanging = until(probes, lambda s: reasons(s)[2] is MissingReason.TIMED_OUT)
        assert value(hanging, "up", 2) == 0
        assert watt(hanging, 2) == 100.002  # with its age
        new = changed(machine, 3, 555_000)
        until(probes, lambda s: watt(s, 3) == new and watt(s, 0) == 100.0)
        seconds = []
        for _ in range(50):
            begin = time.perf_counter()
            probes.snapshot()
            seconds.append(time.perf_counter() - begin)
            time.sleep(0.002)
        assert sorted(seconds)[-5] < 0.2  # it waits for nothing; how fast it is says benchmarks/agent_cost.py
        machine.set(2, hang=None, power_mw=70_000)
        machine.write()
        until(probes, lambda s: reasons(s) == [None] * 4 and watt(s, 2) == 70.0)


def test_bug_nvgpu_8_a_lost_gpu_says_so_and_comes_back(machine: FakeNvml) -> None:
    with_gpus(machine, 3)
    with GpuProbes(QUICK, environment=machine.environment()) as probes:
        until(probes, all_well(3))
        machine.set(1, lost=1)
        machine.write()
        lost = until(probes, lambda s: reasons(s)[1] is MissingReason.GONE)
        assert "XID 79" in lost.targets[1].detail
        assert watt(lost, 1) is None
        assert watt(lost, 2) == 100.002
        machine.set(1, lost=None)
        machine.write()
        until(probes, all_well(3))


def test_a_gpu_that_is_lost_when_the_agent_restarts_keeps_its_name(machine: FakeNvml) -> None:
    with_gpus(machine, 3)
    with GpuProbes(QUICK, environment=machine.environment()) as probes:
        named = until(probes, all_well(3)).targets[1].device
        places = probes.places()
    assert named.uuid
    machine.set(1, lost=1)
    machine.write()
    with GpuProbes(QUICK, environment=machine.environment()) as restarted:
        restarted.restore((), places, frozenset())
        lost = until(restarted, lambda s: len(reasons(s)) == 3 and reasons(s)[1] is MissingReason.GONE)
        assert lost.targets[1].device == named
        assert restarted.places() == places
        machine.set(1, lost=None)
        machine.write()
        assert until(restarted, all_well(3)).targets[1].device == named


def test_a_gpu_without_a_name_is_not_taken_for_one_that_answers_elsewhere(machine: FakeNvml) -> None:
    with_gpus(machine, 3)
    with GpuProbes(QUICK, environment=machine.environment()) as probes:
        names = [one.device.uuid for one in until(probes, all_well(3)).targets]
        places = {
            key: replace(one, index={"0": "2", "2": "0"}.get(one.index, "1")) for key, one in probes.places().items()
        }
    machine.set(0, lost=1)
    machine.write()
    with GpuProbes(QUICK, environment=machine.environment()) as restarted:
        restarted.restore((), places, frozenset())
        found = until(restarted, lambda s: reasons(s) == [MissingReason.GONE, None, None])
        assert [one.device.uuid for one in found.targets] == ["", *names[1:]]


def test_bug_nvitop_139_a_gpu_that_crashes_its_process_hides_no_other(machine: FakeNvml) -> None:
    with_gpus(machine, 3)
    with GpuProbes(QUICK, environment=machine.environment()) as probes:
        until(probes, all_well(3))
        machine.set(0, crash="nvmlDeviceGetTemperature")
        machine.write()
        until(probes, lambda s: reasons(s) == [MissingReason.FAILED, None, None])
        new = changed(machine, 2, 321_000)
        crashed = until(probes, lambda s: watt(s, 2) == new)
        assert crashed.counts.crashed >= 1
        machine.set(0, crash=None)
        machine.write()
        until(probes, all_well(3))


def test_a_slow_gpu_is_read_beside_the_others(machine: FakeNvml) -> None:
    with_gpus(machine, 3)
    machine.set(1, slow_ms=15)  # each of some 30 calls
    machine.write()
    with GpuProbes(replace(QUICK, deadline=20, stale=60), environment=machine.environment()) as probes:
        slow = until(probes, lambda s: len(s.targets) == 3 and s.targets[1].is_apart and all_well(3)(s))
        assert slow.counts.timed_out == 0
        assert slow.targets[1].seconds is not None
        assert slow.targets[1].seconds > QUICK.slow


def test_bug_nvidia_gpu_exporter_63_a_reloaded_driver_is_read_again(machine: FakeNvml) -> None:
    with_gpus(machine, 2)
    with GpuProbes(QUICK, environment=machine.environment()) as probes:
        until(probes, all_well(2))
        machine.values["error"] = "9"  # unloaded
        machine.write()
        away = until(probes, lambda s: reasons(s) == [MissingReason.NOT_INSTALLED] * 2)
        assert not [r for r in away.collection.readings if r.metric == GPU + "power_watts"]
        machine.values["error"], machine.values["generation"] = "18", "2"
        machine.write()
        until(probes, lambda s: reasons(s) == [MissingReason.VERSION_MISMATCH] * 2)
        del machine.values["error"]
        machine.write()
        until(probes, all_well(2))


def test_gpus_that_are_numbered_anew_when_one_is_gone_are_not_taken_for_lost(machine: FakeNvml) -> None:
    with_gpus(machine, 4)
    with GpuProbes(QUICK, environment=machine.environment()) as probes:
        before = until(probes, all_well(4)).targets
        for index in range(4):
            machine.set(index, **dict.fromkeys(profiles.h100(index)))
        for index, was in enumerate((0, 2, 3)):
            machine.set(index, **profiles.h100(was))
        machine.values |= {"gpus": "3", "generation": "2"}  # the driver was loaded anew
        machine.write()
        lost: set[str] = set()
        answered: dict[str, str] = {}
        starts = probes.snapshot().counts.started

        def is_read_again(snapshot: ProbeSnapshot) -> bool:
            for target in snapshot.targets:
                if target.reason is MissingReason.GONE:
                    lost.add(target.device.uuid)
            answered.update(
                (dict(one.labels)["uuid"], dict(one.labels)["gpu"])
                for one in snapshot.collection.readings
                if one.metric == GPU + "up" and one.value
            )
            return snapshot.counts.started >= starts + 4 and reasons(snapshot).count(None) == 3

        until(probes, is_read_again)
        end = time.monotonic() + 2 * QUICK.look
        until(probes, lambda s: is_read_again(s) and time.monotonic() > end)
    uuids = [target.device.uuid for target in before]
    assert lost == {uuids[1]}
    assert [answered[uuids[was]] for was in (0, 2, 3)] == ["0", "1", "2"]


def test_no_driver_at_all_is_said_and_nothing_else_happens(tmp_path: Path) -> None:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    with GpuProbes(QUICK, environment=environment) as probes:
        snapshot = until(probes, lambda s: s.counts.refused >= 2 or bool(s.targets))
        if snapshot.targets:
            pytest.skip("there is a driver on this machine")
        (missing,) = snapshot.collection.missing
        assert missing.reason is MissingReason.NOT_INSTALLED
        assert "no NVIDIA driver is installed" in missing.detail


def test_bug_nvsentinel_1576_a_driver_that_never_answers_is_said_while_the_agent_answers(machine: FakeNvml) -> None:
    with_gpus(machine, 2)
    machine.values["hang"] = "nvmlInitWithFlags"
    machine.write()
    timing = ProbeTiming(interval=0.1, deadline=0.5, start_deadline=1.5, first_retry=0.2, last_retry=0.5, grace=0.5)
    with GpuProbes(timing, environment=machine.environment()) as probes:
        assert probes.snapshot().collection.missing[0].reason is MissingReason.NOT_YET
        hanging = until(probes, lambda s: s.counts.timed_out >= 2)
        assert hanging.collection.missing[0].reason is MissingReason.TIMED_OUT
        assert hanging.counts.started - hanging.counts.timed_out <= 1  # never two at once
        del machine.values["hang"]
        machine.write()
        until(probes, all_well(2))


def test_a_driver_that_stops_answering_takes_all_gpus_down_and_brings_them_back(machine: FakeNvml) -> None:
    with_gpus(machine, 8)
    with GpuProbes(QUICK, environment=machine.environment()) as probes:
        until(probes, all_well(8))
        machine.values["hang"] = "any"
        machine.write()
        begin = time.monotonic()
        hanging = until(probes, lambda s: reasons(s) == [MissingReason.TIMED_OUT] * 8)
        assert time.monotonic() - begin < QUICK.start_deadline / 2  # a new process may take so long
        assert [value(hanging, "up", gpu) for gpu in range(8)] == [0.0] * 8
        assert any(not one.labels and one.reason is MissingReason.TIMED_OUT for one in hanging.collection.missing)
        del machine.values["hang"]
        machine.write()
        until(probes, all_well(8))


def test_reading_goes_on_after_processes_and_descriptors_ran_out(
    machine: FakeNvml, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As at a limit of tasks or open files, or while the program is replaced by a newer one."""
    with_gpus(machine, 1)
    with GpuProbes(QUICK, environment=machine.environment()) as probes:
        until(probes, all_well(1))
        with monkeypatch.context() as patch:
            patch.setattr("stepscope.agent.gpus.probes.ProbeProcess", _no_process)
            patch.setattr("stepscope.agent.gpus.probes.poll", _no_descriptor)
            for child in children_of(os.getpid()):
                os.kill(child, signal.SIGKILL)
            failing = until(probes, lambda s: bool(s.collection.missing) and not all_well(1)(s))
            assert any("no process can be started" in missing.detail for missing in failing.collection.missing)
        until(probes, all_well(1))
    assert [record.message for record in caplog.records] == ["reading the GPUs failed; trying again"]


def _no_process(*_: object) -> None:
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _no_descriptor() -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_xids_reach_the_agent_once_and_are_counted(machine: FakeNvml) -> None:
    with_gpus(machine, 2)
    with GpuProbes(QUICK, environment=machine.environment()) as probes:
        until(probes, all_well(2))
        machine.set(1, xids=2, xid__0=94, xid__1=94)
        machine.write()
        counted = until(probes, lambda s: value(s, "xid_errors_total", 1) == 2)
        assert value(counted, "xid_last", 1) == 94
        assert [dict(finding.labels)["xid"] for finding in probes.take_findings()] == ["94", "94"]
        assert probes.take_findings() == []


def test_bug_dcgm_162_an_xid_of_the_kernel_log_counts_for_its_gpu_once(machine: FakeNvml) -> None:
    with_gpus(machine, 2)
    with GpuProbes(QUICK, environment=machine.environment()) as probes:
        until(probes, all_well(2))
        logged = [
            Finding("xid", "XID 62", labels_of(pci_bus_id="00000000:1F:00.0", xid=62, pid=7), 5),
            Finding("xid", "XID 79", labels_of(pci_bus_id="00000000:EE:00.0", xid=79), 5),  # unknown to NVML
        ]
        probes.note_kernel_log(logged)
        machine.set(1, xids=2, xid__0=62, xid__1=62)  # one of them the kernel's
        machine.write()
        until(probes, lambda s: (value(s, "xid_errors_total", 1) or 0) >= 2)
        assert [dict(finding.labels).get("gpu") for finding in probes.take_findings()] == ["1", None, "1"]


def test_mig_instances_come_through(machine: FakeNvml) -> None:
    machine.add({**profiles.h100(0), "mig_mode": 1, **profiles.mig_instance(0, 0, gpu_instance=7)})
    machine.write()

    def tells_instance(snapshot: ProbeSnapshot) -> bool:
        return any(
            dict(reading.labels).get("gpu_instance") == "7" and reading.metric == GPU + "sm_active_ratio"
            for reading in snapshot.collection.readings
        )

    with GpuProbes(QUICK, environment=machine.environment()) as probes:
        until(probes, tells_instance)


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task")
    return [int(child) for task in found.iterdir() for child in (task / "children").read_text().split()]


def test_closing_leaves_no_process_thread_or_file(machine: FakeNvml) -> None:
    with_gpus(machine, 2)
    before = (set(children_of(os.getpid())), threading.active_count(), len(os.listdir("/proc/self/fd")))
    with GpuProbes(QUICK, environment=machine.environment()) as probes:
        until(probes, all_well(2))
        machine.set(1, hang="any")
        machine.write()
        until(probes, lambda s: reasons(s)[1] is MissingReason.TIMED_OUT)
    assert (set(children_of(os.getpid())), threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


def test_processes_that_end_again_and_again_leave_no_file_open(tmp_path: Path) -> None:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    others = set(children_of(os.getpid()))  # servers of other tests in this process
    with GpuProbes(QUICK, environment=environment) as probes:
        until(probes, lambda s: s.counts.refused >= 1 or bool(s.targets))
        before = len(os.listdir("/proc/self/fd"))
        if not until(probes, lambda s: s.counts.refused >= 5 or bool(s.targets)).targets:
            assert len(os.listdir("/proc/self/fd")) <= before + 3  # the pipes of one that runs
        assert len(set(children_of(os.getpid())) - others) <= 3


def test_bug_dcgm_exporter_84_processes_end_by_themselves_when_the_agent_is_told_to_end(machine: FakeNvml) -> None:
    """And also where the agent is killed, even from a call that hangs."""
    with_gpus(machine, 1)
    program = (
        "import time\n"
        "from stepscope.agent.gpus.probes import GpuProbes\n"
        "with GpuProbes() as probes:\n"
        "    while not probes.snapshot().targets: time.sleep(0.05)\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    agent = subprocess.Popen(
        [sys.executable, "-c", program], env=machine.environment(), stdout=subprocess.PIPE, text=True
    )
    assert agent.stdout is not None
    try:
        assert agent.stdout.readline() == "ready\n"
        machine.set(0, hang="any")
        machine.write()
        time.sleep(1.5)
        (child,) = children_of(agent.pid)
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        end = time.monotonic() + PATIENCE_SECONDS
        while Path(f"/proc/{child}").exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]
    finally:
        agent.kill()
        agent.wait()
        agent.stdout.close()
