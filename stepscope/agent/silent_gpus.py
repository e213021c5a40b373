"""What is still told of a GPU that does not answer? Which it is, since when, and what is not known of it any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stepscope.agent.isolation import Snapshot, TargetState
from stepscope.core.gpu_metrics import GPU
from stepscope.core.jobs import device_of
from stepscope.core.readings import Collection, Labels, Missing, MissingReason, Reading

_INFO = GPU + "info"
_ALWAYS_TOLD = (GPU + "xid_", GPU + "up")
_SILENT_NS = 15 * 10**9
"""Since the last answer: sooner than the first values are too old, also where the whole driver hangs and nobody says so
of its GPUs."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What a GPU told while it answered.

    Attributes:
        facts: labels that say which GPU it is; None where it never told.
        values: metrics, each with the GPU or MIG instance that it was of.
    """

    facts: Labels | None
    values: frozenset[tuple[str, Labels]]


class SilentGpus:
    """Remembers what each GPU told last: its serial number is asked for when it must be exchanged."""

    def __init__(self) -> None:
        self._before: tuple[Reading, ...] = ()
        self._told: dict[Labels, _Told] = {}

    def observe(self, snapshot: Snapshot, now_ns: int) -> Collection:
        """What is to be told beside a snapshot: facts with the time of the last answer, and values that are too old."""
        readings = snapshot.collection.readings
        silent = [one for one in snapshot.targets if _is_silent(one, now_ns)]
        self._told = {
            one.labels: self._told.get(one.labels) or _told_of(one, (*self._before, *readings)) for one in silent
        }
        self._before = readings
        return Collection.joined(_beside(one, self._told[one.labels], readings) for one in silent)


def _is_silent(target: TargetState, now_ns: int) -> bool:
    if target.answered_ns is None:
        return False
    return target.reason is not None or now_ns - target.answered_ns > _SILENT_NS


def _told_of(target: TargetState, readings: Iterable[Reading]) -> _Told:
    facts, values = None, set()
    for reading in _of(target, readings):
        if reading.metric == _INFO:
            facts = reading.labels
        elif not reading.metric.startswith(_ALWAYS_TOLD):
            values.add((reading.metric, device_of(reading.labels)))
    return _Told(facts, frozenset(values))


def _beside(target: TargetState, told: _Told, readings: Iterable[Reading]) -> Collection:
    assert target.answered_ns is not None
    now = _told_of(target, readings)
    facts = () if told.facts is None or now.facts else (Reading(_INFO, 1.0, told.facts, target.answered_ns),)
    lost, reason = sorted(told.values - now.values), target.reason or MissingReason.TIMED_OUT
    return Collection(facts, tuple(Missing(metric, labels, reason) for metric, labels in lost))


def _of(target: TargetState, readings: Iterable[Reading]) -> Iterator[Reading]:
    """A GPU's own, and those of its MIG instances."""
    index = ("gpu", dict(target.labels)["gpu"])
    for one in readings:
        if one.metric.startswith(GPU) and index in one.labels:
            device = device_of(one.labels)
            if device == target.labels or any(name == "gpu_instance" for name, _ in device):
                yield one
