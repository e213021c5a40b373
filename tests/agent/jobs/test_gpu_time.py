"""GPU time: each device-second belongs to one state and one owner, and none is counted twice."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.agent.jobs.gpu_time import ENDED_SECONDS, GAP_SECONDS, DeviceSample, GpuTimeCounter, JobActivity, JobKey
from stepscope.core.documents.jobs import JobKind, UseState
from stepscope.core.hardware.devices import Device

_DEVICES = (
    Device("GPU-0", "0"),
    Device("MIG-1", "1", "1", profile="1g.10gb"),
    Device("GPU-1", "1", "2"),
)
_JOBS: tuple[JobKey, ...] = tuple((JobKind.SLURM, str(number)) for number in range(3))
_WITHOUT_JOB = (UseState.FREE, UseState.UNATTRIBUTED, UseState.UNKNOWN)

_held = st.lists(
    st.builds(JobActivity, st.sampled_from(_JOBS), st.sampled_from((True, False, None))),
    max_size=3,
    unique_by=lambda one: one.job,
)


def _seen(device: Device) -> st.SearchStrategy[DeviceSample]:
    held = st.builds(
        lambda held, state: DeviceSample(device, tuple(held), state), _held, st.sampled_from((None, UseState.UNKNOWN))
    )
    return held | st.sampled_from(_WITHOUT_JOB).map(lambda state: DeviceSample(device, (), state))


_rounds = st.lists(
    st.tuples(st.floats(0.0, 2 * GAP_SECONDS, allow_nan=False), st.tuples(*(_seen(device) for device in _DEVICES))),
    min_size=1,
    max_size=40,
)


@given(_rounds)
def test_states_add_up_to_wall_time_times_devices(rounds: Sequence[tuple[float, tuple[DeviceSample, ...]]]) -> None:
    ledger, now, begin = GpuTimeCounter(100.0), 0.0, None
    before: dict[tuple[Device, UseState], float] = {}
    for step, seen in rounds:
        now += step
        begin = now if begin is None else begin
        ledger.observe(seen, now)
        after = ledger.device_seconds()
        assert all(after[key] >= value for key, value in before.items())  # counters only rise
        before = after
        assert sum(after.values()) + ledger.open_seconds() == pytest.approx((now - begin) * len(_DEVICES))
        assert set(ledger.states()) == set(_DEVICES)


@given(_rounds)
def test_jobs_and_nobody_together_have_what_the_devices_have(
    rounds: Sequence[tuple[float, tuple[DeviceSample, ...]]],
) -> None:
    ledger, now = GpuTimeCounter(100.0), 0.0
    nobodys = 0.0
    has_begun = False
    for step, seen in rounds:
        now += step
        ledger.observe(seen, now)
        nobodys += step * sum(not one.holders for one in seen) if has_begun else 0.0
        has_begun = True
    if now < ENDED_SECONDS:  # no job was forgotten
        total = sum(ledger.device_seconds().values())
        assert sum(ledger.job_seconds().values()) + nobodys == pytest.approx(total)


def _run(ledger: GpuTimeCounter, begin: float, ran: Sequence[bool | None], step: float = 10.0) -> float:
    now = begin
    for one in ran:
        now += step
        ledger.observe([DeviceSample(_DEVICES[0], (JobActivity(_JOBS[0], one),))], now)
    return now


def _of_job(ledger: GpuTimeCounter) -> dict[UseState, float]:
    return {state: seconds for (_, _, state), seconds in ledger.job_seconds().items()}


def test_a_short_rest_is_part_of_the_work_and_a_long_one_is_idle_from_its_begin() -> None:
    ledger = GpuTimeCounter(100.0)
    ledger.observe([], 0.0)
    now = _run(ledger, 0.0, [True, *[False] * 9, True])
    assert _of_job(ledger) == {UseState.BUSY: 110}
    now = _run(ledger, now, [False] * 9)
    assert ledger.states() == {_DEVICES[0]: UseState.BUSY}
    assert _of_job(ledger) == {UseState.BUSY: 110}
    now = _run(ledger, now, [False])
    assert ledger.states() == {_DEVICES[0]: UseState.HELD_BUT_IDLE}
    assert _of_job(ledger) == {UseState.BUSY: 110, UseState.HELD_BUT_IDLE: 100}
    _run(ledger, now, [False, True])
    assert _of_job(ledger) == {UseState.BUSY: 120, UseState.HELD_BUT_IDLE: 110}


def test_a_job_that_has_run_no_kernel_yet_is_not_busy_and_not_idle_for_so_long() -> None:
    ledger = GpuTimeCounter(100.0)
    now = _run(ledger, 0.0, [False] * 9)
    assert ledger.states() == {_DEVICES[0]: UseState.UNKNOWN}
    assert _of_job(ledger) == {}
    now = _run(ledger, now, [False, False])
    assert ledger.states() == {_DEVICES[0]: UseState.HELD_BUT_IDLE}
    now = _run(ledger, now, [True, False])
    assert ledger.states() == {_DEVICES[0]: UseState.BUSY}


@pytest.mark.parametrize(("has_run", "state"), [(True, UseState.BUSY), (False, UseState.HELD_BUT_IDLE)])
def test_a_job_that_ends_while_it_rests_was_idle_if_it_never_worked(has_run: bool, state: UseState) -> None:
    ledger = GpuTimeCounter(100.0)
    now = _run(ledger, 0.0, [has_run, False, False])
    ledger.observe([DeviceSample(_DEVICES[0])], now)
    assert _of_job(ledger).get(state, 0.0) == 20
    assert sum(_of_job(ledger).values()) == 20


def test_what_is_not_known_ends_no_rest() -> None:
    ledger = GpuTimeCounter(100.0)
    _run(ledger, 0.0, [False, *[False] * 5, None, *[False] * 5])
    assert _of_job(ledger) == {UseState.UNKNOWN: 10, UseState.HELD_BUT_IDLE: 100}


def test_a_while_in_which_nobody_looked_is_not_known() -> None:
    ledger = GpuTimeCounter(100.0)
    _run(ledger, 0.0, [True, True])
    _run(ledger, 20.0, [True], step=3600.0)
    assert _of_job(ledger) == {UseState.BUSY: 10, UseState.UNKNOWN: 3600}


def test_a_shared_second_is_split_and_each_part_has_its_jobs_state() -> None:
    ledger = GpuTimeCounter(10.0)
    for now in (0.0, 10.0, 20.0):
        ledger.observe([DeviceSample(_DEVICES[0], (JobActivity(_JOBS[0], True), JobActivity(_JOBS[1], False)))], now)
    assert ledger.device_seconds() == {
        (_DEVICES[0], UseState.BUSY): 10,
        (_DEVICES[0], UseState.HELD_BUT_IDLE): 10,
    }
    assert ledger.states() == {_DEVICES[0]: UseState.BUSY}


def test_mig_time_is_no_gpu_time() -> None:
    ledger = GpuTimeCounter(10.0)
    for now in (0.0, 10.0):
        ledger.observe([DeviceSample(device, (JobActivity(_JOBS[0], True),)) for device in _DEVICES], now)
    assert {profile: seconds for (_, profile, _), seconds in ledger.job_seconds().items()} == {
        "": 10,
        "1g.10gb": 10,
        "unknown": 10,
    }


def test_jobs_do_not_pile_up() -> None:
    """NVIDIA/dcgm-exporter#574, and 22 of the bug log: caches without bound."""
    ledger = GpuTimeCounter(10.0)
    for number in range(3000):
        ledger.observe([DeviceSample(_DEVICES[0], (JobActivity((JobKind.SLURM, str(number)), True),))], number * 0.01)
    assert len({job for job, _, _ in ledger.job_seconds()}) <= 1001
    ledger.observe([DeviceSample(_DEVICES[0])], 1000.0)
    ledger.observe([DeviceSample(_DEVICES[0])], 1000.0 + ENDED_SECONDS)
    assert not ledger.job_seconds()
    assert ledger.open_seconds() == 0
