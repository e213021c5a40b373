"""How does a number or a name read to a person?"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TypeGuard

from stepscope.core.analysis import Evidence, Job, MeshSizes, Pipeline
from stepscope.core.causes import Cause, Reason
from stepscope.core.headings import Heading

UNKNOWN = "–"
_NARROW_SPACE = "\u202f"

MAX_NUMBER = 1e15
"""Whatever is larger is a damaged file's: milliseconds are 30 000 years then, bytes a petabyte, shares absurd."""

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

_LATEST_NS = 2**63 - 1
"""The year 2262: the last one that ns in a signed integer of 64 bits reach."""

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

_HEADING_WORDS = {
    Heading.COMPUTE_BOUND: "Compute bound",
    Heading.MEMORY_BOUND: "Memory bound",
    Heading.LATENCY_BOUND: "Small kernels",
    Heading.COMPUTE_OTHER: "Other compute",
    Heading.COMMUNICATION: "Communication",
    Heading.WAIT: "Waiting for a rank",
    Heading.BUBBLE: "Pipeline bubble",
    Heading.COMMUNICATION_UNSPLIT: "Communication or waiting",
    Heading.COPY: "Memory copies",
    Heading.DATA_LOADING: "Data loading",
    Heading.CHECKPOINT: "Checkpoint",
    Heading.SYNCHRONIZATION: "Synchronization",
    Heading.HOST_BOUND: "Host bound",
    Heading.DEVICE_GAP: "Gaps between kernels",
    Heading.PROFILER: "Profiler overhead",
    Heading.IDLE_OTHER: "Idle, unexplained",
}

HEADING_MEANINGS = {
    Heading.COMPUTE_BOUND: "a kernel runs whose arithmetic is its larger floor",
    Heading.MEMORY_BOUND: "a kernel runs whose memory traffic is its larger floor",
    Heading.LATENCY_BOUND: "a kernel runs that is too small to fill the GPU",
    Heading.COMPUTE_OTHER: "a kernel runs, what limits it is not known",
    Heading.COMMUNICATION: "only communication runs and everyone has arrived: the transfer itself",
    Heading.WAIT: "only communication runs and a participant has not arrived yet",
    Heading.BUBBLE: "waiting that the pipeline's own schedule explains",
    Heading.COMMUNICATION_UNSPLIT: "only communication runs, arrivals are unknown",
    Heading.COPY: "only copies run",
    Heading.DATA_LOADING: "nothing runs: the host is in the data loader",
    Heading.CHECKPOINT: "nothing runs: the host writes a checkpoint",
    Heading.SYNCHRONIZATION: "nothing runs: the host had waited for the GPU",
    Heading.HOST_BOUND: "nothing runs: the host has not launched the next kernel yet",
    Heading.DEVICE_GAP: "nothing runs although the next kernel is queued",
    Heading.PROFILER: "nothing runs: the profiler is at work",
    Heading.IDLE_OTHER: "nothing runs and the trace does not say why",
}
"""What each heading books, after 'at this instant'."""


def cause_words(cause: Cause) -> str:
    """A cause as a title: 'Pipeline bubble'."""
    return _CAUSE_WORDS.get(cause) or _sentence(cause.value)


def cause_phrase(cause: Cause) -> str:
    """A cause inside a sentence or in a table of plain text: 'pipeline bubble', 'gaps between kernels'."""
    return _inside(cause_words(cause))


def heading_phrase(heading: Heading) -> str:
    """A heading inside a sentence or in a table of plain text: 'waiting for a rank'."""
    return _inside(heading_words(heading))


def heading_words(heading: Heading) -> str:
    """A heading as a title: 'Waiting for a rank'."""
    return _HEADING_WORDS.get(heading) or _sentence(heading.value)


