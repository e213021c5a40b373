"""dcgm-exporter collector: fetches one exporter's page, turns it into readings and compares it with earlier pages.

After a restart of the host engine the exporter goes on serving old values (NVIDIA/gpu-monitoring-tools#188). A GPU's
energy cannot stay the same while it draws power.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stepscope.collectors.contradictions import RESTART_HOSTENGINE, SILENT, SilentCounters
from stepscope.collectors.dcgm_exporter.entities import DcgmEntity
from stepscope.collectors.dcgm_exporter.merged_values import PageValues, merge_dcgm_page
from stepscope.collectors.dcgm_exporter.page import Endpoint, PageFetchError, fetch_dcgm_page, parse_dcgm_page
from stepscope.collectors.dcgm_exporter.readings import STALE_SECONDS, dcgm_page_collection, values_by_gpu
from stepscope.collectors.readings_builder import NoValue
from stepscope.core.metrics.gpu import PROFILING_METRICS
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

TIMEOUT_SECONDS = 5.0
"""The exporter answers from memory; where DCGM hangs, it does not answer at all."""


class DcgmExporterCollector:
    """Collector of one dcgm-exporter's page."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        fetcher: Callable[[Endpoint, float], str] | None = None,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`fetcher` gets the page in that many seconds, or raises `PageFetchError`."""
        self._endpoint = endpoint
        self._fetcher = fetcher or (lambda where, seconds: fetch_dcgm_page(where, timeout_seconds=seconds))
        self._wall_clock_ns = wall_clock_ns
        self._history = PageHistory()

    def collect(self) -> Collection:
        """Fetch the page and read it. What is not known is missing, with its reason; nothing is raised.

        A page without samples is "not yet": dcgm-exporter serves it while it reloads its configuration.
        """
        try:
            text = self._fetcher(self._endpoint, TIMEOUT_SECONDS)
        except PageFetchError as error:
            return self._missing(error.reason, error.detail)
        time_ns = self._wall_clock_ns()
        page = parse_dcgm_page(text)
        if not page.samples and not page.bad_lines:
            return self._missing(
                MissingReason.NOT_YET, "an empty page: the exporter is starting or loading its settings"
            )
        if not any(sample.name.lower().startswith("dcgm_") for sample in page.samples):
            return self._missing(MissingReason.UNREADABLE, "the page is not one of dcgm-exporter")
        content = merge_dcgm_page(page)
        values = values_by_gpu(content)
        collection = dcgm_page_collection(page, content, values, time_ns)
        return self._history.observe(collection, content, values, time_ns)

    def _missing(self, reason: MissingReason, detail: str) -> Collection:
        return NoValue(reason, f"{self._endpoint}: {detail}").of_all()


_FORGET_AFTER_NS = 86_400 * 1_000_000_000
_MAX_GPUS = 1024
_ABSENT_NS = 120 * 1_000_000_000
"""Once pages lack the line of a last XID for so long, it was not merely a failed reading."""
_ENERGY, _POWER = GPU + "energy_joules_total", GPU + "power_watts"
_LAST, _RECENT = GPU + "xid_last", GPU + "xid_recent"
_FACTS = frozenset({GPU + "info", GPU + "workload_info"})
_ALWAYS_PRESENT = _FACTS | {GPU + "up", GPU + "mig_enabled"}
"""Of every GPU on the page, whatever its values."""

_NOT_ON_PAGE = "not on the page, though earlier ones had it: not in use, where the exporter lists GPUs in use only"
_ONLY_OTHER_GPUS = "earlier pages had it, and this one has it of other GPUs"
_COUNTERS_TAKEN = (
    "earlier pages had it: DCGM's counters are paused (dcgmi profile --pause), a profiler has them, or the exporter "
    "has another list of fields"
)


