"""Merged values of a page: the metric of each DCGM field, and one value of all lines that the exporter repeats.

Lines are repeated for each job of a GPU (hpc_job), each pod of a time-sliced GPU and each MIG instance, mostly with the
value of the whole GPU: adding them up would count it many times (NVIDIA/dcgm-exporter#587, #638, #642).

Fields have three spellings: DCGM's own, those of DCGM 4.6 (both in `core.metrics.gpu`), and those of dcgm-exporter 1.x
(etc/1.x-compatibility-metrics.csv). The 1.x violation counters are left out: their unit changed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepscope.collectors.dcgm_exporter import entities
from stepscope.collectors.dcgm_exporter.page import DcgmPage, PageSample, parse_dcgm_value
from stepscope.collectors.readings_builder import NoValue, scaled
from stepscope.core.hardware.fabric import fabric_health, fabric_states, fabric_summary
from stepscope.core.metrics import Metric
from stepscope.core.metrics.gpu import BY_DCGM_NAME, FABRIC_METRICS, PROFILING_METRICS, THROTTLE_REASONS
from stepscope.core.metrics.host import CPU_METRICS_OF_DCGM
from stepscope.core.metrics.readings import GPU, Labels, MissingReason, labels_of

_INSTANCE_METRICS = frozenset(
    {GPU + f"memory_{kind}_bytes" for kind in ("total", "used", "free", "reserved")}
    | {name for name in PROFILING_METRICS if name.endswith("_ratio")}
)
"""Metrics that a MIG instance has of its own. All else on its lines (power, temperature, XIDs) is the whole GPU's."""

ValueKey = tuple[entities.DcgmEntity, str, Labels]
"""What a value is of, its metric, and further labels."""


