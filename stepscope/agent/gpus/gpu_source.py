"""Sources of the GPUs' readings and of GPU errors in the kernel log, and the GPU indices of other sources.

`FirstGpuRound` decides when every GPU has answered or was given up, `SilentGpus` what is reported of a GPU that stopped
answering. The first source that knows a GPU gives it its index, a `RenumberedSource` takes it over. Until the first
source has answered, or was given up, it waits. An index is remembered while the first source is silent, and is given to
no other GPU.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepscope.agent.gpus.probes import GpuProbes
from stepscope.agent.gpus.targets import ProbeSnapshot, ProbeTarget, XidCount
from stepscope.agent.polling import SourceState
from stepscope.collectors.contradictions import ContradictionWatch
from stepscope.collectors.kernel_log import KernelLog
from stepscope.core.hardware.devices import Device, device_in, device_of
from stepscope.core.metrics.agent import AGENT
from stepscope.core.metrics.gpu import SWITCH
from stepscope.core.metrics.readings import (
    GPU,
    Collection,
    Finding,
    Labels,
    Missing,
    MissingReason,
    Reading,
    with_labels,
)
from stepscope.core.text.numbers import form, number_runs

_log = logging.getLogger(__name__)

_MAX_LOG_LINES = 20
"""Of the findings of one collection."""


class GpuSource:
    """The agent's source of GPU readings. Never blocks: `probes` reads them in processes of their own."""

    def __init__(
        self, probes: GpuProbes, *, quiet_seconds: float, wall_clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._probes = probes
        self._first_round = FirstGpuRound(quiet_seconds)
        self._silent = SilentGpus()
        self._wall_clock_ns = wall_clock_ns
        self._contradictions = ContradictionWatch()

    def collect(self) -> Collection:
        """The newest readings, contradictions in them, and counts of the probe processes."""
        snapshot, now_ns = self._probes.snapshot(), self._wall_clock_ns()
        _log_findings(self._probes.take_findings())
        silent = {target.device.labels() for target in snapshot.targets if target.reason}
        answered = snapshot.collection
        if silent:  # old values repeated prove nothing
            answered = Collection(tuple(reading for reading in answered.readings if reading.labels not in silent))
        findings = self._contradictions.observe(answered, now_ns)
        counts = snapshot.counts
        by_name = {
            "probe_starts_total": counts.started,
            "probe_timeouts_total": counts.timed_out,
            "probe_crashes_total": counts.crashed,
            "probes_left_behind": counts.left_behind,
            "xids_untold_total": counts.findings_dropped,
        }
        readings = tuple(Reading(AGENT + name, float(count), (), now_ns) for name, count in by_name.items())
        refusal = next((one.reason for one in snapshot.collection.missing if not one.metric and not one.labels), None)
        waits_for = self._first_round.waits_for(snapshot.targets, refusal)
        missing = (Missing("", (), MissingReason.NOT_YET, waits_for),) if waits_for else ()
        beside = self._silent.observe(snapshot, now_ns)
        of_gpus = self._contradictions.without_silent(snapshot.collection)
        return Collection.joined((of_gpus, beside, Collection(readings, missing, tuple(findings))))


_NAMING_SECONDS = 20.0
"""Time after the start in which errors wait until their GPU is known by its UUID."""
_LOCK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class KernelLogState:
    """What the errors in the kernel log have been counted to, for an agent that is restarted.

    Attributes:
        position: record up to which they are counted; None: not known.
        sxids: counts of the NVSwitches' errors.
        xids: counts of the GPUs' errors, also those that NVML reported.
        places: GPUs by their PCI bus id.
    """

    position: int | None = None
    sxids: tuple[Reading, ...] = ()
    xids: tuple[XidCount, ...] = ()
    places: Mapping[str, Device] = field(default_factory=dict)


class KernelLogSource:
    """The agent's source of GPU errors in the kernel log: `probes` counts XIDs for their GPU, SXids count here."""

    def __init__(
        self, log: KernelLog, probes: GpuProbes, *, monotonic_clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._probes = probes
        self._clock = monotonic_clock
        self._lock = threading.Lock()
        self._sxids: dict[Labels, Reading] = {}
        self._position: int | None = None
        self._held: list[Finding] = []
        self._is_before_start = False
        self._naming_until = 0.0

    def collect(self) -> Collection:
        """Errors since the last collection, without the XIDs, and the counts of SXids."""
        with self._lock:
            others = self._count_held()
            missing: tuple[Missing, ...] = ()
            if not self._held:
                logged = self._log.collect()
                self._held, missing = list(logged.findings), logged.missing
                others += self._count_held()
        _log_findings(others)
        return Collection(tuple(self._sxids.values()), missing, others)

    def resume(self, state: KernelLogState | None, *, is_same_boot: bool) -> None:
        """Go on where an earlier agent ended, or begin with what the kernel logs from now on; before the first round.

        Args:
            state: what that agent had counted; None: it is not known.
            is_same_boot: it ran since the kernel was booted; otherwise all that this boot logged is new.
        """
        with self._lock:
            self._position = None if state is None else state.position if is_same_boot else -1
            self._held = self._log.resume(self._position)
            if state is not None and is_same_boot:
                self._sxids = {one.labels: one for one in state.sxids}
                has_position = state.position is not None and self._log.position is not None
                resumed = frozenset({"kernel_log"} if has_position else ())
                self._probes.restore(state.xids, state.places, resumed)
            self._is_before_start, self._naming_until = True, self._clock() + _NAMING_SECONDS
            if not self._held:
                self._count_held()

    def state(self) -> KernelLogState | None:
        """What is counted now; None if that cannot be said at once."""
        if not self._lock.acquire(timeout=_LOCK_SECONDS):
            return None
        try:
            sxids, xids = tuple(self._sxids.values()), tuple(self._probes.saved_xids())
            return KernelLogState(self._position, sxids, xids, self._probes.places())
        finally:
            self._lock.release()

    def _count_held(self) -> tuple[Finding, ...]:
        """Count the errors that were read, once their GPUs are known; those that are not XIDs."""
        xids = [finding for finding in self._held if finding.code == "xid"]
        if xids and self._clock() < self._naming_until and not self._probes.has_no_driver():
            known = self._probes.places()
            if any(dict(finding.labels).get("pci_bus_id") not in known for finding in xids):
                return ()
        self._probes.note_kernel_log(xids, is_before_start=self._is_before_start)
        others = tuple(finding for finding in self._held if finding.code != "xid")
        for finding in others:
            if finding.code == "sxid":
                self._count(finding)
        self._held, self._is_before_start, self._position = [], False, self._log.position
        return others

    def _count(self, sxid: Finding) -> None:
        is_fatal = sxid.message.partition(": ")[2].lower().startswith("fatal")
        labels = with_labels(sxid.labels, severity="fatal" if is_fatal else "nonfatal")
        before = self._sxids[labels].value if labels in self._sxids else 0.0
        self._sxids[labels] = Reading(SWITCH + "sxid_errors_total", before + 1.0, labels, sxid.time_ns)


def _log_findings(findings: Sequence[Finding]) -> None:
    for finding in findings[:_MAX_LOG_LINES]:
        _log.warning("%s: %s", _name_of(finding.labels), finding.message)
    if len(findings) > _MAX_LOG_LINES:
        _log.warning("%d more errors came at once; all are counted", len(findings) - _MAX_LOG_LINES)


def _name_of(labels: Labels) -> str:
    device = device_in(dict(labels))
    return str(device) if device.index else device.pci_bus_id or "this machine"


_MAX_FIRST_ROUND_SECONDS = 60.0
"""GPUs that hang are found one after the other; readiness waits no longer for them."""


class FirstGpuRound:
    """First round of answers of the GPU probes, from the driver's first answer on. Once it is over, it stays so.

    Args:
        quiet_seconds: without any answer, the round is over when nothing has changed for so long: longer than it takes
            to give up a GPU that hangs, behind which the others are found.
    """

    def __init__(self, quiet_seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet_seconds = quiet_seconds
        self._clock = clock
        self._began: float | None = None
        self._targets: tuple[ProbeTarget, ...] = ()
        self._changed = 0.0
        self._is_over = False

    def waits_for(self, targets: Sequence[ProbeTarget], refusal: MissingReason | None) -> str:
        """One line on the GPUs that have not answered; empty when the round is over or the driver does not answer.

        Args:
            refusal: why no GPU can be asked; None while they can.
        """
        if self._is_over or refusal is not None:
            self._is_over |= refusal not in (None, MissingReason.NOT_YET)
            return ""
        now = self._clock()
        if self._began is None or tuple(targets) != self._targets:
            self._began = now if self._began is None else self._began
            self._targets, self._changed = tuple(targets), now
        waiting = [int(one.device.index) for one in targets if one.reason is None and one.answered_ns is None]
        has_answered = any(one.answered_ns is not None for one in targets)
        is_quiet = now - self._changed >= self._quiet_seconds
        if now - self._began >= _MAX_FIRST_ROUND_SECONDS or (not waiting and (has_answered or is_quiet)):
            self._is_over = True
            return ""
        if not waiting:
            return "no GPU has answered yet"
        return f"GPU {number_runs(sorted(waiting), dash='-')} {form(len(waiting), 'has', 'have')} not answered yet"


_INFO = GPU + "info"
_NOT_FROM_GPU = (GPU + "xid_", GPU + "up")
_SILENT_NS = 15 * 10**9
"""Since the last answer: before the first values are too old, also where the whole driver hangs and no reason is known
for its GPUs."""


@dataclass(frozen=True, slots=True)
class _LastValues:
    """What a GPU reported while it answered.

    Attributes:
        facts: labels of its info metric; None if it never had one.
        values: metrics, each with the GPU or MIG instance that it was of.
    """

    facts: Labels | None
    values: frozenset[tuple[str, Device]]


class SilentGpus:
    """The last report of each GPU that no longer answers its probe: its serial number is needed for its replacement."""

    def __init__(self) -> None:
        self._before: Sequence[Reading] = ()
        self._last: dict[Device, _LastValues] = {}

    def observe(self, snapshot: ProbeSnapshot, now_ns: int) -> Collection:
        """Facts of silent GPUs with the time of the last answer, and their values that are too old as missing."""
        readings = snapshot.collection.readings
        silent = [one for one in snapshot.targets if _is_silent(one, now_ns)]
        self._last = {
            one.device: self._last.get(one.device) or _values_of(one, (*self._before, *readings)) for one in silent
        }
        self._before = readings
        return Collection.joined(_lost_values(one, self._last[one.device], readings) for one in silent)


def _is_silent(target: ProbeTarget, now_ns: int) -> bool:
    if target.answered_ns is None:
        return False
    return target.reason is not None or now_ns - target.answered_ns > _SILENT_NS


def _values_of(target: ProbeTarget, readings: Iterable[Reading]) -> _LastValues:
    facts, values = None, set()
    for reading in _readings_of(target, readings):
        if reading.metric == _INFO:
            facts = reading.labels
        elif not reading.metric.startswith(_NOT_FROM_GPU):
            values.add((reading.metric, device_in(dict(reading.labels))))
    return _LastValues(facts, frozenset(values))


def _lost_values(target: ProbeTarget, last: _LastValues, readings: Iterable[Reading]) -> Collection:
    assert target.answered_ns is not None
    now = _values_of(target, readings)
    facts = () if last.facts is None or now.facts else (Reading(_INFO, 1.0, last.facts, target.answered_ns),)
    lost, reason = sorted(last.values - now.values), target.reason or MissingReason.TIMED_OUT
    return Collection(facts, tuple(Missing(metric, device.labels(), reason) for metric, device in lost))


def _readings_of(target: ProbeTarget, readings: Iterable[Reading]) -> Iterator[Reading]:
    """Readings of a GPU and of its MIG instances."""
    index = ("gpu", target.device.index)
    for one in readings:
        if one.metric.startswith(GPU) and index in one.labels:
            device = device_in(dict(one.labels))
            if device.instance or device == target.device:
                yield one


_UP = GPU + "up"
_Indices = dict[str, str]
"""By UUID of the GPU."""


class RenumberedSource:
    """The agent's source of GPUs whose label `gpu` is as a source before it has it, joined by `uuid`.

    Args:
        state: state of the source, now.
        first: state of the source whose indices count.
    """

    def __init__(self, state: Callable[[], SourceState], first: Callable[[], SourceState]) -> None:
        self._state, self._first = state, first
        self._known: _Indices = {}
        self._latest: tuple[Collection, Collection, Collection] | None = None

    def state(self) -> SourceState:
        """The state now; its collection is the same object until one of the sources collects again. Thread-safe."""
        state, of_first = self._state(), self._first()
        if of_first.reason is MissingReason.NOT_YET and not self._known and state.collection.readings:
            return SourceState(state.name, reason=MissingReason.NOT_YET, detail=f"{of_first.name} has not answered yet")
        first, latest = of_first.collection, self._latest
        if latest is None or latest[0] is not state.collection or latest[1] is not first:
            self._known = {**self._known, **_indices(first)}
            latest = self._latest = state.collection, first, _renumbered(state.collection, self._known)
        return replace(state, collection=latest[2])


def _indices(collection: Collection) -> _Indices:
    gpus = (device_of(reading.labels) for reading in collection.readings if reading.metric == _UP)
    return {gpu.uuid: gpu.index for gpu in gpus if gpu and gpu.uuid and gpu.index and not gpu.instance}


def _with_unknown(indices: _Indices, own: _Indices) -> _Indices:
    """Also GPUs that the first source does not know: their own index, or a free one if another GPU has it."""
    given = dict(indices)
    for uuid in sorted(own.keys() - indices.keys()):
        taken = set(given.values())
        free = (str(index) for index in itertools.count(len(given)) if str(index) not in taken)
        given[uuid] = own[uuid] if own[uuid] not in taken else next(free)
    return given


def _renumbered(collection: Collection, known: _Indices) -> Collection:
    own = _indices(collection)
    indices = _with_unknown(known, own)
    if all(indices[uuid] == index for uuid, index in own.items()):
        return collection
    renumbered: dict[Labels, Labels] = {}

    def labels(old: Labels) -> Labels:
        if old not in renumbered:
            by_name = dict(old)
            index = indices.get(by_name.get("uuid", ""))
            renumbered[old] = old if index is None or "gpu" not in by_name else with_labels(old, gpu=index)
        return renumbered[old]

    return Collection(
        tuple([replace(one, labels=labels(one.labels)) for one in collection.readings]),
        tuple([replace(one, labels=labels(one.labels)) for one in collection.missing]),
        tuple([replace(one, labels=labels(one.labels)) for one in collection.findings]),
    )
