"""Is each failure of a process blamed on the right GPU, tried again in time, and never twice at once?"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from stepscope.agent.isolation import Timing
from stepscope.agent.isolation.process import Probe
from stepscope.agent.isolation.watch import Watch
from stepscope.agent.isolation.wire import encode
from stepscope.core.errors import UsageError
from stepscope.core.gpu_metrics import GPU
from stepscope.core.readings import Collection, Finding, Labels, Missing, MissingReason, Reading, labels_of

TIMING = Timing(
    interval=1, deadline=5, start_deadline=30, look=60, first_retry=1, last_retry=64, healthy=600, slow=0.5, stale=60
)


class Machine:
    """GPUs, the processes that were started to read them, and the time."""

    def __init__(self, num_gpus: int, timing: Timing = TIMING) -> None:
        self.now = 0.0
        self.num_gpus = num_gpus
        self.hanging: set[int] = set()
        self.crashing: set[int] = set()
        self.lost: set[int] = set()
        self.slow: set[int] = set()
        self.unkillable: set[int] = set()
        self.xids: list[int] = []
        self.refusal: tuple[str, str] | None = None
        self.driver_hangs = False
        self.started: list[FakeProbe] = []
        self.swept: list[tuple[float, int, int]] = []  # when, by which process, which GPU
        self.watch = Watch(self.start, timing)

    def start(self) -> Probe:
        self.started.append(FakeProbe(self, len(self.started)))
        return self.started[-1]

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.watch.step(self.now, self.time_ns)
            self.watch.step(self.now, self.time_ns)  # answers to what was just asked
            self.now += 0.25

    @property
    def time_ns(self) -> int:
        return int(self.now * 1e9)

    def reasons(self) -> dict[int, MissingReason | None]:
        return {target.index: target.reason for target in self.watch.targets.values()}

    def refused(self) -> MissingReason | None:
        return self.watch.refusal[0] if self.watch.refusal else None

    def sweeps_of(self, gpu: int, since: float) -> int:
        return sum(1 for when, _, index in self.swept if index == gpu and when >= since)


class FakeProbe:
    """A process: it answers at once, up to the GPU that hangs."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine = machine
        self.number = number
        self.answers: list[dict[str, Any]] = []
        self.stuck_on: int | None = None
        self.has_ended = self.is_killed = self.is_finished = False
        self.keys: list[str] = []

    def fileno(self) -> int:
        raise AssertionError("nobody waits here")

    def send(self, request: dict[str, Any]) -> bool:
        assert self.stuck_on is None, "two requests at once"
        machine = self.machine
        if machine.driver_hangs:
            self.stuck_on = -1
            return True
        if machine.refusal:
            self.answers.append({"unusable": list(machine.refusal)})
            self.has_ended = True
            return True
        if request["do"] == "look":
            self.answers.append({"count": machine.num_gpus})
            wanted = [
                index
                for index in range(machine.num_gpus)
                if index not in request["skip"] and index in request.get("only", range(machine.num_gpus))
            ]
        else:
            self.keys = request["keys"]
            wanted = [int(key.removeprefix("pci")) for key in request["keys"]]
        for index in wanted:
            others = [probe for probe in machine.started if probe is not self and probe.stuck_on == index]
            assert all(probe.is_killed and index not in machine.unkillable for probe in others), "two calls at once"
            if index in machine.hanging:
                self.stuck_on = index
                return True
            if index in machine.crashing:
                self.has_ended = True
                return True
            if request["do"] == "look":
                self.answers.append({"index": index, "target": {"key": f"pci{index}", "labels": labels(index)}})
            else:
                machine.swept.append((machine.now, self.number, index))
                self.answers.append(self.read(index))
        self.answers.append({"end": True})
        return True

    def read(self, index: int) -> dict[str, Any]:
        machine = self.machine
        is_lost = index in machine.lost or index >= machine.num_gpus
        time_ns = machine.time_ns
        if is_lost:
            part = Collection(missing=(Missing("", labels(index), MissingReason.GONE, "lost"),))
        else:
            xids = tuple(Finding("xid", "", (*labels(index), ("xid", str(xid))), time_ns) for xid in machine.xids)
            machine.xids = []
            part = Collection((Reading(GPU + "power_watts", 1.0, labels(index), time_ns),), (), xids)
        return {
            "key": f"pci{index}",
            "parts": {"often": encode(part)},
            "usable": not is_lost,
            "seconds": 0.9 if index in machine.slow else 0.01,
        }

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        answers, self.answers = self.answers, []
        return answers, self.has_ended

    def kill(self) -> None:
        self.is_killed = True

    def is_gone(self) -> bool:
        if self.stuck_on is not None and self.stuck_on in self.machine.unkillable:
            return False
        return self.has_ended or self.is_killed or (self.is_finished and self.stuck_on is None)

    def finish(self) -> None:
        self.is_finished = True