def bubble_parts(pipeline: Pipeline) -> list[tuple[str, float, Heading, str]]:
    """A pipeline's bubble and what it is made of: name, share, the heading whose colour it has, meaning."""
    return [
        (
            "Measured",
            pipeline.measured,
            Heading.BUBBLE,
            "share of the pipelined span in which a stage does not compute",
        ),
        ("Structural", pipeline.structural, Heading.BUBBLE, "the schedule alone, all stages equally fast"),
        ("Imbalance", pipeline.imbalance, Heading.WAIT, "what uneven stages add"),
        ("Variance", pipeline.variance, Heading.DEVICE_GAP, "what differences from step to step add"),
        ("Textbook", pipeline.textbook, Heading.IDLE_OTHER, "(P − 1) / (v·M + P − 1), for comparison only"),
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


def percent(fraction: float | None, *, decimals: int = 1) -> str:
    """0.314 -> '31.4 %'; what is there but rounds to nothing is '<0.1 %'."""
    if not _can_be_read(fraction):
        return UNKNOWN
    if decimals and 0 < fraction < 0.0005:
        return f"<0.1{_NARROW_SPACE}%"
    return f"{_no_minus_zero(f'{fraction * 100:.{decimals}f}')}{_NARROW_SPACE}%"


def milliseconds(value: float | None) -> str:
    """Three significant digits with the unit that fits: '34.6 ms', '1.24 s', '870 µs'."""
    if not _can_be_read(value):
        return UNKNOWN
    size = abs(value)
    if size == 0:
        return f"0{_NARROW_SPACE}ms"
    if size >= 999.5:
        return f"{_digits(value / 1000)}{_NARROW_SPACE}s"
    if size < 0.9995:
        return f"{_digits(value * 1000)}{_NARROW_SPACE}µs"
    return f"{_digits(value)}{_NARROW_SPACE}ms"


def size(num_bytes: int | None) -> str:
    """Bytes in binary units: '64.0 MiB'."""
    if not _can_be_read(num_bytes) or num_bytes < 0:
        return UNKNOWN
    amount = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1023.95:
            return f"{num_bytes}{_NARROW_SPACE}B" if unit == "B" else f"{amount:.1f}{_NARROW_SPACE}{unit}"
        amount /= 1024
    return f"{amount:.1f}{_NARROW_SPACE}TiB"


def bandwidth(value_gbs: float | None) -> str:
    """GB/s with three significant digits."""
    return f"{_digits(value_gbs)}{_NARROW_SPACE}GB/s" if _can_be_read(value_gbs) and value_gbs >= 0 else UNKNOWN


def count(number: int | None) -> str:
    """A whole number with thousands apart: '12 345'."""
    return f"{number:,}".replace(",", _NARROW_SPACE) if _can_be_read(number) and number >= 0 else UNKNOWN


def ranks_words(ranks: list[int], *, world_size: int | None = None) -> str:
    """[0, 1, 2, 5] -> 'ranks 0–2, 5'; all of several -> 'all 8 ranks', 'both ranks'."""
    if not ranks:
        return "no rank in particular"
    ordered = sorted(set(ranks))
    if world_size is not None and len(ordered) == world_size > 1:
        return "both ranks" if world_size == 2 else f"all {world_size} ranks"
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {number_runs(ordered)}"


def number_runs(numbers: Iterable[int], *, dash: str = "–") -> str:
    """Ascending numbers: [0, 1, 2, 5] -> '0–2, 5'."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join(dash.join(map(str, run)) for run in runs)


def mesh_words(mesh: MeshSizes) -> str:
    """The parallel layout: 'TP 2 × PP 2 × DP 2, EP 4 inside'; dimensions that are not known are left out.

    Experts are spread over ranks that the other dimensions already count.
    """
    sizes = {name: getattr(mesh, name) for name in ("tp", "pp", "dp", "cp")}
    product = " × ".join(f"{name.upper()} {number}" for name, number in sizes.items() if _can_be_read(number))
    experts = f"EP {mesh.ep}" if _can_be_read(mesh.ep) else ""
    return f"{product}, {experts} inside" if product and experts else product or experts


def device_words(job: Job) -> str:
    """What the job ran on: the driver's name for it, else what kind of device was seen at work."""
    kind = "GPU (name not recorded)" if job.device_kind == "gpu" else "CPU"
    return (job.gpu or kind) + (", simulated compute" if job.simulated_compute else "")


def moment(time_ns: int | None) -> str:
    """ns since the epoch as '2026-08-05 14:03 UTC'."""
    if time_ns is None or not 0 <= time_ns <= _LATEST_NS:
        return UNKNOWN
    return datetime.fromtimestamp(time_ns // 1_000_000_000, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def evidence_value(value: float | None, unit: str) -> str:
    """An evidence's number with its unit in words."""
    if not _can_be_read(value):
        return UNKNOWN
    if unit in ("fraction", "ratio", "share"):
        return percent(value)
    if unit in ("ms", "us", "ns", "s"):
        return milliseconds(value * {"ms": 1.0, "us": 1e-3, "ns": 1e-6, "s": 1e3}[unit])
    if unit == "bytes":
        return size(round(value))
    if unit in ("", "count"):
        return count(int(value)) if value == int(value) >= 0 else _digits(value)
    return f"{_digits(value)}{_NARROW_SPACE}{unit}"


def evidence_span(evidence: Evidence) -> str:
    """How long the evidence's span is, or nothing."""
    return milliseconds((evidence.span[1] - evidence.span[0]) / 1e6) if evidence.span else ""


def _can_be_read(value: float | None) -> TypeGuard[float]:
    """Whether a person can make something of the number: nan, inf and 1e300 are unknown, as None is."""
    return value is not None and abs(value) <= MAX_NUMBER  # nan is below nothing


def _digits(value: float) -> str:
    size_ = abs(value)
    decimals = 0 if size_ >= 99.95 else 1 if size_ >= 9.995 else 2
    return _no_minus_zero(f"{value:.{decimals}f}")


def _no_minus_zero(text: str) -> str:
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text


def _inside(words: str) -> str:
    return words[:1].lower() + words[1:]


def _sentence(name: str) -> str:
    words = name.replace("_", " ").strip()
    return words[:1].upper() + words[1:]
