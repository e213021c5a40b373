"""Readings of one page: plausible values, missing metrics with reasons, and findings."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.collectors.contradictions import contradiction_of
from stepscope.collectors.dcgm_exporter.entities import FACT_LABELS, Entity, Kind, Workload
from stepscope.collectors.dcgm_exporter.merged_values import PageValues, ValueKey
from stepscope.collectors.dcgm_exporter.text_format import Page
from stepscope.core.metrics import Metric, Unit
from stepscope.core.metrics.gpu import BY_NAME, FABRIC_METRICS, GPU
from stepscope.core.metrics.host import CPU_METRICS_OF_DCGM
from stepscope.core.metrics.readings import Collection, Finding, Labels, Missing, MissingReason, Reading, with_labels
from stepscope.core.text.numbers import counted

_METRICS = BY_NAME | {metric.name: metric for metric in (*FABRIC_METRICS, *CPU_METRICS_OF_DCGM)}
_WANTED_METRICS = tuple(
    GPU + name
    for name in (
        *("utilization_ratio", "power_watts", "memory_used_bytes", "graphics_engine_active_ratio", "sm_active_ratio"),
        *("tensor_active_ratio", "dram_active_ratio", "xid_last"),
    )
)
"""What a judgement of a GPU needs: told as missing where a page has none of it."""
_WHOLE_GPU_METRICS = frozenset({GPU + "power_watts", GPU + "xid_last"})
_TOTAL = GPU + "memory_total_bytes"
_UNAVAILABLE_UNDER_MIG = tuple(
    GPU + name
    for name in (
        *("utilization_ratio", "memory_bandwidth_busy_ratio"),
        *("encoder_utilization_ratio", "decoder_utilization_ratio"),
    )
)
_PER_WORKLOAD = {
    GPU + "utilization_ratio": GPU + "workload_utilization_ratio",
    GPU + "memory_used_bytes": GPU + "workload_memory_bytes",
}
"""What dcgm-exporter tells of each pod of a shared GPU (`--kubernetes-virtual-gpus`)."""
_MOST_WORKLOADS = 64
"""Of a GPU or MIG instance: more than share one in earnest, and each is a series."""


class _PageBuilder:
    def __init__(self, time_ns: int) -> None:
        self.time_ns = time_ns
        self.readings: list[Reading] = []
        self.missing: list[Missing] = []
        self.findings: list[Finding] = []
        self.values: dict[tuple[Entity, str], float] = {}

    def add(self, name: str, value: float, labels: Labels, time_ns: int | None = None) -> None:
        self.readings.append(Reading(name, value, labels, self.time_ns if time_ns is None else time_ns))

    def miss(self, name: str, labels: Labels, reason: MissingReason, detail: str) -> None:
        self.missing.append(Missing(name, labels, reason, detail))


def collection_of(
    page: Page, content: PageValues, values: Mapping[Entity, Mapping[str, float]], time_ns: int
) -> Collection:
    """The page as all collectors return what they saw.

    Args:
        page: for its bad lines.
        content: what its samples say.
        values: of its GPUs, as `values_by_gpu` has them.
        time_ns: when it was fetched, ns since the epoch; the time of readings whose lines have none.
    """
    into = _PageBuilder(time_ns)
    contradictions = {gpu: contradiction_of(values[gpu]) for gpu in content.gpus}
    workloads = {entity: list(all_of_it)[:_MOST_WORKLOADS] for entity, all_of_it in content.workloads.items()}
    for (entity, metric, further), merged in content.merged.items():
        labels = with_labels(entity.labels, **dict(further))
        if metric in _UNAVAILABLE_UNDER_MIG and entity in content.split:
            detail = "MIG is on: graphics_engine_active_ratio of its instances tells"
            into.miss(metric, labels, MissingReason.NOT_SUPPORTED, detail)
            continue
        contradiction = contradictions.get(_whole_gpu(entity))
        if contradiction and metric in contradiction.doubted:
            into.miss(metric, labels, MissingReason.UNREADABLE, contradiction.detail)
            continue
        _add_value(into, (entity, metric, further), merged.value, merged.time_ns)
        if metric in _PER_WORKLOAD and entity.kind is Kind.GPU:
            shares = dict(merged.shares)
            copies = len(shares) > 1 and set(shares.values()) == {merged.value}  # each has the whole's value
            for workload in () if copies else workloads.get(entity, ()):
                if workload in shares:
                    into.add(_PER_WORKLOAD[metric], shares[workload], _with_workload(labels, workload), merged.time_ns)
    told: dict[Entity, set[str]] = {gpu: set() for gpu in content.gpus}
    for entity, metric, _ in content.merged:
        told.get(entity, set()).add(metric)
    told_of_any = set().union(*told.values())
    for gpu in content.gpus:
        _add_facts(into, content, gpu)
        _derive_total(into, gpu, is_told=_TOTAL in told[gpu])
        _add_missing(into, gpu, told[gpu], told_of_any, is_split=gpu in content.split)
    for entity, told_of in workloads.items():
        for workload in told_of:
            into.add(GPU + "workload_info", 1.0, _with_workload(entity.labels, workload))
        num_all = len(content.workloads[entity])
        if num_all > len(told_of):
            message = f"{counted(num_all, 'workload')} on the page, of which {num_all - len(told_of):,} are left out"
            into.findings.append(Finding("workloads_left_out", message, entity.labels, time_ns))
    for gpu, contradiction in contradictions.items():
        if contradiction:
            into.findings.append(Finding(contradiction.code, contradiction.message, gpu.labels, time_ns))
    if page.bad_lines:
        first = page.bad_lines[0]
        message = f"{len(page.bad_lines)} of the page's lines cannot be read, first line {first.number}: {first.text!r}"
        into.findings.append(Finding("unreadable_lines", message, (), time_ns))
    return Collection(tuple(into.readings), tuple(into.missing), tuple(into.findings))


def _with_workload(labels: Labels, workload: Workload) -> Labels:
    return tuple(sorted((*labels, *workload.labels)))


def _whole_gpu(entity: Entity) -> Entity:
    return entity.whole if entity.is_instance else entity


def values_by_gpu(content: PageValues) -> dict[Entity, dict[str, float]]:
    """Values of GPUs, the highest where MIG instances tell one too; a GPU's utilisation under MIG is none."""
    by_gpu: dict[Entity, dict[str, float]] = {gpu: {} for gpu in content.gpus}
    for (entity, metric, further), merged in content.merged.items():
        gpu = _whole_gpu(entity)
        if gpu not in by_gpu or further or isinstance(merged.value, tuple):
            continue
        if metric not in _UNAVAILABLE_UNDER_MIG or gpu not in content.split:
            values = by_gpu[gpu]
            values[metric] = max(merged.value, values.get(metric, merged.value))
    return by_gpu


