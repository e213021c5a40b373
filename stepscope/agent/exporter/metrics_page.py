"""Page of `/metrics`: the newest values of all sources, each GPU once, and the state of the sources."""

from __future__ import annotations

import gzip
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from stepscope import __version__
from stepscope.agent.config.settings import node_name
from stepscope.agent.exporter.dcgm_names import DcgmNames, dcgm_series
from stepscope.agent.exporter.exposition import Families, LabelTexts, Series, text_of
from stepscope.agent.polling import SourceState
from stepscope.core.hardware.devices import Device, DeviceJoin, device_of
from stepscope.core.metrics.agent import AGENT
from stepscope.core.metrics.gpu import GPU, GPU_METRICS
from stepscope.core.metrics.readings import GPU_LABELS, Collection, Labels, Reading, labels_of

STALE_SECONDS = 60.0
"""Age of a collection from which its values are left out."""
_OF_THE_AGENT = "agent"
SAMPLED = frozenset(one.name for one in GPU_METRICS if not one.name.startswith((GPU + "xid_", GPU + "up")))
"""Metrics read from a GPU. All others (jobs, health, class) have a new time even if the GPU does not answer."""


class MetricsPage(Collector):
    """The metrics page, made anew for each scrape; never blocks.

    Args:
        states: the sources now; of what two of them report, the first counts.
        dcgm_names: names under which GPUs are shown as dcgm-exporter does as well; None: not at all.
        hostname: for those; the machine's name by default.
        stale_seconds: age of a collection from which its values are left out.
    """

    def __init__(
        self,
        states: Callable[[], Sequence[SourceState]],
        *,
        dcgm_names: DcgmNames | None = None,
        hostname: str | None = None,
        stale_seconds: float = STALE_SECONDS,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._states = states
        self._dcgm_names = dcgm_names
        self._hostname = node_name(hostname or "")
        self._stale_seconds = stale_seconds
        self._wall_clock_ns = wall_clock_ns
        self._texts = LabelTexts()
        self._one_at_a_time = threading.Lock()
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    def describe(self) -> list[Family]:
        """No families: registration reads no source."""
        return []

    def collect(self) -> Iterator[Family]:
        """All families, the agent's process included; each series once."""
        for series in self.series():
            yield series.family()
        yield from self._process.collect()

    def encoded(self, *, accept: str = "", accept_encoding: str = "") -> tuple[bytes, dict[str, str]]:
        """The page and its headers.

        Args:
            accept: header of the request: OpenMetrics if it asks for that, else Prometheus' text format.
            accept_encoding: header of the request: gzip if it allows that.
        """
        encoder, content_type = choose_encoder(accept)
        with self._one_at_a_time:  # in parallel they would take as long
            if "escaping=dots" in content_type:  # changes names
                body = encoder(self)
            else:
                # ten times as fast as prometheus-client, which checks every label of every sample again
                is_openmetrics = content_type.startswith("application/openmetrics-text")
                text = text_of(self.series(), self._texts, is_openmetrics=is_openmetrics)
                body = text.encode() + encoder(self._process)
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if accepts_gzip(accept_encoding):
            body = gzip.compress(body, compresslevel=1)
            headers["Content-Encoding"] = "gzip"
        return body, headers

    def series(self) -> list[Series]:
        """Values of the sources and their states; each series once."""
        now_ns, states, families = self._wall_clock_ns(), self._states(), Families(self._texts)
        shown: list[Reading] = []
        families.add(_OF_THE_AGENT, AGENT + "info", labels_of(version=__version__), 1.0)
        is_stale = [one.is_older_than(self._stale_seconds) for one in states]
        fresh = [Collection() if old else one.collection for one, old in zip(states, is_stale, strict=True)]
        for state, old, (readings, num_doubles) in zip(states, is_stale, without_duplicates(fresh), strict=True):
            if old:
                families.dropped[state.name, "stale"] += len(state.collection.readings)
            if num_doubles:
                families.dropped[state.name, "told_before"] += num_doubles
            for reading in readings:
                families.add(state.name, reading.metric, reading.labels, reading.value)
            shown += readings
            _add_source_state(families, state, now_ns, with_content=not old)
        for (collector, reason), count in list(families.dropped.items()):
            labels = labels_of(collector=collector, reason=reason)
            families.add(_OF_THE_AGENT, AGENT + "readings_dropped", labels, count)
        beside = dcgm_series(shown, self._dcgm_names, hostname=self._hostname) if self._dcgm_names else []
        return [*families.in_order(), *beside]


def _add_source_state(families: Families, state: SourceState, now_ns: int, *, with_content: bool) -> None:
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
    newest: dict[Labels, int] = {}
    for reading in readings:
        if reading.metric in SAMPLED and reading.time_ns > newest.get(reading.labels, 0):
            newest[reading.labels] = reading.time_ns
    by_gpu: dict[tuple[str, str], int] = {}
    for labels, time_ns in newest.items():
        gpu = _gpu_of(labels)
        by_gpu[gpu] = max(by_gpu.get(gpu, 0), time_ns)
    return by_gpu


def _gpu_of(labels: Labels) -> tuple[str, str]:
    device = device_of(labels)
    return (device.index, device.uuid) if device else ("", "")


_UP, _INFO = GPU + "up", GPU + "info"
_FACTS = frozenset({_UP, _INFO})
"""Their further labels describe the GPU: they do not distinguish series."""
_WHOSE = frozenset(GPU_LABELS)


def without_duplicates(collections: Sequence[Collection]) -> list[tuple[Sequence[Reading], int]]:
    """Readings of each source that no source before it has of the same device, and the number of the others.

    Args:
        collections: of the sources, in the order of their trust.
    """
    of_gpus = [any(reading.metric == _UP for reading in one.readings) for one in collections]
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
    return device and first(device), tuple(pair for pair in labels if pair[0] not in _WHOSE)


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether gzip is named without a weight of zero, which forbids it."""
    for part in accept_encoding.lower().split(","):
        name, *parameters = (word.strip() for word in part.split(";"))
        if name == "gzip":
            return not any(_is_zero(parameter) for parameter in parameters)
    return False


def _is_zero(parameter: str) -> bool:
    name, _, weight = parameter.partition("=")
    return name.strip() == "q" and re.fullmatch(r"0(\.0*)?", weight.strip()) is not None
