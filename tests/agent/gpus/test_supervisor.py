"""Supervisor: each process failure is attributed to the right GPU and retried in time, never twice at once."""

from __future__ import annotations

import itertools

import pytest

from stepscope.agent.gpus.supervisor import ProbeTiming
from stepscope.core.errors import UsageError
from stepscope.core.hardware.devices import Device
from stepscope.core.metrics.readings import GPU, MissingReason
from tests.agent.gpus.fake_machine import TIMING, Machine, labels


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


def test_bug_omen_space_201_a_process_that_cannot_be_killed_is_left_behind_counted_and_not_joined_by_another() -> None:
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


def test_a_gpu_that_was_lost_for_one_reading_stays_so_until_health_has_looked() -> None:
    """Seen with NVIDIA's own mock of NVML, in which a loss is of one process: the next was answered after a second."""
    machine = Machine(2)
    machine.run(5)
    for _ in range(2):  # read with the others, then in a process of its own
        machine.lost = {1}
        machine.run(1.5)
        machine.lost = set()
        machine.run(8)  # health looks every 5 s
        assert machine.reasons() == {0: None, 1: MissingReason.GONE}
        machine.run(60)
        assert machine.reasons() == {0: None, 1: None}


def test_a_gpu_that_is_well_again_joins_the_others_later_each_time() -> None:
    machine = Machine(2)
    machine.run(5)
    for healthy in (600, 1200):
        machine.lost = {1}
        machine.run(3)
        machine.lost = set()
        machine.run(healthy - 10)
        assert machine.watch.known()[1].is_apart
        machine.run(30)
        assert not machine.watch.known()[1].is_apart
    assert sum(not probe.is_gone() for probe in machine.started) == 1


def test_a_slow_gpu_gets_a_process_of_its_own_without_a_loss() -> None:
    machine = Machine(3)
    machine.run(5)
    machine.slow = {1}
    machine.run(60)
    assert [known.is_apart for known in machine.watch.known()] == [False, True, False]
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


def test_a_driver_that_stops_answering_leaves_no_gpu_up_for_longer_than_two_deadlines() -> None:
    machine = Machine(8)
    machine.run(10)
    machine.driver_hangs = True
    machine.run(2 * TIMING.deadline + 1.5)
    assert set(machine.reasons().values()) == {MissingReason.TIMED_OUT}
    assert machine.refused() is MissingReason.TIMED_OUT
    machine.run(120)
    assert set(machine.reasons().values()) == {MissingReason.TIMED_OUT}
    machine.driver_hangs = False
    machine.run(100)
    assert machine.refused() is None
    assert machine.reasons() == dict.fromkeys(range(8))


def test_no_gpu_is_blamed_where_the_driver_does_not_even_count_them() -> None:
    machine = Machine(4)
    machine.run(59.5)
    machine.driver_hangs = True  # at the look
    machine.run(10)
    assert set(machine.reasons().values()) == {MissingReason.TIMED_OUT}
    assert not any(known.is_apart for known in machine.watch.known())


def test_a_driver_that_takes_long_to_load_is_waited_for_and_said_to_be_silent_meanwhile() -> None:
    machine = Machine(3)
    machine.run(5)
    machine.hanging, machine.driver_loads = {1}, True
    machine.run(TIMING.deadline + 4)
    assert machine.reasons() == {0: None, 1: MissingReason.TIMED_OUT, 2: None}
    machine.run(15)  # less than a new process may take
    assert set(machine.reasons().values()) == {MissingReason.TIMED_OUT}
    assert machine.refused() is MissingReason.TIMED_OUT
    machine.driver_loads = False
    machine.run(2)
    assert machine.reasons() == {0: None, 1: MissingReason.TIMED_OUT, 2: None}
    assert machine.refused() is None
    assert machine.watch.counts.timed_out == 1


def test_it_sleeps_while_a_new_process_is_waited_for() -> None:
    machine = Machine(2)
    machine.run(5)
    machine.driver_hangs = True
    machine.run(20)
    assert machine.watch.step(machine.now, machine.time_ns) > machine.now + 1


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