@dataclass(slots=True)
class PageHistory:
    """Last dcgm-exporter pages of each GPU, kept for a day after it went, and of the last 1,024 GPUs at most."""

    _seen: dict[str, tuple[Labels, int]] = field(default_factory=dict)
    _metrics: dict[Labels, frozenset[str]] = field(default_factory=dict)
    _xids: dict[tuple[str, Labels], float] = field(default_factory=dict)
    _earlier: dict[Labels, str] = field(default_factory=dict)
    _away_ns: dict[tuple[str, Labels], int] = field(default_factory=dict)
    _energy: dict[Labels, tuple[float, int]] = field(default_factory=dict)
    _silent: SilentCounters = field(default_factory=SilentCounters)

    def observe(
        self,
        collection: Collection,
        content: PageValues,
        values: Mapping[DcgmEntity, Mapping[str, float]],
        time_ns: int,
    ) -> Collection:
        """The page's collection, corrected by the pages before it; `values` are those of its GPUs, by metric."""
        self._forget(time_ns)
        self._update_absent_xids(collection, content, time_ns)
        collection = self._still_silent(collection, values, time_ns)
        stale = self._stale(collection, time_ns)
        collection = _without_stale(collection, stale, time_ns)
        findings = self._xid_findings(collection, content, time_ns)
        gone, missing = self._gone(collection, content, time_ns)
        explained = {(one.metric, one.labels) for one in missing}
        others = tuple(one for one in collection.missing if (one.metric, one.labels) not in explained)
        collection = Collection(collection.readings, others, collection.findings)
        return Collection.joined((collection, Collection(tuple(gone), tuple(missing), tuple(findings))))

    def _stale(self, collection: Collection, time_ns: int) -> dict[Labels, str]:
        """GPUs whose energy does not change although they draw power, with a message."""
        values = {(r.labels, r.metric): r.value for r in collection.readings if r.metric in (_ENERGY, _POWER)}
        stale = {}
        for (labels, metric), value in values.items():
            if metric != _ENERGY:
                continue
            before, since = self._energy.get(labels, (None, time_ns))
            self._energy[labels] = (value, min(since, time_ns) if value == before else time_ns)
            seconds = (time_ns - self._energy[labels][1]) / 1e9
            if seconds >= STALE_SECONDS and values.get((labels, _POWER), 0.0) > 0.0:
                stale[labels] = (
                    f"its energy has not changed for {seconds:.0f} s: the page shows old values; restart dcgm-exporter"
                )
        return stale

    def _still_silent(
        self, collection: Collection, values: Mapping[DcgmEntity, Mapping[str, float]], time_ns: int
    ) -> Collection:
        """The collection without counters that were found silent on an earlier page."""
        found = {finding.labels for finding in collection.findings if finding.code == SILENT}
        messages = self._silent.observe({gpu.labels: of_gpu for gpu, of_gpu in values.items()}, found)
        findings = [Finding(SILENT, text, labels, time_ns) for labels, text in messages.items() if labels not in found]
        kept = self._silent.without(collection, RESTART_HOSTENGINE)
        return Collection(kept.readings, kept.missing, (*kept.findings, *findings))

    def _update_absent_xids(self, collection: Collection, content: PageValues, time_ns: int) -> None:
        """Note since when the page lacks the line of a last XID. Once it was absent for long enough, the next XID is
        new, whatever its number. Where the whole GPU is absent, or no page comes, nothing is known: DCGM shows the same
        XID for ever."""
        gpus = {gpu.labels for gpu in content.gpus}
        here = {(one.metric, one.labels) for one in collection.readings}
        here |= {(one.metric, one.labels) for one in collection.missing if one.reason is MissingReason.UNREADABLE}
        for key in [key for key in self._xids if key[0] == _LAST]:
            if key in here or _gpu_labels(key[1]) not in gpus:
                self._away_ns.pop(key, None)
                continue
            away_ns = self._away_ns[key] = min(self._away_ns.get(key, time_ns), time_ns)
            if time_ns - away_ns >= _ABSENT_NS:
                self._xids[key] = 0.0

    def _xid_findings(self, collection: Collection, content: PageValues, time_ns: int) -> list[Finding]:
        """XIDs that came since the last page, and those from before the first page while they are on it. The last XID
        stays on the page for ever and hides its repetition; the exporter's counts of the last minutes do not."""
        findings = []
        counts = [reading for reading in collection.readings if reading.metric == _RECENT]
        counted = {_gpu_labels(reading.labels) for reading in counts}
        recent = {(_gpu_labels(reading.labels), dict(reading.labels)["xid"]) for reading in counts if reading.value}
        now = {(r.metric, r.labels): r.value for r in collection.readings if r.metric in (_LAST, _RECENT)}
        for (metric, labels), value in now.items():
            whole = _gpu_labels(labels)
            xid = dict(labels).get("xid", f"{value:.0f}")
            before = self._xids.get((metric, labels), 0.0)
            if metric == _LAST and whole not in self._metrics:
                if value and (whole, xid) not in recent:
                    self._earlier[whole] = xid
            elif value > before if metric == _RECENT else value not in (0.0, before) and whole not in counted:
                words = f"XID {xid}" + (_xid_text(content, whole) if metric == _LAST else "")
                findings.append(Finding("xid", words, with_labels(whole, xid=xid), time_ns))
                if self._earlier.get(whole) == xid:
                    del self._earlier[whole]
        shown = {_gpu_labels(labels): f"{value:.0f}" for (metric, labels), value in now.items() if metric == _LAST}
        self._earlier = {whole: xid for whole, xid in self._earlier.items() if shown.get(whole, xid) == xid}
        for whole in self._earlier.keys() & shown.keys():
            words = f"XID {shown[whole]}{_xid_text(content, whole)}"
            message = f"{words} was on the first page: when it came is not known"
            findings.append(Finding("xid_earlier", message, with_labels(whole, xid=shown[whole]), time_ns))
        gpus = {gpu.labels for gpu in content.gpus}
        kept = {key: value for key, value in self._xids.items() if key[0] == _LAST or _gpu_labels(key[1]) not in gpus}
        self._xids = kept | now
        return findings

    def _gone(self, collection: Collection, content: PageValues, time_ns: int) -> tuple[list[Reading], list[Missing]]:
        """GPUs and metrics that earlier pages had and this one has not (NVIDIA/go-dcgm#38: one GPU's, until a restart).

        That is no loss: an exporter may list only GPUs that are in use (NVIDIA/dcgm-exporter#569, #611).
        """
        metrics: dict[Labels, set[str]] = {gpu.labels: set() for gpu in content.gpus}
        for reading in collection.readings:
            if reading.metric not in _ALWAYS_PRESENT and reading.labels in metrics:
                metrics[reading.labels].add(reading.metric)
        known_missing = {(missing.metric, missing.labels) for missing in collection.missing}
        split = {gpu.labels for gpu in content.split}
        on_page = {(metric, entity.labels) for entity, metric, _ in content.merged}
        missing = []
        of_any = set().union(*metrics.values())
        for labels, names in metrics.items():
            kinds = of_any if labels in split else of_any | PROFILING_METRICS
            lost = (self._metrics.get(labels, frozenset()) - names) & kinds
            for name in sorted(lost):
                if name in of_any and (name, labels) not in known_missing:
                    missing.append(Missing(name, labels, MissingReason.GONE, _ONLY_OTHER_GPUS))
                elif name not in of_any and (name, labels) not in on_page:
                    missing.append(Missing(name, labels, MissingReason.GONE, _COUNTERS_TAKEN))
            self._metrics[labels] = frozenset(names | lost)
        here = {_gpu_key(gpu.labels): gpu.labels for gpu in content.gpus}
        self._seen |= {name: (labels, time_ns) for name, labels in here.items()}
        gone = [labels for name, (labels, _) in self._seen.items() if name not in here]
        missing += [Missing("", labels, MissingReason.NOT_ON_PAGE, _NOT_ON_PAGE) for labels in gone]
        why = MissingReason.NOT_ON_PAGE
        up = [Reading(GPU + "up", 0.0, with_labels(labels, reason=why), time_ns) for labels in gone]
        return up, missing

    def _forget(self, time_ns: int) -> None:
        recent = sorted(self._seen.items(), key=lambda item: item[1][1])[-_MAX_GPUS:]
        self._seen = {name: (labels, at) for name, (labels, at) in recent if time_ns - at < _FORGET_AFTER_NS}
        kept = {labels for labels, _ in self._seen.values()}
        self._metrics = {labels: names for labels, names in self._metrics.items() if labels in kept}
        self._energy = {labels: energy for labels, energy in self._energy.items() if labels in kept}
        self._xids = {key: value for key, value in self._xids.items() if _gpu_labels(key[1]) in kept}
        self._earlier = {labels: xid for labels, xid in self._earlier.items() if labels in kept}
        self._silent.forget_all_but(kept)
        self._away_ns = {key: away_ns for key, away_ns in self._away_ns.items() if key in self._xids}


def _gpu_key(labels: Labels) -> str:
    """Key of a GPU: its index may become another's."""
    known = dict(labels)
    return known.get("uuid") or known.get("gpu", "")


def _gpu_labels(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] in ("gpu", "uuid"))


def _xid_text(content: PageValues, whole: Labels) -> str:
    """Meaning of a GPU's last XID, as the page has it."""
    text = next((text for gpu, text in content.xid_texts.items() if gpu.labels == whole), "")
    return f" ({text})" if text else ""


def _without_stale(collection: Collection, stale: dict[Labels, str], time_ns: int) -> Collection:
    """The collection without the readings of these GPUs."""
    if not stale:
        return collection
    names = {value for labels in stale for _, value in labels}
    kept = [
        reading
        for reading in collection.readings
        if reading.metric in _FACTS or not ({dict(reading.labels).get(name) for name in ("gpu", "uuid")} & names)
    ]
    missing = [Missing("", labels, MissingReason.UNREADABLE, why) for labels, why in stale.items()]
    findings = [Finding("stale", why, labels, time_ns) for labels, why in stale.items()]
    return Collection(tuple(kept), (*collection.missing, *missing), (*collection.findings, *findings))
