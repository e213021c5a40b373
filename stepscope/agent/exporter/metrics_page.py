"""Page of `/metrics`: the newest values of all sources, each GPU once, and the state of the sources.

GPUs are shown under dcgm-exporter's names as well, if configured, so that dashboards made for it work.
"""

from __future__ import annotations

import gzip
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from math import inf
from typing import Any

from stepscope import __version__
from stepscope.agent.config.settings import node_name
from stepscope.agent.exporter.content_negotiation import PageFormat, accepts_gzip, page_format_of
from stepscope.agent.exporter.exposition import (
    FULL_SELECTION,
    LabelTexts,
    MetricFamilies,
    MetricSeries,
    exported_readings,
    exposition_text,
)
from stepscope.agent.exporter.process_metrics import ProcessMetrics
from stepscope.agent.polling import STALE_SECONDS, SourceState
from stepscope.core.hardware.devices import Device, DeviceJoin, device_of
from stepscope.core.metrics import DefaultSeries, MetricKind
from stepscope.core.metrics.agent import AGENT
from stepscope.core.metrics.gpu import BY_NAME, GPU_METRICS
from stepscope.core.metrics.readings import GPU, GPU_LABELS, Collection, Labels, Reading, ReadingSelection, labels_of

_OF_THE_AGENT = "agent"
SAMPLED = frozenset(one.name for one in GPU_METRICS if not one.name.startswith((GPU + "xid_", GPU + "up")))
"""Metrics read from a GPU. All others (jobs, health, class) have a new time even if the GPU does not answer."""


_REUSE_SECONDS = 1.0
"""How long a page is served again while no source has anything new: the ages on it may be so much too small."""


_RHYTHM_SECONDS = 0.2
"""How much the time between two scrapes may vary for the next one to be expected."""


@dataclass(slots=True)
class _ScrapeRhythm:
    """When the page is scraped again in one format, if that is regular.

    Attributes:
        expected_at: monotonic seconds; infinite where nothing is known.
    """

    at: float = -inf
    seconds: float = inf
    expected_at: float = inf

    def scraped(self, now: float) -> None:
        seconds = now - self.at
        is_regular = abs(seconds - self.seconds) <= _RHYTHM_SECONDS
        self.at, self.seconds = now, seconds
        self.expected_at = now + seconds if is_regular else inf