def labels(index: int) -> Labels:
    return labels_of(gpu=index, uuid=f"GPU-{index}")


def test_one_process_reads_all_gpus_once_a_second() -> None:
    machine = Machine(8)
    machine.run(60)
    assert len(machine.started) == 1
    for index in range(8):
        assert 59 <= machine.sweeps_of(index, 0) <= 61
    assert machine.refused() is None
    assert set(machine.reasons().values()) == {None}


def test_a_gpu_that_hangs_stops_the_others_for_no_longer_than_the_deadline() -> None:
    machine = Machine(4)
    machine.run(10)
    machine.hanging = {1}
    machine.run(20)
    assert machine.reasons() == {0: None, 1: MissingReason.TIMED_OUT, 2: None, 3: None}
    times = sorted(when for when, _, index in machine.swept if index == 3)
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= TIMING.deadline + 1.5
    assert machine.sweeps_of(3, 20) >= 8
    assert machine.watch.counts.timed_out == 1
    assert len(machine.started) == 3  # all; the others anew; the hanging one


def test_it_is_tried_again_less_and_less_often_and_read_when_it_is_well() -> None:
    machine = Machine(2)
    machine.run(5)
    machine.hanging = {1}
    machine.run(600)
    tries = machine.watch.counts.timed_out
    assert 6 <= tries <= 12  # 30 s to notice, then 1, 2, 4, ... 64 s of rest
    machine.hanging = set()
    machine.run(100)
    assert machine.reasons() == {0: None, 1: None}


def test_a_process_that_cannot_be_killed_is_left_behind_counted_and_not_joined_by_another() -> None:
    """The fake asserts that no second call is made on a GPU while one is out."""
    machine = Machine(3)
    machine.run(5)
    machine.hanging, machine.unkillable = {2}, {2}
    machine.run(300)
    assert machine.watch.counts.left_behind == 1
    assert machine.reasons()[2] is MissingReason.TIMED_OUT
    assert "cannot be killed" in machine.watch.targets["pci2"].detail
    assert machine.sweeps_of(0, 200) >= 99
    assert len(machine.started) == 2
    machine.hanging, machine.unkillable = set(), set()
    machine.run(100)
    assert machine.watch.counts.left_behind == 0
    assert machine.reasons()[2] is None


def test_bug_nvitop_139_a_process_that_ends_takes_no_other_gpu_with_it() -> None:
    machine = Machine(4)
    machine.run(5)
    machine.crashing = {2}
    machine.run(100)
    assert machine.reasons() == {0: None, 1: None, 2: MissingReason.FAILED, 3: None}
    assert machine.sweeps_of(3, 50) >= 54
    assert 4 <= machine.watch.counts.crashed <= 9
    machine.crashing = set()
    machine.run(70)
    assert machine.reasons()[2] is None


def test_a_lost_gpu_is_asked_again_in_a_process_of_its_own_and_its_values_are_told_no_more() -> None:
    machine = Machine(2)
    machine.run(5)
    machine.lost = {0}
    machine.run(30)
    assert machine.reasons() == {0: MissingReason.GONE, 1: None}
    assert not machine.watch.targets["pci0"].parts
    assert machine.sweeps_of(0, 6) <= 7
    assert all(probe.is_finished for probe in machine.started[1:])  # none is kept for it
    machine.lost = set()
    machine.run(70)
    assert machine.reasons() == {0: None, 1: None}


def test_a_gpu_that_is_well_again_joins_the_others_later_each_time() -> None:
    machine = Machine(2)
    machine.run(5)
    for healthy in (600, 1200):
        machine.lost = {1}
        machine.run(3)
        machine.lost = set()
        machine.run(healthy - 10)
        assert machine.watch.known()[1].state.is_apart
        machine.run(30)
        assert not machine.watch.known()[1].state.is_apart
    assert sum(not probe.is_gone() for probe in machine.started) == 1


def test_a_slow_gpu_gets_a_process_of_its_own_without_a_loss() -> None:
    machine = Machine(3)
    machine.run(5)
    machine.slow = {1}
    machine.run(60)
    assert [known.state.is_apart for known in machine.watch.known()] == [False, True, False]
    assert machine.sweeps_of(1, 5) >= 57
    assert machine.watch.counts.timed_out == 0


def test_a_driver_that_hangs_for_all_is_asked_by_one_process_at_a_time() -> None:
    machine = Machine(2)
    machine.driver_hangs = True
    machine.unkillable = {-1}
    machine.run(400)
    assert len(machine.started) == 1
    assert machine.refused() is MissingReason.TIMED_OUT
    machine.driver_hangs, machine.unkillable = False, set()
    machine.run(100)
    assert machine.refused() is None
    assert machine.reasons() == {0: None, 1: None}


