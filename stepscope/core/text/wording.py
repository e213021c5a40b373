"""Wording of verdicts: names of causes, categories, reasons, metrics, meshes and devices, for terminal and pages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stepscope.core.text import numbers
from stepscope.core.vocabulary import Cause, Evidence, Reason, TimeCategory

if TYPE_CHECKING:  # 1 MB that the agent, which has words for its causes from here, does not need
    from stepscope.core.documents.analysis import AnalysedJob, MeshSizes, Pipeline

SHOWN_FROM = 0.0005
"""Smaller shares are not shown, as they would round to 0.0 %."""

_METRIC_TITLES = {
    "fraction_of_step": "Share of profiled time",
    "share_of_training_time": "Share of training time",
    "share_with_overlap": "Share of training time with what it overlaps with",
    "shared_with_another_cause": "Gained by either of two causes",
    "waiting_steps": "Steps that wait for data",
    "slow_steps": "Slow steps",
    "longer_at_the_end": "Longer last fifth of the steps",
    "slow_step_every": "Slow steps come every",
    "sm_clock_lower_by": "SM clock lower by",
    "throttled_time": "Share of the loss with a throttled GPU",
    "gpu_shared_ratio": "Share of the loss with another process on the GPU",
    "other_process_memory": "GPU memory of another process",
    "other_processes": "Processes on the GPU besides",
    "other_memory": "GPU memory of other processes",
    "cgroup_throttled_ratio": "Share of the loss with threads stopped by the cgroup's CPU limit",
    "cgroup_cpu_limit": "CPU limit of the cgroup",
    "cpu_pressure_ratio": "Share of the loss with threads of the cgroup waiting for a CPU",
    "machine_cpu_pressure_ratio": "Share of the loss with threads of the machine waiting for a CPU",
    "io_pressure_ratio": "Share of the loss with threads waiting for storage",
    "io_wait_ratio": "Share of the loss with CPUs waiting for storage",
    "ethernet_rate": "Traffic over Ethernet",
    "infiniband_rate": "Traffic over InfiniBand",
    "nic_errors_per_second": "Errors of network ports per second",
    "flight_recorder_dumps": "Flight recorders",
    "rank_state": "State of ranks",
    "step_open_for": "Age of the step",
    "stuck_steps": "Steps that did not end",
    "memory_snapshots": "Memory snapshots",
    "flight_recorder": "Flight recorder",
    "memory_snapshot": "Memory snapshot",
    "transport": "Transport by NCCL's log",
    "nccl_topology": "NCCL's topology",
    "usable_cpus": "CPUs that a rank may use",
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
    "share_of_late_host_time": "CPU delay",
    "share_of_late_host_time_in_phase": "CPU delay in phase",
    "share_of_late_host_time_in_function": "CPU delay in function",
    "share_of_blocked_time": "Blocked host time",
    "share_of_blocked_time_in_function": "Time in blocking calls in function",
    "blocking_calls_a_step": "Blocking calls a step",
    "not_started_share_of_gaps": "Launch gaps of 1 ms and longer",
    "spread_of_waits": "Spread of the waits for data",
    "period_of_waits": "Long waits for data come every",
    "flops_above_peers": "FLOPs against the peers'",
    "share_of_difference_by_more_kernels": "Share of the difference by additional kernels",
    "kernels_slower_by": "Kernel time against the peers'",
    "share_of_time_slower_by_about_that": "Kernel time slower by about that factor",
    "gradients_checked_for_nan": "operators of the backward pass followed by a check for NaN",
    "recomputed_share_of_flops": "FLOPs that are recomputed",
    "no_tensor_cores_share": "Time in matrix kernels without tensor cores",
    "inefficient_kernels_share": "Time in kernels far from their limit",
    "unfused_share": "Time in element-wise chains that are not fused",
    "short_kernels_share": "Of it, in kernels under 20 us",
    "few_blocks_share": "Of it, in kernels of few blocks",
    "few_blocks_grid": "Blocks of the largest of these kernels",
    "few_blocks_duration": "Its mean duration",
    "tiny_kernels_share": "Time in tiny kernels",
    "tiny_share_of_kernels": "Kernels that are tiny",
    "pageable_share_of_host_copies": "Host copies from or to pageable memory",
}
"""Titles of the evidence metrics of an analysis; a metric's name may have a subject behind a colon."""

