"""What do the GPUs say, by their driver and by the kernel log? XIDs and SXids are logged, each once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from stepscope.agent.first_round import FirstRound
from stepscope.agent.isolation import GpuProbes
from stepscope.agent.silent_gpus import SilentGpus
from stepscope.collectors.contradictions import Contradictions
from stepscope.collectors.kernel_log import KernelLog
from stepscope.core.agent_metrics import AGENT
from stepscope.core.fabric_metrics import SWITCH
from stepscope.core.readings import Collection, Finding, Labels, Missing, MissingReason, Reading, with_labels

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
        self._contradictions = Contradictions()

    def collect(self) -> Collection:
        """What is known now, what contradicts itself in it, and how the reading processes fare."""
        snapshot, now_ns = self._probes.snapshot(), self._wall_clock_ns()
        _say(self._probes.take_findings())
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
        _say(others)
        for finding in others:
            if finding.code == "sxid":
                self._count(finding)
        return Collection(tuple(self._sxids.values()), told.missing, others)

    def _count(self, sxid: Finding) -> None:
        is_fatal = sxid.message.partition(": ")[2].lower().startswith("fatal")
        labels = with_labels(sxid.labels, severity="fatal" if is_fatal else "nonfatal")
        before = self._sxids[labels].value if labels in self._sxids else 0.0
        self._sxids[labels] = Reading(SWITCH + "sxid_errors_total", before + 1.0, labels, sxid.time_ns)


def _say(findings: Sequence[Finding]) -> None:
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
