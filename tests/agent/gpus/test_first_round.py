"""First round of the GPU source: ready once each GPU has answered or timed out, in bounded time."""

from __future__ import annotations

from stepscope.agent.gpus.gpu_source import FirstGpuRound
from stepscope.agent.gpus.targets import ProbeTarget
from stepscope.core.hardware.devices import Device
from stepscope.core.metrics.readings import MissingReason


def gpu(index: int, *, answered: bool = False, hangs: bool = False) -> ProbeTarget:
    reason = MissingReason.TIMED_OUT if hangs else None
    return ProbeTarget(Device(index=str(index)), reason, "", 1 if answered else None, None, is_apart=hangs)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_gpus_that_have_not_answered_are_waited_for_by_name() -> None:
    first = FirstGpuRound(8.0)
    assert first.waits_for((), MissingReason.NOT_YET) == ""  # the driver's own reason says it
    assert first.waits_for((), None) == "no GPU has answered yet"
    assert first.waits_for((gpu(0), gpu(1)), None) == "GPU 0-1 have not answered yet"
    assert first.waits_for((gpu(0, answered=True), gpu(1), gpu(2, hangs=True)), None) == "GPU 1 has not answered yet"
    assert first.waits_for((gpu(0, answered=True), gpu(1, answered=True), gpu(2, hangs=True)), None) == ""
    assert first.waits_for((gpu(0, answered=True), gpu(3)), None) == "", "one that comes later is not waited for"


def test_behind_a_first_gpu_that_hangs_others_are_expected_for_a_while() -> None:
    clock = Clock()
    first = FirstGpuRound(8.0, clock=clock)
    first.waits_for((), None)
    clock.now += 5.0
    assert first.waits_for((gpu(0, hangs=True),), None)
    clock.now += 7.0
    assert first.waits_for((gpu(0, hangs=True),), None)
    clock.now += 1.0
    assert not first.waits_for((gpu(0, hangs=True),), None)


def test_it_ends_whatever_gpus_do() -> None:
    clock = Clock()
    first = FirstGpuRound(8.0, clock=clock)
    assert first.waits_for((gpu(0),), None)
    clock.now += 59.0
    assert first.waits_for((gpu(0),), None)
    clock.now += 1.0
    assert not first.waits_for((gpu(0),), None)


def test_a_driver_that_was_given_up_is_waited_for_no_more() -> None:
    first = FirstGpuRound(8.0)
    assert first.waits_for((), MissingReason.TIMED_OUT) == ""
    assert first.waits_for((gpu(0),), None) == ""
