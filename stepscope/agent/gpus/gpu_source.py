"""Sources of the GPUs' own values and of GPU errors in the kernel log.

Holds also: when the first round of answers is complete, and what is still reported of a GPU that does not answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from stepscope.agent.gpus.probes import GpuProbes
from stepscope.agent.gpus.targets import Snapshot, TargetState
from stepscope.collectors.contradictions import ContradictionWatch
from stepscope.collectors.kernel_log import KernelLog
from stepscope.core.hardware.devices import Device, device_in
from stepscope.core.metrics.agent import AGENT
from stepscope.core.metrics.gpu import GPU, SWITCH
from stepscope.core.metrics.readings import Collection, Finding, Labels, Missing, MissingReason, Reading, with_labels
from stepscope.core.text.numbers import form, number_runs

_log = logging.getLogger(__name__)

_MOST_SAID = 20
"""Lines of one look."""


class GpuSource:
    """The GPUs' newest values. Waits for no driver: `probes` reads them in processes of their own."""

    def __init__(
        self,
        probes: GpuProbes,
        *,
        quiet_seconds: float,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """
        Args:
            probes: read the GPUs.
            quiet_seconds: see `FirstRound`.
            wall_clock_ns: now, ns since the epoch.
        """
        self._probes = probes
        self._first_round = FirstRound(quiet_seconds)
        self._silent = SilentGpus()
        self._wall_clock_ns = wall_clock_ns
        self._contradictions = ContradictionWatch()

    def collect(self) -> Collection:
        """What is known now, what contradicts itself in it, and how the reading processes fare."""
        snapshot, now_ns = self._probes.snapshot(), self._wall_clock_ns()
        _log_findings(self._probes.take_findings())
        silent = {target.labels for target in snapshot.targets if target.reason}
        said = snapshot.collection
        if silent:  # old values repeated prove nothing
            said = Collection(tuple(reading for reading in said.readings if reading.labels not in silent))
        findings = self._contradictions.observe(said, now_ns)
        counts = snapshot.counts
        about = {
            "probe_starts_total": counts.started,
            "probe_timeouts_total": counts.timed_out,
            "probe_crashes_total": counts.crashed,
            "probes_left_behind": counts.left_behind,
            "xids_untold_total": counts.findings_dropped,
        }
        readings = tuple(Reading(AGENT + name, float(count), (), now_ns) for name, count in about.items())
        refusal = next((one.reason for one in snapshot.collection.missing if not one.metric and not one.labels), None)
        waits_for = self._first_round.waits_for(snapshot.targets, refusal)
        missing = (Missing("", (), MissingReason.NOT_YET, waits_for),) if waits_for else ()
        beside = self._silent.observe(snapshot, now_ns)
        of_gpus = self._contradictions.without_silent(snapshot.collection)
        return Collection.joined((of_gpus, beside, Collection(readings, missing, tuple(findings))))


class KernelLogSource:
    """Errors in the kernel log; XIDs are counted for their GPU by `probes`, SXids here."""

    def __init__(self, log: KernelLog, probes: GpuProbes) -> None:
        self._log = log
        self._probes = probes
        self._sxids: dict[Labels, Reading] = {}

    def collect(self) -> Collection:
        """What was logged since the last time, without the XIDs, and the counts of SXids."""
        told = self._log.collect()
        self._probes.note_kernel_log(finding for finding in told.findings if finding.code == "xid")
        others = tuple(finding for finding in told.findings if finding.code != "xid")
        _log_findings(others)
        for finding in others:
            if finding.code == "sxid":
                self._count(finding)
        return Collection(tuple(self._sxids.values()), told.missing, others)

    def _count(self, sxid: Finding) -> None:
        is_fatal = sxid.message.partition(": ")[2].lower().startswith("fatal")
        labels = with_labels(sxid.labels, severity="fatal" if is_fatal else "nonfatal")
        before = self._sxids[labels].value if labels in self._sxids else 0.0
        self._sxids[labels] = Reading(SWITCH + "sxid_errors_total", before + 1.0, labels, sxid.time_ns)


def _log_findings(findings: Sequence[Finding]) -> None:
    """In the log, a storm of them by their number."""
    for finding in findings[:_MOST_SAID]:
        _log.warning("%s: %s", _name_of(finding.labels), finding.message)
    if len(findings) > _MOST_SAID:
        _log.warning("%d more errors came at once; all are counted", len(findings) - _MOST_SAID)


def _name_of(labels: Labels) -> str:
    told = dict(labels)
    if "gpu" in told:
        return f"GPU {told['gpu']} ({told.get('uuid') or told.get('pci_bus_id', '')})"
    return told.get("pci_bus_id", "this machine")


_LONGEST_SECONDS = 60.0
"""GPUs that hang are found one after the other; readiness waits no longer for them."""


class FirstRound:
    """Watches the GPUs from the driver's first answer on. Once it is over, it stays so."""

    def __init__(self, quiet_seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            quiet_seconds: while no GPU has answered, how long nothing must change until no more are expected: longer
                than one that hangs takes to be given up, behind which the others are found.
            clock: seconds, only forward.
        """
        self._quiet_seconds = quiet_seconds
        self._clock = clock
        self._began: float | None = None
        self._targets: tuple[TargetState, ...] = ()
        self._changed = 0.0
        self._is_over = False

    def waits_for(self, targets: Sequence[TargetState], refusal: MissingReason | None) -> str:
        """A line on who is still waited for; empty when it is over, or the driver itself is what does not answer.

        Args:
            targets: the GPUs that are known so far.
            refusal: why no GPU can be asked; None while they can.
        """
        if self._is_over or refusal is not None:
            self._is_over |= refusal not in (None, MissingReason.NOT_YET)
            return ""
        now = self._clock()
        if self._began is None or tuple(targets) != self._targets:
            self._began = now if self._began is None else self._began
            self._targets, self._changed = tuple(targets), now
        waiting = [int(dict(one.labels)["gpu"]) for one in targets if one.reason is None and one.answered_ns is None]
        has_answered = any(one.answered_ns is not None for one in targets)
        is_quiet = now - self._changed >= self._quiet_seconds
        if now - self._began >= _LONGEST_SECONDS or (not waiting and (has_answered or is_quiet)):
            self._is_over = True
            return ""
        if not waiting:
            return "no GPU has answered yet"
        return f"GPU {number_runs(sorted(waiting), dash='-')} {form(len(waiting), 'has', 'have')} not answered yet"


_INFO = GPU + "info"
_ALWAYS_TOLD = (GPU + "xid_", GPU + "up")
_SILENT_NS = 15 * 10**9
"""Since the last answer: sooner than the first values are too old, also where the whole driver hangs and nobody says so
of its GPUs."""


@dataclass(frozen=True, slots=True)
class _LastValues:
    """What a GPU told while it answered.

    Attributes:
        facts: labels that say which GPU it is; None where it never told.
        values: metrics, each with the GPU or MIG instance that it was of.
    """

    facts: Labels | None
    values: frozenset[tuple[str, Device]]


class SilentGpus:
    """Remembers what each GPU told last: its serial number is asked for when it must be exchanged."""

    def __init__(self) -> None:
        self._before: tuple[Reading, ...] = ()
        self._told: dict[Labels, _LastValues] = {}

    def observe(self, snapshot: Snapshot, now_ns: int) -> Collection:
        """What is to be told beside a snapshot: facts with the time of the last answer, and values that are too old."""
        readings = snapshot.collection.readings
        silent = [one for one in snapshot.targets if _is_silent(one, now_ns)]
        self._told = {
            one.labels: self._told.get(one.labels) or _values_of(one, (*self._before, *readings)) for one in silent
        }
        self._before = readings
        return Collection.joined(_lost_values(one, self._told[one.labels], readings) for one in silent)


def _is_silent(target: TargetState, now_ns: int) -> bool:
    if target.answered_ns is None:
        return False
    return target.reason is not None or now_ns - target.answered_ns > _SILENT_NS


def _values_of(target: TargetState, readings: Iterable[Reading]) -> _LastValues:
    facts, values = None, set()
    for reading in _readings_of(target, readings):
        if reading.metric == _INFO:
            facts = reading.labels
        elif not reading.metric.startswith(_ALWAYS_TOLD):
            values.add((reading.metric, device_in(dict(reading.labels))))
    return _LastValues(facts, frozenset(values))


def _lost_values(target: TargetState, told: _LastValues, readings: Iterable[Reading]) -> Collection:
    assert target.answered_ns is not None
    now = _values_of(target, readings)
    facts = () if told.facts is None or now.facts else (Reading(_INFO, 1.0, told.facts, target.answered_ns),)
    lost, reason = sorted(told.values - now.values), target.reason or MissingReason.TIMED_OUT
    return Collection(facts, tuple(Missing(metric, device.labels(), reason) for metric, device in lost))


def _readings_of(target: TargetState, readings: Iterable[Reading]) -> Iterator[Reading]:
    """A GPU's own, and those of its MIG instances."""
    index = ("gpu", dict(target.labels)["gpu"])
    for one in readings:
        if one.metric.startswith(GPU) and index in one.labels:
            device = device_in(dict(one.labels))
            if device.instance or device.labels() == target.labels:
                yield one
