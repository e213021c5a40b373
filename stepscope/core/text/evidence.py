"""Text of evidence: the numbers behind a verdict in one sentence."""

from __future__ import annotations

from itertools import groupby

from stepscope.core.documents.analysis import Analysis, UnknownKernels
from stepscope.core.text import numbers
from stepscope.core.text.wording import SHOWN_FROM, is_on_cpu, metric_words, reason_words
from stepscope.core.vocabulary import Cause, Evidence, Reason

_MEANINGS = {
    Cause.HOST_BOUND: "Kernel launches cannot keep up with the GPU",
    Cause.DATA_LOADING: "The GPU waits for the DataLoader",
    Cause.SYNCHRONIZATION: "Blocking calls keep the CPU from running ahead of the GPU",
    Cause.CHECKPOINT: "Training stops while checkpoints are saved",
    Cause.EVALUATION: "Training stops during evaluation",
    Cause.WASTED_STEPS: "The work of these steps is thrown away",
    Cause.COMMUNICATION: "No compute hides these transfers",
    Cause.IMBALANCE: "Some ranks have more work than others",
    Cause.STRAGGLER: "The same rank computes longer than its peers in every step",
    Cause.COPY: "No compute hides these copies",
    Cause.DEVICE_GAP: "Work was queued and the GPU had not started it",
    Cause.LATENCY_BOUND: "Kernels are too small to fill the GPU",
    Cause.THROTTLED: "The clock is lower in the slow steps",
    Cause.PROFILER: "The profiler itself takes this time",
    Cause.UNEXPLAINED: "Neither the step records nor the profiled steps show why",
}
"""What each cause means, as the beginning of a sentence."""

_MEANINGS_ON_CPU = {
    Cause.HOST_BOUND: "The CPU is in no operator",
    Cause.DATA_LOADING: "Training waits for the DataLoader",
    Cause.SYNCHRONIZATION: "Blocking calls stop the training loop",
    Cause.DEVICE_GAP: "Work was queued and had not started",
    Cause.COMPUTE_BOUND: "Which limits them (arithmetic or memory) is not known",
}
"""Instead of those above for a job without a GPU."""

_MEANINGS_OF_REASONS = {
    Reason.GC: "Python collects garbage",
    Reason.COMPILE: "torch compiles inside the step",
    Reason.OVERFLOW: "Gradients overflow and the updates are skipped",
    Reason.REPEATED: "A restart repeats steps that were done",
    Reason.GPU_SHARED: "Kernels pause and queued work does not start, as when another process has the GPU",
    Reason.CPU_LIMITED: "Threads are ready to run and have no CPU",
    Reason.SLOW_STORAGE: "Threads wait for storage",
    Reason.NO_WORKERS: "The training process makes the batches itself",
}
"""Instead of those above where this is the first reason."""

