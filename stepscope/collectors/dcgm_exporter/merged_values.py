"""Merged values of a page: one value for each metric and GPU, whatever lines the exporter repeats.

Lines are repeated for each job of a GPU (hpc_job), each pod of a time-sliced GPU and each MIG instance, mostly with the
value of the whole GPU: adding them up would count it many times (NVIDIA/dcgm-exporter#587, #638, #642).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepscope.collectors.dcgm_exporter.entities import (
    NO_WORKLOAD,
    Entity,
    Kind,
    LabelReader,
    Workload,
    facts_of,
    normalized_labels,
)
from stepscope.collectors.dcgm_exporter.fields import THROTTLE_FIELDS, FieldMeaning, meaning_of
from stepscope.collectors.dcgm_exporter.text_format import Page, Sample, parse_value
from stepscope.collectors.readings_builder import NoValue, scaled
from stepscope.core.metrics.gpu import GPU, PROFILING_METRICS, THROTTLE_REASONS
from stepscope.core.metrics.readings import Labels, MissingReason

_INSTANCE_METRICS = frozenset(
    {GPU + f"memory_{kind}_bytes" for kind in ("total", "used", "free", "reserved")}
    | {name for name in PROFILING_METRICS if name.endswith("_ratio")}
)
"""Metrics that a MIG instance has of its own. All else on its lines (power, temperature, XIDs) is the whole GPU's."""

ValueKey = tuple[Entity, str, Labels]
"""What a value is of, its metric, and further labels."""


@dataclass(slots=True)
class PageValues:
    """All values of a page, merged.

    Attributes:
        merged: one value for each key.
        gpus: whole GPUs on the page, in its order.
        split: those of them with MIG on, or with instances on the page.
        facts: of each GPU, by label of the info metric.
        workloads: of each GPU and instance, each once, in the order of the page.
        xid_texts: of each GPU, what the page says its last XID means.
    """

    merged: dict[ValueKey, MergedValue] = field(default_factory=dict)
    gpus: list[Entity] = field(default_factory=list)
    split: set[Entity] = field(default_factory=set)
    facts: dict[Entity, dict[str, str]] = field(default_factory=dict)
    workloads: dict[Entity, dict[Workload, None]] = field(default_factory=lambda: defaultdict(dict))
    xid_texts: dict[Entity, str] = field(default_factory=dict)


def merge_page(page: Page) -> PageValues:
    """Merge a page's samples. Raises nothing, whatever the page."""
    content = PageValues()
    distinct = {id(sample.labels): sample.labels for sample in page.samples}  # lines with the same labels share them
    plain_by_id = {labels_id: normalized_labels(labels) for labels_id, labels in distinct.items()}
    reader = LabelReader(plain_by_id.values())
    known: dict[Entity, Entity] = {}
    read_labels = {}
    for labels_id, plain in plain_by_id.items():
        entity, workload = _unified_instance(reader.entity(plain), known), reader.workload(plain)
        read_labels[labels_id] = plain, entity, workload
        if entity.kind in (Kind.GPU, Kind.GPU_LINK):
            _note_gpu(content, entity, plain, workload)
    lines: dict[ValueKey, list[LineValue]] = defaultdict(list)
    for sample in page.samples:
        plain, entity, workload = read_labels[id(sample.labels)]
        for meaning, one in _line_values(sample, entity, plain, workload):
            of = entity if entity.kind not in (Kind.GPU, Kind.GPU_LINK) else entity.whole
            further = meaning.further
            if entity.is_instance and meaning.metric in _INSTANCE_METRICS:
                of = entity
            elif entity.is_instance:
                one = replace(one, is_direct=False)
            if entity.kind is Kind.GPU_LINK and not any(name == "link" for name, _ in further):
                further = tuple(sorted((*further, ("link", entity.link))))
            lines[of, meaning.metric, further].append(one)
    content.merged = {key: merge_lines(ones) for key, ones in lines.items()}
    for gpu in content.gpus:
        mode = content.merged.get((gpu, GPU + "mig_enabled", ()))
        if mode is not None and mode.value == 1.0:
            content.split.add(gpu)
    return content


def _unified_instance(entity: Entity, known: dict[Entity, Entity]) -> Entity:
    """The instance with the UUID and profile that other lines may have of it."""
    if not entity.is_instance:
        return entity
    key = replace(entity, mig_profile="", mig_uuid="" if entity.gpu_instance else entity.mig_uuid)
    return known.setdefault(key, entity)


def _note_gpu(content: PageValues, entity: Entity, labels: Mapping[str, str], workload: Workload) -> None:
    whole = entity.whole
    if whole not in content.facts:
        content.gpus.append(whole)
        content.facts[whole] = {}
    for name, value in facts_of(labels).items():
        content.facts[whole].setdefault(name, value)
    if entity.is_instance:
        content.split.add(whole)
    used = entity if entity.is_instance else whole  # a link belongs to its GPU
    if workload != NO_WORKLOAD:
        content.workloads[used].setdefault(workload)
    if labels.get("errmsg"):
        content.xid_texts[whole] = labels["errmsg"]


def _line_values(
    sample: Sample, entity: Entity, labels: Mapping[str, str], workload: Workload
) -> Iterator[tuple[FieldMeaning, LineValue]]:
    """Values of one line, in base units."""
    value = parse_value(sample.text)
    if sample.name in THROTTLE_FIELDS and entity.kind is Kind.GPU:
        for bit, reason in THROTTLE_REASONS:
            one = value if isinstance(value, NoValue) else float(bool(int(value) & bit))
            meaning = FieldMeaning(GPU + "throttle_reason", 1.0, (("reason", reason),))
            yield meaning, LineValue(one, workload, time_ns=sample.time_ns)
        return
    found = meaning_of(sample.name, entity.kind, labels)
    if found is not None:
        one = value if isinstance(value, NoValue) else scaled(value, found.scale)
        yield found, LineValue(one, workload, time_ns=sample.time_ns)


@dataclass(frozen=True, slots=True)
class LineValue:
    """One line's value.

    Attributes:
        value: in base units, or why there is none.
        workload: to which it belongs.
        is_direct: the line is about the entity itself, not about a part of it.
        time_ns: the line's own time; None without.
    """

    value: float | NoValue
    workload: Workload
    is_direct: bool = True
    time_ns: int | None = None


@dataclass(frozen=True, slots=True)
class MergedValue:
    """One value of all lines about the same thing.

    Attributes:
        value: in base units, or why there is none.
        time_ns: as of the line.
        shares: each workload's own value, where the lines have one beside that of the whole.
    """

    value: float | NoValue
    time_ns: int | None
    shares: tuple[tuple[Workload, float], ...] = ()


def merge_lines(lines: Sequence[LineValue]) -> MergedValue:
    """One value of several lines about the same thing, at least one."""
    known = [(one.value, one) for one in lines if not isinstance(one.value, NoValue)]
    known = [pair for pair in known if pair[1].is_direct] or known
    if not known:
        return MergedValue(lines[0].value, lines[0].time_ns)
    plain = [pair for pair in known if pair[1].workload == NO_WORKLOAD]
    chosen = plain or known
    values = sorted({value for value, _ in chosen})
    time_ns = chosen[0][1].time_ns
    if len(values) > 1:
        words = ", ".join(f"{value:g}" for value in values[:3])
        why = NoValue(MissingReason.UNREADABLE, f"the page has {len(values)} values for it: {words}")
        return MergedValue(why, time_ns)
    shares = tuple((one.workload, value) for value, one in known if plain and one.workload != NO_WORKLOAD)
    return MergedValue(values[0], time_ns, shares)