@dataclass(slots=True)
class PageValues:
    """All values of a dcgm-exporter's page, merged.

    Attributes:
        gpus: whole GPUs on the page, in its order.
        split: those of them with MIG on, or with instances on the page.
        facts: of each GPU, by label of the info metric.
        workloads: of each GPU and instance, each once, in the order of the page.
        xid_texts: of each GPU, what the page says its last XID means.
    """

    merged: dict[ValueKey, MergedValue] = field(default_factory=dict)
    gpus: list[entities.DcgmEntity] = field(default_factory=list)
    split: set[entities.DcgmEntity] = field(default_factory=set)
    facts: dict[entities.DcgmEntity, dict[str, str]] = field(default_factory=dict)
    workloads: dict[entities.DcgmEntity, dict[entities.Workload, None]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    xid_texts: dict[entities.DcgmEntity, str] = field(default_factory=dict)


def merge_dcgm_page(page: DcgmPage) -> PageValues:
    """Merge the samples of a dcgm-exporter's page. Raises nothing, whatever the page."""
    content = PageValues()
    distinct = {id(sample.labels): sample.labels for sample in page.samples}  # lines with the same labels share them
    plain_by_id = {labels_id: entities.normalized_labels(labels) for labels_id, labels in distinct.items()}
    reader = entities.LabelReader(plain_by_id.values())
    known: dict[entities.DcgmEntity, entities.DcgmEntity] = {}
    read_labels = {}
    for labels_id, plain in plain_by_id.items():
        entity, workload = _unified_instance(reader.entity(plain), known), reader.workload(plain)
        read_labels[labels_id] = plain, entity, workload
        if entity.kind in (entities.DcgmEntityKind.GPU, entities.DcgmEntityKind.GPU_LINK):
            _note_gpu(content, entity, plain, workload)
    lines: dict[ValueKey, list[LineValue]] = defaultdict(list)
    for sample in page.samples:
        plain, entity, workload = read_labels[id(sample.labels)]
        for meaning, one in _line_values(sample, entity, plain, workload):
            of = (
                entity
                if entity.kind not in (entities.DcgmEntityKind.GPU, entities.DcgmEntityKind.GPU_LINK)
                else entity.whole
            )
            further = meaning.further
            if entity.is_instance and meaning.metric in _INSTANCE_METRICS:
                of = entity
            elif entity.is_instance:
                one = replace(one, is_direct=False)
            if entity.kind is entities.DcgmEntityKind.GPU_LINK and not any(name == "link" for name, _ in further):
                further = tuple(sorted((*further, ("link", entity.link))))
            lines[of, meaning.metric, further].append(one)
    content.merged = {key: merge_lines(ones) for key, ones in lines.items()}
    for gpu in content.gpus:
        mode = content.merged.get((gpu, GPU + "mig_enabled", ()))
        if mode is not None and mode.value == 1.0:
            content.split.add(gpu)
    return content


def _unified_instance(
    entity: entities.DcgmEntity, known: dict[entities.DcgmEntity, entities.DcgmEntity]
) -> entities.DcgmEntity:
    """The instance with the UUID and profile that other lines may have of it."""
    if not entity.is_instance:
        return entity
    key = replace(entity, mig_profile="", mig_uuid="" if entity.gpu_instance else entity.mig_uuid)
    return known.setdefault(key, entity)


def _note_gpu(
    content: PageValues, entity: entities.DcgmEntity, labels: Mapping[str, str], workload: entities.Workload
) -> None:
    whole = entity.whole
    if whole not in content.facts:
        content.gpus.append(whole)
        content.facts[whole] = {}
    for name, value in entities.gpu_facts_of_labels(labels).items():
        content.facts[whole].setdefault(name, value)
    if entity.is_instance:
        content.split.add(whole)
    used = entity if entity.is_instance else whole  # a link belongs to its GPU
    if workload != entities.NO_WORKLOAD:
        content.workloads[used].setdefault(workload)
    if labels.get("errmsg"):
        content.xid_texts[whole] = labels["errmsg"]


def _line_values(
    sample: PageSample, entity: entities.DcgmEntity, labels: Mapping[str, str], workload: entities.Workload
) -> Iterator[tuple[FieldMeaning, LineValue]]:
    """Values of one line, in base units."""
    value = parse_dcgm_value(sample.text)
    if sample.name in THROTTLE_FIELDS and entity.kind is entities.DcgmEntityKind.GPU:
        for bit, reason in THROTTLE_REASONS:
            one = value if isinstance(value, NoValue) else float(bool(int(value) & bit))
            meaning = FieldMeaning(GPU + "throttle_reason", 1.0, (("reason", reason),))
            yield meaning, LineValue(one, workload, time_ns=sample.time_ns)
        return
    if sample.name in _FABRIC_FIELDS and entity.kind is entities.DcgmEntityKind.GPU:
        if not isinstance(value, NoValue):
            metric, label, parts_of = _FABRIC_FIELDS[sample.name]
            for part, of_part in parts_of(int(value)).items():
                meaning = FieldMeaning(GPU + metric, 1.0, ((label, part),))
                yield meaning, LineValue(of_part, workload, time_ns=sample.time_ns)
        return
    found = dcgm_field_meaning(sample.name, entity.kind, labels)
    if found is not None:
        one = value if isinstance(value, NoValue) else scaled(value, found.scale)
        yield found, LineValue(one, workload, time_ns=sample.time_ns)


@dataclass(frozen=True, slots=True)
class LineValue:
    """The value of one line of a dcgm-exporter's page.

    Attributes:
        value: in base units, or why there is none.
        is_direct: the line is about the entity itself, not about a part of it.
        time_ns: the line's own time; None without.
    """

    value: float | NoValue
    workload: entities.Workload
    is_direct: bool = True
    time_ns: int | None = None


@dataclass(frozen=True, slots=True)
class MergedValue:
    """One value of all lines of a dcgm-exporter's page about the same thing.

    Attributes:
        value: in base units, or why there is none.
        shares: each workload's own value, where the lines have one beside that of the whole.
    """

    value: float | NoValue
    time_ns: int | None
    shares: tuple[tuple[entities.Workload, float], ...] = ()


def merge_lines(lines: Sequence[LineValue]) -> MergedValue:
    """One value of several lines of a dcgm-exporter's page about the same thing, at least one."""
    known = [(one.value, one) for one in lines if not isinstance(one.value, NoValue)]
    known = [pair for pair in known if pair[1].is_direct] or known
    if not known:
        return MergedValue(lines[0].value, lines[0].time_ns)
    plain = [pair for pair in known if pair[1].workload == entities.NO_WORKLOAD]
    chosen = plain or known
    values = sorted({value for value, _ in chosen})
    time_ns = chosen[0][1].time_ns
    if len(values) > 1:
        words = ", ".join(f"{value:g}" for value in values[:3])
        why = NoValue(MissingReason.UNREADABLE, f"the page has {len(values)} values for it: {words}")
        return MergedValue(why, time_ns)
    shares = tuple((one.workload, value) for value, one in known if plain and one.workload != entities.NO_WORKLOAD)
    return MergedValue(values[0], time_ns, shares)


_VERSION_1 = {
    "dcgm_sm_clock": "sm_clock_hertz",
    "dcgm_memory_clock": "memory_clock_hertz",
    "dcgm_memory_temp": "memory_temperature_celsius",
    "dcgm_gpu_temp": "temperature_celsius",
    "dcgm_power_usage": "power_watts",
    "dcgm_total_energy_consumption": "energy_joules_total",
    "dcgm_pcie_replay_counter": "pcie_replays_total",
    "dcgm_gpu_utilization": "utilization_ratio",
    "dcgm_mem_copy_utilization": "memory_bandwidth_busy_ratio",
    "dcgm_enc_utilization": "encoder_utilization_ratio",
    "dcgm_dec_utilization": "decoder_utilization_ratio",
    "dcgm_xid_errors": "xid_last",
    "dcgm_fb_free": "memory_free_bytes",
    "dcgm_fb_used": "memory_used_bytes",
    "dcgm_ecc_sbe_volatile_total": "ecc_corrected_errors_total",
    "dcgm_ecc_dbe_volatile_total": "ecc_uncorrected_errors_total",
    "dcgm_ecc_sbe_aggregate_total": "ecc_lifetime_corrected_errors_total",
    "dcgm_ecc_dbe_aggregate_total": "ecc_lifetime_uncorrected_errors_total",
    "dcgm_retired_pages_sbe": "retired_pages_corrected_total",
    "dcgm_retired_pages_dbe": "retired_pages_uncorrected_total",
    "dcgm_retired_pages_pending": "retired_pages_pending",
    "dcgm_nvlink_flit_crc_error_count_total": "nvlink_crc_flit_errors_total",
    "dcgm_nvlink_data_crc_error_count_total": "nvlink_crc_data_errors_total",
    "dcgm_nvlink_replay_error_count_total": "nvlink_replay_errors_total",
    "dcgm_nvlink_recovery_error_count_total": "nvlink_recovery_errors_total",
    "dcgm_nvlink_bandwidth_total": "nvlink_data_bytes_per_second",
}
_LINK_ERROR = re.compile(
    r"DCGM_FI_DEV_NVLINK_(CRC_FLIT|CRC_DATA|REPLAY|RECOVERY)_ERROR_"
    r"(?:COUNT_L(\d+)|L(\d+)_TOTAL|(PER_LINK_TOTAL|COUNT_TOTAL|TOTAL))"
)


@dataclass(frozen=True, slots=True)
class FieldMeaning:
    """Meaning of a DCGM field of a dcgm-exporter's page.

    Attributes:
        scale: our value = its value x scale.
        further: labels taken from the field's name.
    """

    metric: str
    scale: float
    further: Labels = ()


def _all_meanings() -> dict[str, FieldMeaning]:
    rows: list[Metric] = [*BY_DCGM_NAME.values(), *FABRIC_METRICS, *CPU_METRICS_OF_DCGM]
    known = {}
    for metric in rows:
        if metric.dcgm:
            for name in (metric.dcgm.name, metric.dcgm.new_name):
                known[name] = FieldMeaning(metric.name, metric.dcgm.scale)
    by_metric = {meaning.metric: meaning for meaning in known.values()}
    known |= {name: by_metric[GPU + metric] for name, metric in _VERSION_1.items()}
    first_profiling = {name.lower(): meaning for name, meaning in known.items() if name.startswith("DCGM_FI_PROF_")}
    return known | first_profiling


_MEANINGS = _all_meanings()
LINK_ERRORS = "nvlink_link_errors_total"
_DATA_LAYER = {
    "DCGM_FI_DEV_NVLINK_ERROR_DL_REPLAY": "replay",
    "DCGM_FI_DEV_NVLINK_REPLAY_TOTAL": "replay",
    "DCGM_FI_DEV_NVLINK_ERROR_DL_RECOVERY": "recovery",
    "DCGM_FI_DEV_NVLINK_RECOVERY_TOTAL": "recovery",
}
"""Errors that DCGM's NVLink watch reads without a link, beside those of all links."""


_XID = re.compile(r"[0-9]{1,6}", re.ASCII)
THROTTLE_FIELDS = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
_FABRIC_FIELDS: dict[str, tuple[str, str, Callable[[int], dict[str, float]]]] = {
    "DCGM_FI_DEV_FABRIC_MANAGER_STATUS": ("fabric_state", "state", fabric_states),
    "DCGM_FI_DEV_FABRIC_HEALTH_MASK": ("fabric_health", "aspect", fabric_health),
    "DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY": ("fabric_health", "aspect", fabric_summary),
}
"""Metric, its label, and its values by the field's number."""
_CLOCK_EVENTS = {
    "gpu_idle": "idle",
    "clocks_setting": "application_clocks",
    "power_cap": "software_power_cap",
    "hw_slowdown": "hardware_slowdown",
    "sw_thermal": "software_thermal",
    "hw_thermal": "hardware_thermal",
    "hw_power_brake": "hardware_power_brake",
}
"""dcgm-exporter's words where they differ from ours."""


def dcgm_field_meaning(field: str, kind: entities.DcgmEntityKind, labels: Mapping[str, str]) -> FieldMeaning | None:
    """Meaning of the field of a dcgm-exporter's sample, None where we have no such metric.

    Args:
        kind: of the sample's entity. DCGM has one name for an NVLink's errors and for those of all links of a GPU.
    """
    if kind is entities.DcgmEntityKind.NONE:
        return None
    if field.startswith("DCGM_EXP_"):
        return _exporter_series(field, labels)
    if kind in (entities.DcgmEntityKind.GPU, entities.DcgmEntityKind.GPU_LINK):
        if field in _DATA_LAYER:
            return FieldMeaning(GPU + LINK_ERRORS, 1.0, (("kind", _DATA_LAYER[field]),))
        match = _LINK_ERROR.fullmatch(field)
        if match and (kind is entities.DcgmEntityKind.GPU_LINK or not match[4]):
            further = {"kind": match[1].lower(), "link": match[2] or match[3]}
            return FieldMeaning(GPU + LINK_ERRORS, 1.0, labels_of(**{k: v for k, v in further.items() if v}))
    meaning = _MEANINGS.get(field)
    return meaning if meaning and (kind is entities.DcgmEntityKind.GPU) == meaning.metric.startswith(GPU) else None


def _exporter_series(field: str, labels: Mapping[str, str]) -> FieldMeaning | None:
    """Series that dcgm-exporter makes itself, which differ in their labels."""
    milliseconds = labels.get("windowsizeinms", "")
    has_window = milliseconds.isdecimal() and len(milliseconds) < 16
    window = {"window_seconds": f"{int(milliseconds) / 1000:g}"} if has_window else {}
    xid = labels.get("xid", "")
    if field == "DCGM_EXP_XID_ERRORS_COUNT" and _XID.fullmatch(xid):  # without the label it is a 0 for all XIDs
        return FieldMeaning(GPU + "xid_recent", 1.0, labels_of(xid=xid, **window))
    if field == "DCGM_EXP_CLOCK_EVENTS_COUNT" and labels.get("clockevent"):
        event = labels["clockevent"]
        return FieldMeaning(GPU + "throttle_recent", 1.0, labels_of(reason=_CLOCK_EVENTS.get(event, event), **window))
    if field == "DCGM_EXP_GPU_HEALTH_STATUS" and labels.get("healthwatch"):
        further = labels_of(watch=labels["healthwatch"].lower(), error=labels.get("healtherrorcode", ""))
        return FieldMeaning(GPU + "dcgm_health_status", 1.0, further)
    if field == "DCGM_EXP_P2P_STATUS" and labels.get("peergpu"):
        further = labels_of(peer=labels["peergpu"], status=labels.get("linkstatus", ""))
        return FieldMeaning(GPU + "p2p_status", 1.0, further)
    return None
