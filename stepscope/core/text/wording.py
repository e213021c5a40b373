"""Wording of causes, categories, reasons, metrics, meshes and devices, as titles and in sentences."""

from __future__ import annotations

import re

from stepscope.core.documents.analysis import Job, MeshSizes, Pipeline
from stepscope.core.documents.evidence import Evidence
from stepscope.core.text.numbers import is_readable, milliseconds
from stepscope.core.vocabulary.categories import TimeCategory
from stepscope.core.vocabulary.causes import Cause, Reason

_METRIC_WORDS = {
    "fraction_of_step": "Share of the captured time",
    "share_caused_by_these_ranks": "Caused by these ranks",
    "pipeline_structural": "Bubble by the schedule alone",
    "pipeline_imbalance": "Bubble by uneven stages",
    "pipeline_textbook": "Bubble by the textbook",
    "unexplained": "Unexplained share",
    "mfu": "Model FLOP/s utilization",
    "bus_bandwidth": "Bus bandwidth reached",
    "expected_bus_bandwidth": "Bus bandwidth of the link",
    "hidden_transfer": "Transfer hidden by compute",
    "small_message_share": "Transfer in small messages",
    "small_messages_per_step": "Small messages a step",
    "what_if_step": "Step with that change",
    "unexplained_loss": "Waiting or idling that nothing explains",
    "steps_without_device": "Steps without device activity",
    "largest_activity": "Largest single activity",
    "arrivals_unknown": "Communication with unknown arrivals",
    "share_of_late_host_time": "Late host time",
    "share_of_late_host_time_in_phase": "Late host time in phase",
    "share_of_blocked_time": "Blocked host time",
    "blocking_calls_a_step": "Blocking calls a step",
    "spread_of_waits": "Spread of the waits for data",
    "period_of_waits": "Long waits for data come every",
    "share_of_difference_by_more_kernels": "Share of the difference by additional kernels",
    "kernels_slower_by": "Kernel time against the peers'",
    "share_of_time_slower_by_about_that": "Kernel time slower by about that factor",
    "recomputed_share_of_flops": "FLOPs that are recomputed",
    "no_tensor_cores_share": "Time in matrix kernels without tensor cores",
    "inefficient_kernels_share": "Time in kernels far from their limit",
    "unfused_share": "Time in element-wise chains that are not fused",
    "tiny_kernels_share": "Time in tiny kernels",
    "tiny_share_of_kernels": "Kernels that are tiny",
    "pageable_share_of_host_copies": "Host copies from or to pageable memory",
}
"""Of what the analysis of traces puts into evidence; what a figure is about stands behind a colon in its name."""


_FORMULA_MINUS = re.compile(r"(?<=\b[A-Z])-(?=[A-Z0-9]\b)")

_CAUSE_WORDS = {
    Cause.COMPUTE_BOUND: "Compute bound",
    Cause.LATENCY_BOUND: "Small kernels",
    Cause.HOST_BOUND: "Host bound",
    Cause.PROFILER: "Profiler overhead",
    Cause.BEFORE_WINDOW: "Began before the trace",
    Cause.INSUFFICIENT_EVIDENCE: "Not enough evidence",
    Cause.IDLE: "No job on the GPU",
    Cause.COPY: "Memory copies",
    Cause.DEVICE_GAP: "Gaps between kernels",
}

_CATEGORY_WORDS = {
    TimeCategory.COMPUTE_BOUND: "Compute bound",
    TimeCategory.MEMORY_BOUND: "Memory bound",
    TimeCategory.LATENCY_BOUND: "Small kernels",
    TimeCategory.COMPUTE_OTHER: "Other compute",
    TimeCategory.COMMUNICATION: "Communication",
    TimeCategory.WAIT: "Waiting for a rank",
    TimeCategory.BUBBLE: "Pipeline bubble",
    TimeCategory.COMMUNICATION_UNSPLIT: "Communication or waiting",
    TimeCategory.COPY: "Memory copies",
    TimeCategory.DATA_LOADING: "Data loading",
    TimeCategory.CHECKPOINT: "Checkpoint",
    TimeCategory.SYNCHRONIZATION: "Synchronization",
    TimeCategory.HOST_BOUND: "Host bound",
    TimeCategory.DEVICE_GAP: "Gaps between kernels",
    TimeCategory.PROFILER: "Profiler overhead",
    TimeCategory.IDLE_OTHER: "Idle, unexplained",
}