def test_bug_nvidia_gpu_exporter_65_no_driver_at_the_start_is_no_end() -> None:
    machine = Machine(2)
    machine.refusal = ("not_installed", "no driver")
    machine.run(600)
    assert machine.refused() is MissingReason.NOT_INSTALLED
    assert 10 <= len(machine.started) <= 17
    machine.refusal = None
    machine.run(70)
    assert machine.refused() is None
    assert machine.reasons() == {0: None, 1: None}


def test_a_driver_that_is_reloaded_is_asked_by_a_new_process() -> None:
    machine = Machine(2)
    machine.run(5)
    machine.refusal = ("version_mismatch", "reboot")
    machine.run(5)
    assert set(machine.reasons().values()) == {MissingReason.VERSION_MISMATCH}
    machine.refusal = None
    machine.run(10)
    assert set(machine.reasons().values()) == {None}


def test_bug_go_dcgm_38_a_gpu_that_is_counted_no_more_is_missed_and_found_again() -> None:
    machine = Machine(3)
    machine.run(5)
    machine.num_gpus = 2
    machine.run(70)
    assert machine.reasons() == {0: None, 1: None, 2: MissingReason.GONE}
    machine.num_gpus = 3
    machine.run(140)
    assert machine.reasons()[2] is None


def test_a_gpu_that_hangs_from_the_start_is_known_by_its_index_and_hides_no_other() -> None:
    machine = Machine(4)
    machine.hanging = {1}
    machine.run(60)
    assert machine.reasons() == {0: None, 1: MissingReason.TIMED_OUT, 2: None, 3: None}
    assert machine.watch.known()[1].state.labels == (("gpu", "1"),)
    machine.hanging = set()
    machine.run(200)
    assert machine.reasons() == dict.fromkeys(range(4))
    assert [known.state.labels for known in machine.watch.known()] == [labels(index) for index in range(4)]


def test_xids_are_counted_for_ever_and_told_once() -> None:
    machine = Machine(1)
    machine.run(3)
    machine.xids = [94, 94, 79]
    machine.run(3)
    assert [dict(finding.labels)["xid"] for finding in machine.watch.xids.take()] == ["94", "94", "79"]
    counts = {
        dict(reading.labels)["xid"]: reading.value
        for reading in machine.watch.xids.readings()
        if reading.metric == GPU + "xid_errors_total"
    }
    assert counts == {"94": 2, "79": 1}


def test_a_storm_of_findings_that_nobody_takes_is_bounded() -> None:
    machine = Machine(1)
    machine.run(3)
    machine.xids = [92] * 10_000
    machine.run(3)
    assert len(machine.watch.xids.take()) == 4096
    assert machine.watch.counts.findings_dropped == 10_000 - 4096


def test_nonsense_from_a_process_is_a_crash_of_it() -> None:
    machine = Machine(1)
    machine.run(3)
    machine.started[0].answers.append({"key": "pci0", "parts": {"often": {}}, "usable": True, "seconds": 1})
    machine.run(1)
    assert machine.watch.counts.crashed == 1
    machine.run(10)
    assert machine.reasons() == {0: None}


def test_samples_of_a_hanging_gpu_keep_their_time_until_they_are_stale() -> None:
    machine = Machine(1)
    machine.run(5)
    machine.hanging = {0}
    machine.run(20)
    stale_ns = int(TIMING.stale * 1e9)
    (known,) = machine.watch.known()
    told = known.collection(machine.time_ns, stale_ns)
    power = next(reading for reading in told.readings if reading.metric == GPU + "power_watts")
    assert 4e9 <= power.time_ns <= 6e9
    up = next(reading for reading in told.readings if reading.metric == GPU + "up")
    assert (up.value, dict(up.labels)["reason"]) == (0.0, "timed_out")
    assert "it answered last" in told.missing[0].detail
    later = known.collection(machine.time_ns + stale_ns, stale_ns)
    assert [reading.metric for reading in later.readings] == [GPU + "up"]


def test_closing_ends_all_processes_and_kills_those_that_hang_after_the_grace() -> None:
    machine = Machine(2)
    machine.run(5)
    machine.hanging = {1}
    machine.run(8)
    assert not machine.watch.close(machine.now)
    assert machine.watch.close(machine.now + TIMING.grace) or machine.watch.close(machine.now + TIMING.grace + 1)
    assert all(probe.is_gone() for probe in machine.started)


@pytest.mark.parametrize(("name", "value"), [("interval", 0), ("deadline", -1), ("stale", 12)])
def test_times_that_make_no_sense_are_refused_in_one_line(name: str, value: float) -> None:
    with pytest.raises(UsageError) as error:
        Timing(**{name: value})
    assert "\n" not in str(error.value)