def _add_value(into: _PageBuilder, key: ValueKey, told: float | tuple[MissingReason, str], time_ns: int | None) -> None:
    entity, name, further = key
    labels = with_labels(entity.labels, **dict(further))
    note = ""
    seconds = (into.time_ns - time_ns) / 1e9 if time_ns is not None else 0.0
    if seconds > STALE_SECONDS:
        told = (MissingReason.UNREADABLE, f"its line is {seconds:.0f} s old")
    if not isinstance(told, tuple):
        told, note = plausible_value(_METRICS[name], told)
    if isinstance(told, tuple):
        into.miss(name, labels, *told)
        return
    into.add(name, told, labels, time_ns)
    if not further:
        into.values[entity, name] = told
    if note:
        into.findings.append(Finding("clamped", note, labels, into.time_ns))


def _add_facts(into: _PageBuilder, content: PageValues, gpu: Entity) -> None:
    facts = dict.fromkeys((*FACT_LABELS.values(), "architecture", "minor_number"), "") | content.facts[gpu]
    into.add(GPU + "info", 1.0, with_labels(gpu.labels, **facts))
    into.add(GPU + "up", 1.0, gpu.labels)
    if gpu in content.split and (gpu, GPU + "mig_enabled") not in into.values:
        into.add(GPU + "mig_enabled", 1.0, gpu.labels)


def _derive_total(into: _PageBuilder, gpu: Entity, *, is_told: bool) -> None:
    """The default page is without the total; it is the sum of its three parts, all of which must be known."""
    parts = [GPU + f"memory_{kind}_bytes" for kind in ("used", "free", "reserved")]
    if (gpu, _TOTAL) in into.values or any((gpu, part) not in into.values for part in parts):
        return
    if is_told:  # as a blank
        into.missing = [one for one in into.missing if (one.metric, one.labels) != (_TOTAL, gpu.labels)]
    into.add(_TOTAL, sum(into.values[gpu, part] for part in parts), gpu.labels)


def _add_missing(into: _PageBuilder, gpu: Entity, told: set[str], told_of_any: set[str], *, is_split: bool) -> None:
    for name in _WANTED_METRICS:
        if name in told or (is_split and name not in _WHOLE_GPU_METRICS):
            continue
        dcgm = _METRICS[name].dcgm
        field = dcgm.name if dcgm else name
        if name in told_of_any:
            detail = "the page has it of other GPUs, not of this one: DCGM does not read it here"
        else:
            detail = f"the page is without {field}: add it to the exporter's list of fields"
        into.miss(name, gpu.labels, MissingReason.NOT_SUPPORTED, detail)


STALE_SECONDS = 95.0
"""Three of dcgm-exporter's default intervals (30 s). What is older is the past."""
_HIGHEST_CLAMPED = 2.0
"""Ratios over 1 happen: counters of a MIG instance are scaled by the whole GPU's (1.294 in NVIDIA/DCGM#152). What is
far over is no measurement."""
_NO_SENSOR_IF_ZERO = frozenset({GPU + "memory_temperature_celsius"})
"""Boards without the sensor tell 0."""


def plausible_value(metric: Metric, value: float) -> tuple[float | tuple[MissingReason, str], str]:
    """The value as it may be shown or why there is none, and what is to be told of it (empty: nothing).

    Args:
        metric: of a catalogue.
        value: in base units.
    """
    if metric.name in _NO_SENSOR_IF_ZERO and value == 0.0:
        return (MissingReason.NOT_SUPPORTED, "0 °C: the board has no such sensor"), ""
    if value < 0.0 and metric.unit is not Unit.CELSIUS:
        return (MissingReason.UNREADABLE, f"the page says {value:g}, which cannot be"), ""
    if metric.unit is Unit.RATIO and value > 1.0:
        if value > _HIGHEST_CLAMPED:
            return (MissingReason.UNREADABLE, f"the page says {value:g}, which cannot be a share"), ""
        return 1.0, f"{metric.name} is {value:.3f}, over 1, and is taken for 1"
    return value, ""