class MetricsPage:
    """The Prometheus page of the agent; never blocks. Scrapes between two collections get the same bytes, and those
    that come regularly find the page made.

    Args:
        states: the sources now; of what two of them report, the first counts.
        selection: which series of each metric are on the page, by name.
        dcgm_names: names under which GPUs are shown as dcgm-exporter does as well; None: not at all.
        hostname: for those; the machine's name by default.
        log_lines_dropped: number of lines that the agent's log did not take so far.
        own_readings: of other parts of the agent that are no sources.
        stale_seconds: age of a collection from which its values are left out.
    """

    def __init__(
        self,
        states: Callable[[], Sequence[SourceState]],
        *,
        selection: Mapping[str, DefaultSeries] = FULL_SELECTION,
        dcgm_names: DcgmNames | None = None,
        hostname: str | None = None,
        log_lines_dropped: Callable[[], int] = int,
        own_readings: Callable[[], Sequence[Reading]] = tuple,
        stale_seconds: float = STALE_SECONDS,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._states = states
        self._selection = selection
        self._exported = exported_readings(selection)
        self._dcgm_names = dcgm_names
        self._hostname = node_name(hostname or "")
        self._log_lines_dropped = log_lines_dropped
        self._own_readings = own_readings
        self._stale_seconds = stale_seconds
        self._wall_clock_ns = wall_clock_ns
        self._texts = LabelTexts()
        self._one_at_a_time = threading.Lock()
        self._process = ProcessMetrics()
        self._made_from: tuple[object, ...] = ()
        self._made_at = 0.0
        self._kept: Sequence[SourceState] = ()
        self._pages: dict[tuple[str, bool], bytes] = {}
        self._rhythms: dict[tuple[PageFormat, bool], _ScrapeRhythm] = {}

    def collect(self) -> Iterator[Any]:
        """All families for prometheus-client, the agent's process included; each series once."""
        for series in (*self.series(), *self._process.series()):
            yield series.family()

    def encoded(self, *, accept: str = "", accept_encoding: str = "") -> tuple[bytes, dict[str, str]]:
        """The page and its headers.

        Args:
            accept: header of the request: OpenMetrics if it asks for that, else Prometheus' text format.
            accept_encoding: header of the request: gzip if it allows that.
        """
        page_format, is_compressed = page_format_of(accept), accepts_gzip(accept_encoding)
        with self._one_at_a_time:  # in parallel they would take as long
            self._rhythms.setdefault((page_format, is_compressed), _ScrapeRhythm()).scraped(time.monotonic())
            body = self._page(page_format, is_compressed=is_compressed)
        headers = {"Content-Type": page_format.content_type, "Vary": "Accept, Accept-Encoding"}
        if is_compressed:
            headers["Content-Encoding"] = "gzip"
        return body, headers

    def prepare(self) -> None:
        """Make the pages that are expected to be scraped before the next collection; to be called after each.

        A scrape then takes a fresh page without the time to make it, and no more pages are made than are scraped.
        """
        now = time.monotonic()
        with self._one_at_a_time:
            for (page_format, is_compressed), rhythm in self._rhythms.items():
                if 0.0 <= rhythm.expected_at - now < _REUSE_SECONDS:
                    self._page(page_format, is_compressed=is_compressed)

    def _page(self, page_format: PageFormat, *, is_compressed: bool) -> bytes:
        """The page in this format: as it was made for an earlier scrape, unless a source has something new."""
        states, now = self._states(), time.monotonic()
        made_from = tuple((id(one.collection), one.num_collections, one.num_errors, one.reason) for one in states)
        if made_from != self._made_from or now - self._made_at >= _REUSE_SECONDS:
            self._made_from, self._made_at, self._pages = made_from, now, {}
            self._kept = states  # while they are, their collections have their ids
        key = page_format.content_type, is_compressed
        if key not in self._pages:
            if is_compressed:
                self._pages[key] = gzip.compress(self._page(page_format, is_compressed=False), compresslevel=1)
            elif page_format.escaping == "dots":  # changes names
                from prometheus_client.exposition import choose_encoder  # 4 MB that no other scraper needs

                self._pages[key] = choose_encoder(page_format.content_type)[0](self)
            else:
                # ten times as fast as prometheus-client, which checks every label of every sample again
                series = [*self.series(states), *self._process.series()]
                is_openmetrics = page_format.is_openmetrics
                text = exposition_text(series, self._texts, is_openmetrics=is_openmetrics)
                self._pages[key] = (text + "# EOF\n" if is_openmetrics else text).encode()
        return self._pages[key]

    def series(self, states: Sequence[SourceState] | None = None) -> list[MetricSeries]:
        """All series without those of the agent's process.

        Args:
            states: the sources; now, where they are left out.
        """
        states = self._states() if states is None else states
        now_ns, families = self._wall_clock_ns(), MetricFamilies(self._texts, self._selection)
        shown: list[Sequence[Reading]] = []
        families.add(_OF_THE_AGENT, AGENT + "info", labels_of(version=__version__), 1.0)
        families.add(_OF_THE_AGENT, AGENT + "log_lines_dropped_total", (), self._log_lines_dropped())
        families.add_readings(_OF_THE_AGENT, self._exported.of(self._own_readings()))
        is_stale = [one.is_older_than(self._stale_seconds) for one in states]
        fresh = [Collection() if old else one.collection for one, old in zip(states, is_stale, strict=True)]
        for state, old, (readings, num_doubles) in zip(
            states, is_stale, readings_without_duplicates(fresh), strict=True
        ):
            if old:
                families.dropped[state.name, "stale"] += len(state.collection.readings)
            if num_doubles:
                families.dropped[state.name, "told_before"] += num_doubles
            families.add_readings(state.name, self._exported.of(readings))
            shown.append(readings)
            _add_source_state(families, state, now_ns, with_content=not old)
        for (collector, reason), count in list(families.dropped.items()):
            labels = labels_of(collector=collector, reason=reason)
            families.add(_OF_THE_AGENT, AGENT + "readings_dropped", labels, count)
        every = chain.from_iterable(shown)
        beside = dcgm_series(every, self._dcgm_names, hostname=self._hostname) if self._dcgm_names else []
        return [*families.in_order(), *beside]


def _add_source_state(families: MetricFamilies, state: SourceState, now_ns: int, *, with_content: bool) -> None:
    def add(name: str, value: float, **labels: str) -> None:
        families.add(_OF_THE_AGENT, AGENT + name, labels_of(collector=state.name, **labels), value)

    add("collector_up", 0.0 if state.reason else 1.0, reason=state.reason or "")
    add("collections_total", state.num_collections)
    add("collector_errors_total", state.num_errors)
    if state.age_seconds is None or state.seconds is None:
        return
    add("collector_duration_seconds", state.seconds)
    add("collector_age_seconds", state.age_seconds)
    add("collector_readings", len(state.collection.readings))
    if not with_content:
        return
    missing = Counter((absent.metric, absent.reason.value) for absent in state.collection.missing)
    for (metric, reason), count in missing.items():
        add("missing", count, metric=metric, reason=reason)
    findings = Counter((finding.code, *_gpu_of(finding.labels)) for finding in state.collection.findings)
    for (code, gpu, uuid), count in findings.items():
        add("finding", count, code=code, gpu=gpu, uuid=uuid)
    for (gpu, uuid), newest_ns in _newest(state.collection.readings).items():
        add("sample_age_seconds", max(0.0, (now_ns - newest_ns) / 1e9), gpu=gpu, uuid=uuid)


def _newest(readings: Sequence[Reading]) -> dict[tuple[str, str], int]:
    """Time of the newest value that was sampled from each GPU."""
    newest = _newest_of(_SAMPLED_WHOLE.of(readings))
    gpus = {gpu for gpu, _, _, _ in _OF_GPUS.of(readings)}
    if gpus <= newest.keys():
        return newest
    return _newest_of(_SAMPLED.of(readings))  # one with values of its instances alone


def _newest_of(
    readings: Iterable[tuple[tuple[str, str], Sequence[bool], Sequence[float], int]],
) -> dict[tuple[str, str], int]:
    newest: dict[tuple[str, str], int] = {}
    for gpu, _, _, time_ns in readings:
        newest[gpu] = max(time_ns, newest.get(gpu, 0))
    return newest


def _gpu_of(labels: Labels) -> tuple[str, str]:
    device = device_of(labels)
    return (device.index, device.uuid) if device else ("", "")


_UP, _GPU_INFO = GPU + "up", GPU + "info"
_NUM_LABELS_OF_GPU = 2
"""Index and UUID: what has more is of a link, a process or an instance, and was read with the others."""
_FACTS = frozenset({_UP, _GPU_INFO})
"""Their further labels describe the GPU: they do not distinguish series."""
_GPU_LABELS = frozenset(GPU_LABELS)


def _sampled(metric: str, labels: Labels) -> tuple[tuple[str, str], bool] | None:
    return (_gpu_of(labels), True) if metric in SAMPLED else None


_SAMPLED = ReadingSelection(_sampled)
_SAMPLED_WHOLE = ReadingSelection(
    lambda metric, labels: _sampled(metric, labels) if len(labels) <= _NUM_LABELS_OF_GPU else None
)
_OF_GPUS = ReadingSelection(lambda metric, labels: (_gpu_of(labels), True) if metric in _FACTS else None)
_ANSWERS = ReadingSelection(lambda metric, labels: (labels, True) if metric == _UP else None)


def readings_without_duplicates(collections: Sequence[Collection]) -> list[tuple[Sequence[Reading], int]]:
    """Readings to export of each source: those that no source before it has of the same device; and how many others.

    Args:
        collections: of the sources, in the order of their trust.
    """
    of_gpus = [any(True for _ in _ANSWERS.of(one.readings)) for one in collections]
    if sum(of_gpus) < 2:
        return [(one.readings, 0) for one in collections]
    join, reported = DeviceJoin(), set[tuple[object, ...]]()
    kept: list[tuple[Sequence[Reading], int]] = []
    for collection, is_of_gpus in zip(collections, of_gpus, strict=True):
        if not is_of_gpus:
            kept.append((collection.readings, 0))
            continue
        first = join.source(collection)
        names: dict[Labels, tuple[object, ...]] = {}
        own, new = [], set()
        for reading in collection.readings:
            name = names.get(reading.labels)
            if name is None:
                name = names[reading.labels] = _name(first, reading.labels)
            key = (reading.metric, name[0] if reading.metric in _FACTS else name)
            if key not in reported:
                own.append(reading)
                new.add(key)
        reported |= new
        kept.append((own, len(collection.readings) - len(own)))
    return kept


def _name(first: Callable[[Device], Device], labels: Labels) -> tuple[object, ...]:
    """The device of a series, and its labels that distinguish series of one metric of that device."""
    device = device_of(labels)
    return device and first(device), tuple(pair for pair in labels if pair[0] not in _GPU_LABELS)


class DcgmNames(StrEnum):
    """Which names of DCGM's fields the metrics page has."""

    OLD = "old"  # up to DCGM 4.5, as most dashboards have them
    NEW = "new"  # from DCGM 4.6 on


def dcgm_series(readings: Iterable[Reading], names: DcgmNames, *, hostname: str) -> list[MetricSeries]:
    """Exported series of GPUs under DCGM's names, sorted by name; without readings that have no field of DCGM."""
    readings = tuple(readings)
    infos = _Infos(dict(reading.labels) for reading in readings if reading.metric == _GPU_INFO)
    by_name: dict[str, MetricSeries] = {}
    translated: dict[Labels, Labels] = {}
    for reading in readings:
        metric = BY_NAME.get(reading.metric)
        if metric is None or metric.dcgm is None:
            continue
        labels = translated.get(reading.labels)
        if labels is None:
            if any(name not in _GPU_LABELS for name, _ in reading.labels):
                continue  # of a link or process: DCGM's page has no such series of this field
            labels = translated[reading.labels] = _labels(dict(reading.labels), infos, hostname)
        name = metric.dcgm.name if names is DcgmNames.OLD else metric.dcgm.new_name
        series = by_name.get(name)
        if series is None:
            # a counter's name must end with _total, and DCGM's do not
            kind = "gauge" if metric.kind is MetricKind.GAUGE else "unknown"
            series = by_name[name] = MetricSeries(name, kind, metric.help, "")
        value = reading.value if metric.dcgm.scale == 1.0 else round(reading.value / metric.dcgm.scale, 6)
        series.values.setdefault(labels, value)
    return [by_name[name] for name in sorted(by_name)]


class _Infos:
    """Labels of the info metric of each GPU, of the first source that reports it."""

    def __init__(self, infos: Iterable[dict[str, str]]) -> None:
        self._by_uuid: dict[str, dict[str, str]] = {}
        self._by_index: dict[str, dict[str, str]] = {}
        for info in infos:
            if "gpu" in info:
                self._by_uuid.setdefault(info.get("uuid", ""), info)
                self._by_index.setdefault(info["gpu"], info)

    def of(self, labels: dict[str, str]) -> dict[str, str]:
        """Info of the whole GPU; empty if not known. NVML, the first source, names an instance by its own UUID."""
        uuid = labels.get("uuid", "")
        is_of_instance = "gpu_instance" in labels and not uuid.startswith("GPU-")
        if uuid and not is_of_instance:
            return self._by_uuid.get(uuid, {})
        return self._by_index.get(labels.get("gpu", ""), {})


def _labels(ours: dict[str, str], infos: _Infos, hostname: str) -> Labels:
    info = infos.of(ours)
    index = info.get("gpu", ours.get("gpu", ""))
    labels = {
        "gpu": index,
        "UUID": info.get("uuid", ours.get("uuid", "")),
        "pci_bus_id": info.get("pci_bus_id", ""),
        "device": f"nvidia{info.get('minor_number', index)}",
        "modelName": info.get("name", ""),
        "GPU_I_PROFILE": ours.get("mig_profile", ""),
        "GPU_I_ID": ours.get("gpu_instance", ""),
        "Hostname": hostname,
    }
    return tuple(sorted((name, value) for name, value in labels.items() if value))