_CLAUSES = {
    "share_with_overlap": "it takes {value} of training time with what it overlaps with",
    "shared_with_another_cause": "{value} of training time is gained by either of two causes",
    "waiting_steps": "{value} of the steps wait for data",
    "spread_of_waits": "the waits vary by {value}",
    "period_of_waits": "a long wait every {value}",
    "longer_at_the_end": "the last fifth of the steps takes {value} longer than the first",
    "slow_steps": "{value} are slow",
    "slow_step_every": "one every {value}",
    "sm_clock_lower_by": "the SM clock is {value} lower",
    "throttled_time": "{subject} throttles the GPU for {value} of the loss",
    "gpu_shared_ratio": "another process is on the GPU for {value} of the loss",
    "other_process_memory": "{subject} has {value} of its memory",
    "other_processes": "{value} on the GPU",
    "other_memory": "other processes have {value} of its memory",
    "cgroup_throttled_ratio": "the cgroup's CPU limit stops its threads for {value} of the loss",
    "cgroup_cpu_limit": "the limit is {value}",
    "cpu_pressure_ratio": "threads of the cgroup wait for a CPU for {value} of the loss",
    "machine_cpu_pressure_ratio": "threads on the machine wait for a CPU for {value} of the loss",
    "io_pressure_ratio": "threads wait for storage for {value} of the loss",
    "io_wait_ratio": "CPUs wait for storage for {value} of the loss",
    "ethernet_rate": "{value} go over Ethernet",
    "infiniband_rate": "{value} over InfiniBand",
    "nic_errors_per_second": "network ports count {value} errors per second",
    "flight_recorder": "{ranks} {subject}",
    "memory_snapshot": "{subject}",
    "flight_recorder_dumps": "by {value}",
    "rank_state": "{ranks} {subject}",
    "step_open_for": "the step is open for {value}",
    "stuck_steps": "by reports of {value}",
    "memory_snapshots": "by {value}",
    "transport": "{ranks} use {subject}",
    "nccl_topology": "{subject}",
    "usable_cpus": "usable CPUs per rank = {value}",
    "share_caused_by_these_ranks": "{ranks} caused {value} of it",
    "share_of_late_host_time": "{value} of the delay is {subject}",
    "share_of_late_host_time_in_phase": "{value} of it in the phase {subject}",
    "share_of_late_host_time_in_function": "{value} of it in {subject}",
    "share_of_blocked_time_in_function": "{value} of the time in blocking calls in {subject}",
    "share_of_blocked_time": "{value} of the blocked time is {subject}",
    "blocking_calls_a_step": "{value} per step",
    "not_started_share_of_gaps": "{value} of the gaps are 1 ms or longer",
    "share_of_difference_by_more_kernels": "additional kernels make up {value} of the difference",
    "kernels_slower_by": "its kernels take {value} as long as its peers'",
    "share_of_time_slower_by_about_that": "for {value} of kernel time",
    "flops_above_peers": "{ranks} computes {value} its peers' FLOPs, in larger tensors",
    "pipeline_structural": "the schedule alone leaves {value} of the pipelined span empty",
    "pipeline_imbalance": "uneven stages add {value}",
    "pipeline_textbook": "the textbook's bubble is {value}",
    "bus_bandwidth": "collectives reach a bus bandwidth of {value}",
    "expected_bus_bandwidth": "the link's is {value}",
    "hidden_transfer": "compute hides {value} of the transfers",
    "small_message_share": "{value} of the transfer time is in small messages",
    "small_messages_per_step": "{value} per step",
    "arrivals_unknown": "arrivals are unknown for {value} of communication",
    "gradients_checked_for_nan": "{value} of the backward pass's operators are followed by a check for NaN",
    "recomputed_share_of_flops": "{value} of the FLOPs are recomputed",
    "no_tensor_cores_share": "matrix kernels without tensor cores take {value} of the profiled steps",
    "unfused_share": "element-wise chains that are not fused take {value} of the profiled steps",
    "inefficient_kernels_share": "kernels under 40% of their roofline take {value} of the profiled steps",
    "short_kernels_share": "{value} of it in kernels under 20 us",
    "few_blocks_share": "{value} of it in kernels of few blocks",
    "few_blocks_grid": "the largest of them has {value}",
    "few_blocks_duration": "and takes {value}",
    "tiny_kernels_share": "tiny kernels take {value} of the profiled steps",
    "tiny_share_of_kernels": "{value} of the kernels take under 10 us",
    "pageable_share_of_host_copies": "{value} of the copies between CPU and GPU are of pageable memory",
}
"""Clause of each metric; other metrics are named with their value."""

_FURTHER_CLAUSES = {
    "other_process_memory": "{subject} {value}",
    "share_of_late_host_time": "{value} {subject}",
    "share_of_late_host_time_in_phase": "{value} in {subject}",
    "share_of_late_host_time_in_function": "{value} in {subject}",
    "share_of_blocked_time_in_function": "{value} in {subject}",
    "share_of_blocked_time": "{value} {subject}",
    "blocking_calls_a_step": "{value} per step ({subject})",
}
"""Clauses after another one of the same metric."""

_SUBJECTS = {
    Reason.DISPATCH: "in operators and launch calls",
    Reason.PYTHON: "in Python between operators",
    Reason.OPERATORS_UNKNOWN: "outside of recorded calls",
    Reason.READS_VALUE: "for reading values (.item(), nonzero)",
    Reason.BLOCKING_COPY: "in blocking copies",
    Reason.EXPLICIT_SYNCHRONIZE: "in explicit synchronization",
    Reason.GC: "garbage collection",
    Reason.COMPILE: "compilation",
}
"""Reasons as subjects of clauses; others by their words."""

_SAID_ELSEWHERE = frozenset(
    {"fraction_of_step", "share_of_training_time", "what_if_step", "mfu", "unexplained", "unexplained_loss"}
)
"""Metrics that the head line or the fix has."""

_REASONS_FROM_THRESHOLD = frozenset({"spread_of_waits", "share_of_difference_by_more_kernels", "pipeline_imbalance"})
"""Metrics that explain nothing below their threshold, or near zero without one."""


def evidence_sentence(analysis: Analysis) -> str:
    """The evidence of a verdict as one sentence; empty where the head line says all."""
    shown = [evidence for evidence in analysis.verdict.evidence if _is_shown(evidence)]
    shown.sort(key=lambda evidence: _ORDER.get(_name(evidence), len(_ORDER)))
    groups = [list(group) for _, group in groupby(shown, key=_name)]
    clauses = ", ".join(_clause(evidence, is_first=evidence is group[0]) for group in groups for evidence in group)
    clauses = clauses or _by_records(analysis)
    meaning = _meaning(analysis)
    if meaning and clauses:
        return f"{meaning}: {clauses}."
    return f"{meaning or clauses[:1].upper() + clauses[1:]}." if meaning or clauses else ""


