"""Supervisor under any order of GPU failures: other GPUs are read, requests never overlap, and all recovers.

The fake asserts that no call is made on a GPU while one is out, and no request while one is open.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.agent.gpus.supervisor import ProbeTiming
from tests.agent.gpus.fake_machine import Machine

NUM_GPUS = 3
TIMING = ProbeTiming(
    interval=1, deadline=5, start_deadline=10, look=20, first_retry=1, last_retry=8, healthy=30, slow=0.5, grace=3
)
FAULTS = ("hanging", "crashing", "lost", "slow")

events = st.lists(
    st.tuples(
        st.sampled_from((*FAULTS, "unkillable", "refused", "driver_hangs", "fewer", "mend", "mend_all")),
        st.integers(0, NUM_GPUS - 1),
        st.sampled_from((0.25, 1.0, 4.0, 7.0, 30.0)),
    ),
    max_size=12,
)


def happen(machine: Machine, event: str, gpu: int) -> None:
    if event in FAULTS:
        getattr(machine, event).add(gpu)
    elif event == "unkillable":
        machine.unkillable.add(gpu)
        machine.hanging.add(gpu)
    elif event == "refused":
        machine.refusal = ("not_installed", "")
    elif event == "driver_hangs":
        machine.driver_hangs = True
    elif event == "fewer":
        machine.num_gpus = NUM_GPUS - 1
    elif event == "mend":
        for fault in (*FAULTS, "unkillable"):
            getattr(machine, fault).discard(gpu)
    else:
        mend_all(machine)


def mend_all(machine: Machine) -> None:
    for fault in (*FAULTS, "unkillable"):
        getattr(machine, fault).clear()
    machine.refusal, machine.driver_hangs, machine.num_gpus = None, False, NUM_GPUS


@settings(max_examples=150)
@given(events)
def test_all_is_well_in_the_end_and_one_process_is_left(history: list[tuple[str, int, float]]) -> None:
    machine = Machine(NUM_GPUS, TIMING)
    for event, gpu, seconds in history:
        happen(machine, event, gpu)
        machine.run(seconds)
    mend_all(machine)
    machine.run(150)
    assert machine.refused() is None
    assert machine.reasons() == dict.fromkeys(range(NUM_GPUS))
    assert len(machine.watch.known()) == NUM_GPUS
    since = machine.now
    machine.run(10)
    assert all(9 <= machine.sweeps_of(gpu, since) <= 11 for gpu in range(NUM_GPUS))
    assert machine.watch.counts.left_behind == 0
    machine.watch.close(machine.now)
    assert machine.watch.close(machine.now + TIMING.grace + 1)
    assert all(probe.is_gone() for probe in machine.started)


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from((*FAULTS, "unkillable", "mend")), st.integers(1, NUM_GPUS - 1)), max_size=12))
def test_a_gpu_that_is_well_is_read_whatever_the_others_do(history: list[tuple[str, int]]) -> None:
    """Each new fault may hold it up by the deadline, once."""
    machine = Machine(NUM_GPUS, TIMING)
    machine.run(5)
    for event, gpu in history:
        since, timed_out = machine.now, machine.watch.counts.timed_out
        happen(machine, event, gpu)
        machine.run(20)
        late = machine.watch.counts.timed_out - timed_out
        assert machine.sweeps_of(0, since) >= 18 - 6 * min(late, 1) * 2, event
        assert machine.reasons()[0] is None
