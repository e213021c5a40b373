"""Readings of one page: plausible values, missing metrics with reasons, and findings."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.collectors.contradictions import contradiction_of
from stepscope.collectors.dcgm_exporter.entities import FACT_LABELS, DcgmEntity, DcgmEntityKind, Workload
from stepscope.collectors.dcgm_exporter.merged_values import MergedValue, PageValues
from stepscope.collectors.dcgm_exporter.page import DcgmPage
from stepscope.collectors.readings_builder import NoValue, ReadingsBuilder
from stepscope.core.metrics.gpu import BY_NAME
from stepscope.core.metrics.readings import GPU, Collection, Finding, Labels, MissingReason, with_labels
from stepscope.core.text.numbers import counted

_WANTED_METRICS = tuple(
    GPU + name
    for name in (
        *("utilization_ratio", "power_watts", "memory_used_bytes", "graphics_engine_active_ratio", "sm_active_ratio"),
        *("tensor_active_ratio", "dram_active_ratio", "xid_last"),
    )
)
"""Needed to judge a GPU: reported as missing where a page does not have them."""
_WHOLE_GPU_METRICS = frozenset({GPU + "power_watts", GPU + "xid_last"})
_TOTAL = GPU + "memory_total_bytes"
_UNAVAILABLE_UNDER_MIG = tuple(
    GPU + name
    for name in (
        *("utilization_ratio", "memory_bandwidth_busy_ratio"),
        *("encoder_utilization_ratio", "decoder_utilization_ratio"),
    )
)
_USE_INSTANCES = NoValue(MissingReason.NOT_SUPPORTED, "MIG is on: see graphics_engine_active_ratio of its instances")
_PER_WORKLOAD = {
    GPU + "utilization_ratio": GPU + "workload_utilization_ratio",
    GPU + "memory_used_bytes": GPU + "workload_memory_bytes",
}
"""What dcgm-exporter reports of each pod of a shared GPU (`--kubernetes-virtual-gpus`)."""
_MAX_WORKLOADS = 64
"""Of a GPU or MIG instance: more than share one in practice, and each is a series."""


def dcgm_page_collection(
    page: DcgmPage, content: PageValues, values: Mapping[DcgmEntity, Mapping[str, float]], time_ns: int
) -> Collection:
    """Readings, missing metrics and findings of a dcgm-exporter's page.

    Args:
        values: of its GPUs, as `values_by_gpu` has them.
        time_ns: when it was fetched, ns since the epoch; the time of readings whose lines have none.
    """
    into = ReadingsBuilder(time_ns)
    added: dict[tuple[DcgmEntity, str], float] = {}
    contradictions = {gpu: contradiction_of(values[gpu]) for gpu in content.gpus}
    workloads = {entity: list(all_of_it)[:_MAX_WORKLOADS] for entity, all_of_it in content.workloads.items()}
    for (entity, metric, further), merged in content.merged.items():
        labels = with_labels(entity.labels, **dict(further))
        if metric in _UNAVAILABLE_UNDER_MIG and entity in content.split:
            into.add_labelled(metric, _USE_INSTANCES, labels)
            continue
        contradiction = contradictions.get(_whole_gpu(entity))
        if contradiction and metric in contradiction.doubted:
            into.add_labelled(metric, NoValue(MissingReason.UNREADABLE, contradiction.detail), labels)
            continue
        value = _checked_value(into, metric, labels, merged)
        into.add_labelled(metric, value, labels, merged.time_ns)
        if not further and not isinstance(value, NoValue):
            added[entity, metric] = value
        if metric in _PER_WORKLOAD and entity.kind is DcgmEntityKind.GPU:
            shares = dict(merged.shares)
            copies = len(shares) > 1 and set(shares.values()) == {merged.value}  # each has the whole's value
            for workload in () if copies else workloads.get(entity, ()):
                if workload in shares:
                    of_workload = _with_workload(labels, workload)
                    into.add_labelled(_PER_WORKLOAD[metric], shares[workload], of_workload, merged.time_ns)
    on_page: dict[DcgmEntity, set[str]] = {gpu: set() for gpu in content.gpus}
    for entity, metric, _ in content.merged:
        on_page.get(entity, set()).add(metric)
    of_any_gpu = set().union(*on_page.values())
    for gpu in content.gpus:
        has_mig_mode = (gpu, GPU + "mig_enabled") in added
        facts = dict.fromkeys((*FACT_LABELS.values(), "architecture", "minor_number"), "") | content.facts[gpu]
        into.add_labelled(GPU + "info", 1.0, with_labels(gpu.labels, **facts))
        into.add_labelled(GPU + "up", 1.0, gpu.labels)
        if gpu in content.split and not has_mig_mode:
            into.add_labelled(GPU + "mig_enabled", 1.0, gpu.labels)
        _derive_total(into, gpu, added)
        _add_missing(into, gpu, on_page[gpu], of_any_gpu, is_split=gpu in content.split)
    for entity, shown in workloads.items():
        for workload in shown:
            into.add_labelled(GPU + "workload_info", 1.0, _with_workload(entity.labels, workload))
        num_all = len(content.workloads[entity])
        if num_all > len(shown):
            message = f"{counted(num_all, 'workload')} on the page, of which {num_all - len(shown):,} are left out"
            into.findings.append(Finding("workloads_left_out", message, entity.labels, time_ns))
    for gpu, contradiction in contradictions.items():
        if contradiction:
            into.findings.append(Finding(contradiction.code, contradiction.message, gpu.labels, time_ns))
    if page.bad_lines:
        first = page.bad_lines[0]
        message = f"{len(page.bad_lines)} of the page's lines cannot be read, first line {first.number}: {first.text!r}"
        into.note("unreadable_lines", message)
    return into.collection()


def _with_workload(labels: Labels, workload: Workload) -> Labels:
    return tuple(sorted((*labels, *workload.labels)))


def _whole_gpu(entity: DcgmEntity) -> DcgmEntity:
    return entity.whole if entity.is_instance else entity


def values_by_gpu(content: PageValues) -> dict[DcgmEntity, dict[str, float]]:
    """Values of the GPUs on a dcgm-exporter's page, the highest of MIG instances; without utilisation under MIG."""
    by_gpu: dict[DcgmEntity, dict[str, float]] = {gpu: {} for gpu in content.gpus}
    for (entity, metric, further), merged in content.merged.items():
        gpu = _whole_gpu(entity)
        if gpu not in by_gpu or further or isinstance(merged.value, NoValue):
            continue
        if metric not in _UNAVAILABLE_UNDER_MIG or gpu not in content.split:
            values = by_gpu[gpu]
            values[metric] = max(merged.value, values.get(metric, merged.value))
    return by_gpu


