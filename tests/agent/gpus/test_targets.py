"""State of a silent GPU stays correct after the clock was set back."""

from __future__ import annotations

from stepscope.agent.gpus.targets import ProbeTarget
from stepscope.core.hardware.devices import device_in
from stepscope.core.metrics.readings import GPU, Collection, MissingReason, Reading, labels_of

_SECOND = 1_000_000_000
_LABELS = labels_of(gpu="0", uuid="GPU-0")


def test_the_clock_that_is_set_makes_nothing_old_and_no_age_negative() -> None:
    power = Reading(GPU + "power_watts", 300.0, _LABELS, 100 * _SECOND)
    known = ProbeTarget(device_in(dict(_LABELS)), MissingReason.TIMED_OUT, "hangs", 100 * _SECOND, 0.1)
    known.parts = {"fast": (Collection((power,)), 50.0)}
    told = known.collection(40 * _SECOND, 52.0, 60.0)
    assert power in told.readings
    assert told.missing[0].detail == "hangs; it answered last 0 s ago"
    assert power in known.collection(4000 * _SECOND, 52.0, 60.0).readings
    assert power not in known.collection(40 * _SECOND, 111.0, 60.0).readings