_FORMULA_MINUS = re.compile(r"(?<=\b[A-Z])-(?=[A-Z0-9]\b)")

_CAUSE_TITLES = {
    Cause.COMPUTE_BOUND: "Compute-bound",
    Cause.MEMORY_BOUND: "Memory-bound",
    Cause.LATENCY_BOUND: "Low parallelism",
    Cause.HOST_BOUND: "CPU-bound",
    Cause.PROFILER: "Profiler overhead",
    Cause.BEFORE_WINDOW: "Began before the trace",
    Cause.INSUFFICIENT_EVIDENCE: "Not enough evidence",
    Cause.IDLE: "No job on the GPU",
    Cause.COPY: "Memory copies",
    Cause.DEVICE_GAP: "GPU launch gaps",
}

_CAUSE_TITLES_ON_CPU = {
    Cause.COMPUTE_BOUND: "Busy in operators",
    Cause.HOST_BOUND: "Python and framework code between operators",
}
"""Of a job without a GPU, instead of the titles."""

_CATEGORY_TITLES = {
    TimeCategory.COMPUTE_BOUND: "Compute-bound",
    TimeCategory.MEMORY_BOUND: "Memory-bound",
    TimeCategory.LATENCY_BOUND: "Low parallelism",
    TimeCategory.HOST_BOUND: "CPU-bound",
    TimeCategory.COMPUTE_OTHER: "Other compute",
    TimeCategory.WAIT: "Waiting for a rank",
    TimeCategory.BUBBLE: "Pipeline bubble",
    TimeCategory.COMMUNICATION_UNSPLIT: "Communication or waiting",
    TimeCategory.COPY: "Memory copies",
    TimeCategory.DEVICE_GAP: "GPU launch gaps",
    TimeCategory.PROFILER: "Profiler overhead",
    TimeCategory.IDLE_OTHER: "Unexplained",
}

_CATEGORY_TITLES_ON_CPU = {
    TimeCategory.COMPUTE_OTHER: "In operators",
    TimeCategory.HOST_BOUND: "Between operators",
}
"""Of a job without a GPU, instead of those above."""

CATEGORY_MEANINGS = {
    TimeCategory.COMPUTE_BOUND: "a kernel runs whose arithmetic is its larger floor",
    TimeCategory.MEMORY_BOUND: "a kernel runs whose memory traffic is its larger floor",
    TimeCategory.LATENCY_BOUND: "a kernel runs that leaves most of the GPU empty: it is short or has few blocks",
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
    TimeCategory.IDLE_OTHER: "nothing recorded runs and the trace does not show why",
}
"""When time counts to each category, as the end of a sentence that begins 'At this instant'."""

_CATEGORY_MEANINGS_ON_CPU = {
    TimeCategory.COMPUTE_OTHER: "an operator runs",
    TimeCategory.HOST_BOUND: "no operator runs: Python and framework code between them",
    TimeCategory.SYNCHRONIZATION: "no operator runs: a call blocks",
}
"""Of a job without a GPU, instead of those above."""


def cause_words(cause: Cause, *, on_cpu: bool = False) -> str:
    """A cause as a title: 'Pipeline bubble'; of a job without a GPU 'Busy in operators', not 'Compute-bound'."""
    of_cpu = _CAUSE_TITLES_ON_CPU.get(cause) if on_cpu else None
    return of_cpu or _CAUSE_TITLES.get(cause) or _sentence(cause.value)


def cause_phrase(cause: Cause, *, on_cpu: bool = False) -> str:
    """A cause within a sentence: 'pipeline bubble', 'GPU launch gaps'."""
    return in_sentence(cause_words(cause, on_cpu=on_cpu))


def is_on_cpu(job: AnalysedJob) -> bool:
    """Whether the analysed job has no GPU: its operators are seen, and not what limits them."""
    return job.device_kind == "cpu"


def cause_of_job(cause: Cause, job: AnalysedJob) -> str:
    """A cause within a sentence on this job."""
    return cause_phrase(cause, on_cpu=is_on_cpu(job))


def cause_title_of_job(cause: Cause, job: AnalysedJob) -> str:
    """Text: the cause of a job's loss as a title."""
    return cause_words(cause, on_cpu=is_on_cpu(job))


def training_category_title(category: str, job: AnalysedJob) -> str:
    """A category of a job's training time as a title: 'Garbage collection', 'Data loading'."""
    from stepscope.core.documents.analysis import OVERLAPPING

    if category == OVERLAPPING:
        return "Several causes at once"
    return cause_title_of_job(Cause(category), job) if category in frozenset(Cause) else _sentence(category)