def _checked_value(into: ReadingsBuilder, metric: str, labels: Labels, merged: MergedValue) -> float | NoValue:
    seconds = (into.time_ns - merged.time_ns) / 1e9 if merged.time_ns is not None else 0.0
    value = merged.value
    if seconds > STALE_SECONDS:
        return NoValue(MissingReason.UNREADABLE, f"its line is {seconds:.0f} s old")
    if isinstance(value, NoValue):
        return value
    if metric in _NO_SENSOR_IF_ZERO and value == 0.0:
        return NoValue(MissingReason.NOT_SUPPORTED, "0 °C: the board has no such sensor")
    known = BY_NAME.get(metric)
    raw = value if known is None or known.dcgm is None else value / known.dcgm.scale
    return into.checked(metric, value, labels, source="the page says", raw=raw)


def _derive_total(into: ReadingsBuilder, gpu: DcgmEntity, added: Mapping[tuple[DcgmEntity, str], float]) -> None:
    """The default page is without the total; it is the sum of its three parts, all of which must be known."""
    parts = [added.get((gpu, GPU + f"memory_{kind}_bytes")) for kind in ("used", "free", "reserved")]
    known = [part for part in parts if part is not None]
    if (gpu, _TOTAL) in added or len(known) < len(parts):
        return
    into.missing = [one for one in into.missing if (one.metric, one.labels) != (_TOTAL, gpu.labels)]  # a blank
    into.add_labelled(_TOTAL, sum(known), gpu.labels)


def _add_missing(
    into: ReadingsBuilder, gpu: DcgmEntity, on_page: set[str], of_any_gpu: set[str], *, is_split: bool
) -> None:
    for name in _WANTED_METRICS:
        if name in on_page or (is_split and name not in _WHOLE_GPU_METRICS):
            continue
        dcgm = BY_NAME[name].dcgm
        field = dcgm.name if dcgm else name
        if name in of_any_gpu:
            detail = "the page has it of other GPUs, not of this one: DCGM does not read it here"
        else:
            detail = f"the page is without {field}: add it to the exporter's list of fields"
        into.add_labelled(name, NoValue(MissingReason.NOT_SUPPORTED, detail), gpu.labels)


STALE_SECONDS = 95.0
"""Three of dcgm-exporter's default intervals (30 s)."""
_NO_SENSOR_IF_ZERO = frozenset({GPU + "memory_temperature_celsius"})
"""Boards without the sensor report 0."""