CATEGORY_MEANINGS = {
    TimeCategory.COMPUTE_BOUND: "a kernel runs whose arithmetic is its larger floor",
    TimeCategory.MEMORY_BOUND: "a kernel runs whose memory traffic is its larger floor",
    TimeCategory.LATENCY_BOUND: "a kernel runs that is too small to fill the GPU",
    TimeCategory.COMPUTE_OTHER: "a kernel runs, what limits it is not known",
    TimeCategory.COMMUNICATION: "only communication runs and everyone has arrived: the transfer itself",
    TimeCategory.WAIT: "only communication runs and a participant has not arrived yet",
    TimeCategory.BUBBLE: "waiting that the pipeline's own schedule explains",
    TimeCategory.COMMUNICATION_UNSPLIT: "only communication runs, arrivals are unknown",
    TimeCategory.COPY: "only copies run",
    TimeCategory.DATA_LOADING: "nothing runs: the host is in the data loader",
    TimeCategory.CHECKPOINT: "nothing runs: the host writes a checkpoint",
    TimeCategory.SYNCHRONIZATION: "nothing runs: the host had waited for the GPU",
    TimeCategory.HOST_BOUND: "nothing runs: the host has not launched the next kernel yet",
    TimeCategory.DEVICE_GAP: "nothing runs although the next kernel is queued",
    TimeCategory.PROFILER: "nothing runs: the profiler is at work",
    TimeCategory.IDLE_OTHER: "nothing runs and the trace does not say why",
}
"""What each heading books, after 'at this instant'."""


def cause_words(cause: Cause) -> str:
    """A cause as a title: 'Pipeline bubble'."""
    return _CAUSE_WORDS.get(cause) or _sentence(cause.value)


def cause_phrase(cause: Cause) -> str:
    """A cause inside a sentence or in a table of plain text: 'pipeline bubble', 'gaps between kernels'."""
    return _inside(cause_words(cause))


def category_phrase(heading: TimeCategory) -> str:
    """A heading inside a sentence or in a table of plain text: 'waiting for a rank'."""
    return _inside(category_words(heading))


def category_words(heading: TimeCategory) -> str:
    """A heading as a title: 'Waiting for a rank'."""
    return _CATEGORY_WORDS.get(heading) or _sentence(heading.value)


def bubble_parts(pipeline: Pipeline) -> list[tuple[str, float, TimeCategory, str]]:
    """A pipeline's bubble and what it is made of: name, share, the heading whose colour it has, meaning."""
    return [
        (
            "Measured",
            pipeline.measured,
            TimeCategory.BUBBLE,
            "share of the pipelined span in which a stage does not compute",
        ),
        ("Structural", pipeline.structural, TimeCategory.BUBBLE, "the schedule alone, all stages equally fast"),
        ("Imbalance", pipeline.imbalance, TimeCategory.WAIT, "what uneven stages add"),
        ("Variance", pipeline.variance, TimeCategory.DEVICE_GAP, "what differences from step to step add"),
        ("Textbook", pipeline.textbook, TimeCategory.IDLE_OTHER, "(P − 1) / (v·M + P − 1), for comparison only"),
    ]


def reason_words(reason: Reason) -> str:
    """A reason as words: 'few micro batches'."""
    return reason.value.replace("_", " ")


_IN_A_PHASE = "share_of_late_host_time_in_phase"
"""Phases are called as the training script calls them: to be found there."""


def metric_words(metric: str) -> str:
    """A metric's name as words: 'Bubble by uneven stages', of one of several 'Late host time (dispatch)'."""
    name, _, of_what = metric.partition(": ")
    words = _METRIC_WORDS.get(name) or _sentence(name.replace(".", " "))
    shown = of_what if name == _IN_A_PHASE else of_what.replace("_", " ")
    return f"{words} ({shown})" if of_what else words


def action_words(action: str) -> str:
    """An action as it is, its formulas with a true minus: a line breaks after a hyphen and would tear 'P-1' apart."""
    return _FORMULA_MINUS.sub("−", action)


def mesh_words(mesh: MeshSizes) -> str:
    """The parallel layout: 'TP 2 × PP 2 × DP 2, EP 4 inside'; dimensions that are not known are left out.

    Experts are spread over ranks that the other dimensions already count.
    """
    sizes = {name: getattr(mesh, name) for name in ("tp", "pp", "dp", "cp")}
    product = " × ".join(f"{name.upper()} {number}" for name, number in sizes.items() if is_readable(number))
    experts = f"EP {mesh.ep}" if is_readable(mesh.ep) else ""
    return f"{product}, {experts} inside" if product and experts else product or experts


def device_words(job: Job) -> str:
    """What the job ran on: the driver's name for it, else what kind of device was seen at work."""
    kind = "GPU (name not recorded)" if job.device_kind == "gpu" else "CPU"
    return (job.gpu or kind) + (", simulated compute" if job.simulated_compute else "")


def evidence_span(evidence: Evidence) -> str:
    """How long the evidence's span is, or nothing."""
    return milliseconds((evidence.span[1] - evidence.span[0]) / 1e6) if evidence.span else ""


def _inside(words: str) -> str:
    return words[:1].lower() + words[1:]


def _sentence(name: str) -> str:
    words = name.replace("_", " ").strip()
    return words[:1].upper() + words[1:]