def busy_on_cpu(share: float, of_what: str = "the time") -> str:
    """What is known of a job without a GPU whose operators take most of the time."""
    busy = f"the CPU is busy in operators for {share:.1%} of {of_what}"
    return f"no bottleneck: {busy}; which limits them (arithmetic or memory) is not known"


def category_phrase(category: TimeCategory, *, on_cpu: bool = False) -> str:
    """A category within a sentence: 'waiting for a rank'."""
    return in_sentence(category_words(category, on_cpu=on_cpu))


def category_words(category: TimeCategory, *, on_cpu: bool = False) -> str:
    """A category as a title: 'Waiting for a rank'; a job without a GPU has no kernel launches."""
    of_cpu = _CATEGORY_TITLES_ON_CPU.get(category) if on_cpu else None
    return of_cpu or _CATEGORY_TITLES.get(category) or _sentence(category.value)


def category_meaning(category: TimeCategory, *, on_cpu: bool = False) -> str:
    """When time counts to a category, as the end of a sentence that begins 'At this instant'."""
    of_cpu = _CATEGORY_MEANINGS_ON_CPU.get(category) if on_cpu else None
    return of_cpu or CATEGORY_MEANINGS[category]


def bubble_parts(pipeline: Pipeline) -> list[tuple[str, float, TimeCategory, str]]:
    """Text: wording of a pipeline's bubble and its parts: (name, share, category with its colour, meaning) each."""
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


_BY_THEIR_OWN_NAMES = frozenset(
    {
        "share_of_late_host_time_in_phase",
        "share_of_late_host_time_in_function",
        "share_of_blocked_time_in_function",
        "flight_recorder",
        "memory_snapshot",
        "rank_state",
        "transport",
        "nccl_topology",
    }
)
"""Metrics whose subject keeps the names that it has in the training script or in a dump."""


def metric_words(metric: str) -> str:
    """An evidence metric as a title: 'Bubble by uneven stages', with its subject 'CPU delay (dispatch)'."""
    name, _, subject = metric.partition(": ")
    words = _METRIC_TITLES.get(name) or _sentence(name.replace(".", " "))
    shown = subject if name in _BY_THEIR_OWN_NAMES else subject.replace("_", " ")
    return f"{words} ({shown})" if subject else words


def action_words(action: str) -> str:
    """An action as text with true minus signs: lines break after a hyphen, which would split 'P-1'."""
    return _FORMULA_MINUS.sub("−", action)


def mesh_words(mesh: MeshSizes) -> str:
    """The parallel layout as text: 'TP 2 × PP 2 × DP 2, EP 4 inside'; unknown dimensions are left out.

    Experts are spread over ranks that the other dimensions count already.
    """
    sizes = {name: getattr(mesh, name) for name in ("tp", "pp", "dp", "cp")}
    product = " × ".join(f"{name.upper()} {number}" for name, number in sizes.items() if numbers.is_readable(number))
    experts = f"EP {mesh.ep}" if numbers.is_readable(mesh.ep) else ""
    return f"{product}, {experts} inside" if product and experts else product or experts


def place_words(place: Mapping[str, int]) -> str:
    """A rank's index in each parallel dimension as text: 'DP0-TP3'; empty where none is known."""
    return "-".join(f"{dimension.upper()}{index}" for dimension, index in place.items())


def device_words(job: AnalysedJob) -> str:
    """The device of the job as text: the driver's name, else the kind of device."""
    kind = "GPU (name not recorded)" if job.device_kind == "gpu" else "CPU"
    return (job.gpu or kind) + (", simulated compute" if job.simulated_compute else "")


def evidence_span(evidence: Evidence) -> str:
    """Duration of the evidence's span as text; empty without one."""
    return numbers.milliseconds((evidence.span[1] - evidence.span[0]) / 1e6) if evidence.span else ""


def in_sentence(words: str) -> str:
    """A title within a sentence: abbreviations (GPU) and names (Python) keep their capital."""
    keeps = words[1:2].isupper() or words.startswith("Python")
    return words if keeps else words[:1].lower() + words[1:]


def _sentence(name: str) -> str:
    words = name.replace("_", " ").strip()
    return words[:1].upper() + words[1:]
