"""Analysis of one rank: a `RankView` from a trace's columns."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.collectives.device_calls import device_calls
from stepscope.analyzer.collectives.gradient_reducer import gradient_reducer
from stepscope.analyzer.collectives.host_calls import host_calls
from stepscope.analyzer.collectives.openings import Beginning
from stepscope.analyzer.headroom.host_pace import host_pace_ns
from stepscope.analyzer.headroom.step_kernels import step_kernels
from stepscope.analyzer.intervals import covered_time, single
from stepscope.analyzer.job_time.floor import device_floor
from stepscope.analyzer.kernels.job_kernels import kernel_table
from stepscope.analyzer.kernels.rank_kernels import rank_kernels
from stepscope.analyzer.ledger.activities import Activities, Work, device_activities
from stepscope.analyzer.ledger.device_ledger import OwnLedger, attribute_device_time
from stepscope.analyzer.ledger.host_ledger import attribute_host_time, host_window, main_lane
from stepscope.analyzer.ledger.host_spans import host_spans
from stepscope.analyzer.ledger.idle_time import HostWork, host_work, observe_host
from stepscope.analyzer.ledger.segments import CategorySpans, assemble
from stepscope.analyzer.ledger.steps import HostSteps, Window, device_window, file_window, host_steps
from stepscope.analyzer.ledger.unrecorded_work import Missing, unrecorded_work, uses_gpu
from stepscope.analyzer.pipeline import passes
from stepscope.analyzer.rank_view import RankView, device_trace_facts, host_trace_facts, unrecorded_device_facts
from stepscope.analyzer.roofline import utilization
from stepscope.analyzer.roofline.kernel_limits import KernelLimits, kernel_limits
from stepscope.analyzer.roofline.operator_cost import operator_flops
from stepscope.analyzer.what_if.device_graph import build_device_graph
from stepscope.analyzer.what_if.host_graph import read_timeline
from stepscope.core.errors import DataError, TruncatedTraceError
from stepscope.core.hardware.gpu_catalogue import GpuModel, find_gpu
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Notice, TimeCategory
from stepscope.trace.columns import NONE, TraceColumns


def view_rank(trace: TraceColumns, rank: int, *, whole_file: bool = False, begins: Beginning | None = None) -> RankView:
    """Analyse one rank's window without the other ranks.

    Args:
        trace: its events.
        rank: its number in the job.
        whole_file: analyse the whole file instead of the steps.
        begins: where the window begins at the earliest.

    Raises:
        DataError: the trace has neither device activities nor host operators.
    """
    if trace.quality.truncated:
        # events are not written in order of time, so missing ones would look like a late host or an idle device
        raise TruncatedTraceError(
            f"ends too early, after {counted(trace.quality.num_events, 'event')}, so its time cannot be attributed",
            where=trace.header.path,
            what_next="copy it whole or record it again; stepscope trace info shows what it holds",
        )
    steps = host_steps(trace)
    if begins is not None and begins.step is not None:
        steps = steps.since(begins.step)
    activities = device_activities(trace)
    if len(activities):
        return _view_device(trace, rank, steps, activities, begins, whole_file=whole_file)
    if main_lane(trace, steps) == NONE:
        raise DataError(
            "holds neither device activities nor host operators",
            where=trace.header.path,
            what_next="profile with activities=[CPU, CUDA]",
        )
    return _view_unrecorded_device(trace, rank, steps) if uses_gpu(trace) else _view_host(trace, rank, steps)


def _view_device(
    trace: TraceColumns,
    rank: int,
    steps: HostSteps,
    activities: Activities,
    begins: Beginning | None,
    *,
    whole_file: bool,
) -> RankView:
    marked = steps
    unrecorded = unrecorded_work(trace, activities)
    window = None if whole_file else device_window(activities, steps)
    notices = list(steps.notices)
    if window is None:
        if len(steps) and not whole_file:
            notices.append(Notice("no_kernels_in_steps", f"rank {rank}: no kernel was launched inside a step"))
        _check_lasting(bool((activities.end_ns > activities.start_ns).any()), trace)
        window = file_window(trace, activities, unrecorded.spans[Missing.EARLIER_WORK], whole=whole_file)
        if begins is not None and begins.time_ns is not None:
            window = window.since(begins.time_ns)
        steps = HostSteps(steps.index[:0], steps.start_ns[:0], steps.end_ns[:0], steps.main_lane)
    gpu = find_gpu(next((device.name for device in trace.header.devices), None))
    kernels = activities.of(Work.COMPUTE)
    limits = kernel_limits(trace, activities.row[kernels], activities.launch_row[kernels], gpu=gpu)
    notices += _doubts_about_peak(rank, gpu, limits)
    host = observe_host(trace, steps, activities, unrecorded)
    own = attribute_device_time(activities, window, host, limits.category.astype(np.int8))
    in_steps = steps.position_of(activities.launch_ns[kernels]) != NONE
    flops = utilization.step_flops(limits.model_flops, limits.flops, in_steps, len(window.boundary_ns))
    backward, optimizer = _by_launcher(trace, activities, own, window, steps, kernels)
    dtype = utilization.dominant_dtype(limits)
    sums = rank_kernels(trace, activities, limits, own.kernel_owned_ns, window)
    return RankView(
        rank=rank,
        header=trace.header,
        window=window,
        segments=own.segments,
        calls=device_calls(trace, rank, activities, steps),
        hidden_communication_ns=own.hidden_communication_ns,
        micro_batches=passes.device_micro_batches(trace, steps, activities, kernels, own.kernel_owned_ns),
        optimizer_ns=optimizer,
        backward_ns=backward,
        kernels=kernel_table([sums.by_name]),
        kernel_sums=sums,
        coverage=utilization.coverage(limits),
        step_flops=flops.model or None,
        executed_flops=flops.executed or None,
        peak_flops=gpu.peak_flops(dtype) if gpu is not None and dtype is not None else None,
        facts=replace(
            device_trace_facts(
                trace, activities, window, marked, unrecorded, own.segments.intervals_of(TimeCategory.IDLE_OTHER)
            ),
            optimizer=next((mark[1] for name in trace.names if (mark := _OPTIMIZER_MARK.match(name))), ""),
            optimizer_launches=_optimizer_launches(trace, activities, kernels, steps, in_steps),
            product_type=dtype,
        ),
        host_work=host_work(trace, steps, activities, own.segments),
        on_device=True,
        notices=notices,
        graph=build_device_graph(trace, activities, steps, window, host.spans_of_lane),
        floor=device_floor(trace, activities, steps, window, own.segments),
        step_kernels=step_kernels(trace, activities, steps, limits),
        reducer=gradient_reducer(trace),
        host_pace_ns=_host_pace_ns(trace, activities, steps),
    )


def _host_pace_ns(trace: TraceColumns, activities: Activities, steps: HostSteps) -> float | None:
    if not len(steps):
        return None
    return host_pace_ns(activities, steps, host_spans(trace, steps, activities, [steps.main_lane])[steps.main_lane])


def _doubts_about_peak(rank: int, gpu: GpuModel | None, limits: KernelLimits) -> list[Notice]:
    name = gpu.name if gpu else "this GPU"
    if utilization.peak_is_exceeded(limits):
        faster = f"rank {rank}: kernels ran faster than {name} can by its data sheet"
        return [Notice("wrong_peak", f"{faster}: the peak, the clock or the FLOP model is wrong")]
    best = utilization.best_product_efficiency(limits)
    if best is not None and best < utilization.LOW_EFFICIENCY:
        slow = f"rank {rank}: even the best large matrix products reach {best:.0%} of the dense peak of {name}"
        return [
            Notice("low_peak", f"{slow}: clocks held down (power cap, heat), awkward sizes, or another card's peak")
        ]
    return []


def _check_lasting(takes_time: bool, trace: TraceColumns) -> None:
    if not takes_time:
        raise DataError(
            "holds no activity that takes time",
            where=trace.header.path,
            what_next="check that the profiler recorded at least one step",
        )


def _view_host(trace: TraceColumns, rank: int, steps: HostSteps) -> RankView:
    window = host_window(trace, steps)
    _check_lasting(window.end_ns > window.start_ns, trace)
    lane = main_lane(trace, steps)
    bounds = window.step_bounds_ns
    work = operator_flops(trace)
    in_steps = steps.position_of(trace.start_ns[work.row]) != NONE
    flops = utilization.step_flops(work.model_flops, work.flops, in_steps, len(window.boundary_ns))
    segments = attribute_host_time(trace, steps, window)
    return RankView(
        rank=rank,
        header=trace.header,
        window=window,
        segments=segments,
        calls=host_calls(trace, rank, steps, lane),
        micro_batches=passes.host_micro_batches(trace, lane, steps),
        optimizer_ns=covered_time(bounds[:-1], bounds[1:], passes.optimizer_time(trace, lane)),
        backward_ns=np.zeros(len(window.boundary_ns), np.int64),
        step_flops=flops.model or None,
        executed_flops=flops.executed or None,
        facts=host_trace_facts(trace, steps),
        host_work=host_work(trace, replace(steps, main_lane=lane), None, segments),
        on_device=False,
        notices=list(steps.notices),
        timeline=read_timeline(trace, lane, segments) if len(steps) else None,
        reducer=gradient_reducer(trace),
    )


def _view_unrecorded_device(trace: TraceColumns, rank: int, steps: HostSteps) -> RankView:
    """The view of a rank of a GPU job without device activities: of its time nothing is known."""
    window = host_window(trace, steps)
    _check_lasting(window.end_ns > window.start_ns, trace)
    whole = single(window.start_ns, window.end_ns)
    none = np.zeros(len(window.boundary_ns), np.int64)
    return RankView(
        rank=rank,
        header=trace.header,
        window=window,
        segments=assemble([CategorySpans(whole, TimeCategory.IDLE_OTHER)]),
        calls=[],
        micro_batches=[],
        optimizer_ns=none,
        backward_ns=none,
        step_flops=None,
        executed_flops=None,
        facts=unrecorded_device_facts(trace, steps, window),
        host_work=HostWork(),
        on_device=True,
        notices=list(steps.notices),
    )


_OPTIMIZER_MARK = re.compile(r"^Optimizer\.step#(\w+)\.step$")


def _optimizer_launches(
    trace: TraceColumns,
    activities: Activities,
    kernels: npt.NDArray[np.intp],
    steps: HostSteps,
    in_steps: npt.NDArray[np.bool_],
) -> float:
    """Share of the kernels of marked steps that the optimizer launches."""
    by_optimizer = passes.launched_by_optimizer(trace, activities, kernels, steps)
    return float(np.mean(by_optimizer[in_steps])) if in_steps.any() else 0.0


def _by_launcher(
    trace: TraceColumns,
    activities: Activities,
    own: OwnLedger,
    window: Window,
    steps: HostSteps,
    kernels: npt.NDArray[np.intp],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Time by step attributed to kernels that autograd's thread launched, and to those of the optimizer."""
    launch, lane = activities.launch_ns[kernels], activities.launch_lane[kernels]
    num_steps = len(window.boundary_ns)
    place = np.clip(np.searchsorted(window.boundary_ns, activities.start_ns[kernels], side="right") - 1, 0, None)
    in_optimizer = passes.launched_by_optimizer(trace, activities, kernels, steps)
    in_backward = (launch != NONE) & (lane != steps.main_lane) & ~in_optimizer
    weights = own.kernel_owned_ns
    return (
        np.bincount(place, weights=weights * in_backward, minlength=num_steps).astype(np.int64),
        np.bincount(place, weights=weights * in_optimizer, minlength=num_steps).astype(np.int64),
    )