def test_a_gpu_that_is_counted_no_more_is_missed_also_where_an_old_process_still_reads_it() -> None:
    machine = Machine(3)
    machine.run(5)
    machine.uncounted = {1}
    machine.run(130)
    assert machine.reasons() == {0: None, 1: MissingReason.GONE, 2: None}
    assert machine.sweeps_of(2, 70) >= 58


def test_many_gpus_that_take_their_time_are_not_taken_for_one_that_hangs() -> None:
    machine = Machine(8)
    machine.run(5)
    machine.seconds_an_answer = 3.0  # 24 s a round, 5 s a GPU are allowed
    machine.run(100)
    assert machine.watch.counts.timed_out == 0
    assert machine.sweeps_of(7, 5) >= 3


def test_failures_long_ago_do_not_make_the_next_one_last_longer() -> None:
    machine = Machine(2)
    machine.run(5)
    for _ in range(5):
        machine.refusal = ("version_mismatch", "")
        machine.run(1.5)
        machine.refusal = None
        begin = machine.now
        machine.run(100)
        assert min(when for when, _, _ in machine.swept if when >= begin) <= begin + 2.5


def test_a_gpu_that_hangs_from_the_start_is_known_by_its_index_and_hides_no_other() -> None:
    machine = Machine(4)
    machine.hanging = {1}
    machine.run(60)
    assert machine.reasons() == {0: None, 1: MissingReason.TIMED_OUT, 2: None, 3: None}
    assert machine.watch.known()[1].device == Device(index="1")
    machine.hanging = set()
    machine.run(200)
    assert machine.reasons() == dict.fromkeys(range(4))
    assert [known.device.labels() for known in machine.watch.known()] == [labels(index) for index in range(4)]


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


def test_bug_gpu_monitoring_tools_188_samples_of_a_hanging_gpu_keep_their_time_until_they_are_stale() -> None:
    machine = Machine(1)
    machine.run(5)
    machine.hanging = {0}
    machine.run(20)
    (known,) = machine.watch.known()
    told = known.collection(machine.time_ns, machine.now, TIMING.stale)
    power = next(reading for reading in told.readings if reading.metric == GPU + "power_watts")
    assert 4e9 <= power.time_ns <= 6e9
    up = next(reading for reading in told.readings if reading.metric == GPU + "up")
    assert (up.value, dict(up.labels)["reason"]) == (0.0, "timed_out")
    assert "it answered last" in told.missing[0].detail
    later = known.collection(machine.time_ns, machine.now + TIMING.stale, TIMING.stale)
    assert [reading.metric for reading in later.readings] == [GPU + "up"]


def test_what_nobody_has_read_for_long_is_told_no_more_whatever_the_cause() -> None:
    machine = Machine(1)
    machine.run(5)
    (known,) = machine.watch.known()
    told = known.collection(machine.time_ns, machine.now + TIMING.stale, TIMING.stale)
    assert [(reading.metric, reading.value) for reading in told.readings] == [(GPU + "up", 0.0)]
    assert told.missing[0].reason is MissingReason.TIMED_OUT


@pytest.mark.parametrize("hours", [2, -2])
def test_a_clock_that_is_set_makes_no_reading_older_or_newer(hours: int) -> None:
    machine = Machine(1)
    machine.run(5)
    (known,) = machine.watch.known()
    set_ns = machine.time_ns + hours * 3600 * 10**9
    told = known.collection(set_ns, machine.now, TIMING.stale)
    assert GPU + "power_watts" in [reading.metric for reading in told.readings]
    later = known.collection(set_ns, machine.now + TIMING.stale, TIMING.stale)
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
        ProbeTiming(**{name: value})
    assert "\n" not in str(error.value)


def test_a_process_that_cannot_be_started_is_said_and_tried_again() -> None:
    machine = Machine(2)
    machine.run(5)
    machine.cannot_start = True
    machine.crashing = {1}
    machine.run(100)
    machine.crashing = set()
    assert set(machine.reasons().values()) == {MissingReason.FAILED}
    assert machine.watch.refusal == (
        MissingReason.FAILED,
        "no process can be started to ask the driver (Resource temporarily unavailable)",
    )
    machine.cannot_start = False
    machine.run(70)  # 64 s of rest
    assert machine.refused() is None
    assert machine.reasons() == {0: None, 1: None}