def _by_records(analysis: Analysis) -> str:
    """That the records of all steps measured the loss, where no other evidence is given."""
    time, fix = analysis.job_time, analysis.verdict.fix
    if time is None or time.num_settled is None or fix is None or fix.basis != "telemetry":
        return ""
    return f"measured in the records of {numbers.counted(time.num_settled, 'step')}"


def _is_shown(evidence: Evidence) -> bool:
    """Whether the evidence adds to the head line and the fix, and is a reason for the verdict."""
    is_reason = _name(evidence) not in _REASONS_FROM_THRESHOLD or evidence.value >= (evidence.threshold or SHOWN_FROM)
    return is_reason and _name(evidence) not in _SAID_ELSEWHERE


def _name(evidence: Evidence) -> str:
    return evidence.metric.partition(": ")[0]


_ORDER = {name: place for place, name in enumerate(_CLAUSES)}


def _meaning(analysis: Analysis) -> str:
    verdict = analysis.verdict
    of_reason = _MEANINGS_OF_REASONS.get(verdict.reasons[0]) if verdict.reasons else None
    on_cpu = _MEANINGS_ON_CPU.get(verdict.cause) if is_on_cpu(analysis.job) else None
    if verdict.cause is Cause.UNEXPLAINED and not analysis.ranks:  # no trace
        return "The step records do not show why"
    return of_reason or on_cpu or _MEANINGS.get(verdict.cause, "")


def _clause(evidence: Evidence, *, is_first: bool) -> str:
    name, _, subject = evidence.metric.partition(": ")
    value = evidence_value(evidence)
    if evidence.metric in _WITH_THRESHOLD and evidence.threshold is not None:
        value += f" (threshold {threshold_value(evidence)})"
    if name not in _CLAUSES:
        words = metric_words(evidence.metric)
        return f"{words[:1].lower()}{words[1:]} {value}"
    template = _CLAUSES[name] if is_first else _FURTHER_CLAUSES.get(name, _CLAUSES[name])
    words = _SUBJECTS.get(Reason(subject), reason_words(Reason(subject))) if subject in frozenset(Reason) else subject
    return template.format(value=value, subject=words, ranks=numbers.ranks_words(evidence.ranks))


_WITH_THRESHOLD = frozenset({"bus_bandwidth", "hidden_transfer", "small_message_share"})
"""Metrics whose value means little without the threshold."""

_ONE = {
    "other processes": "other process",
    "calls": "call",
    "batches": "batch",
    "times": "time",
    "steps": "step",
    "blocks": "block",
    "ranks": "rank",
    "flight recorder dumps": "flight recorder dump",
    "memory snapshots": "memory snapshot",
    "stuck steps": "stuck step",
    "ways": "way",
}
"""Singular of units that count things."""
_SMALLEST = 0.001
"""Smaller values than this are shown as '<0.001'."""
_TENTHS_FROM = 1.0
"""Milliseconds from which one decimal is shown."""


def evidence_value(evidence: Evidence) -> str:
    """The value of an evidence as text with its unit, shares in percent."""
    if evidence.unit == "ratio":
        return numbers.percent(evidence.value)
    number = _number(evidence.value, evidence.unit)
    unit = _ONE.get(evidence.unit, evidence.unit) if number == "1" else evidence.unit
    return f"{number} {unit}".rstrip()


def threshold_value(evidence: Evidence) -> str:
    """The threshold of an evidence as text, without its unit."""
    if evidence.threshold is None:
        return numbers.UNKNOWN
    is_share = evidence.unit == "ratio"
    return numbers.percent(evidence.threshold, decimals=0) if is_share else _number(evidence.threshold, evidence.unit)


def _number(value: float, unit: str) -> str:
    """Milliseconds with one decimal, as in all other lines; else three significant digits without an exponent."""
    if not abs(value) <= numbers.MAX_NUMBER:
        return numbers.UNKNOWN
    if unit == "ms" and abs(value) >= _TENTHS_FROM:
        return f"{value:,.1f}"
    return f"<{_SMALLEST:g}" if 0 < value < _SMALLEST else numbers.significant(value)


NOTABLE_UNKNOWN = 0.01
"""Share of kernel time in kernels of unknown names from which on it is told."""


def unknown_kernels_words(unknown: UnknownKernels | None) -> str:
    """Text: kernels whose names nobody knows, with their share of kernel time; "" where it is small."""
    if unknown is None or unknown.share < NOTABLE_UNKNOWN:
        return ""
    names = f" ({', '.join(numbers.short_kernel_name(name) for name in unknown.names)})" if unknown.names else ""
    return f"{numbers.counted(unknown.count, 'kernel')} with unknown names: {unknown.share:.1%} of kernel time{names}"
