"""Analysis of one rank: a `RankView` from a trace's columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.device_calls import device_calls
from stepscope.analyzer.alignment.host_calls import host_calls
from stepscope.analyzer.intervals import covered_time
from stepscope.analyzer.job_time.floor import device_floor
from stepscope.analyzer.kernels.job_kernels import kernel_table
from stepscope.analyzer.kernels.rank_kernels import no_kernels, rank_kernels
from stepscope.analyzer.ledger.activities import Activities, Work, device_activities
from stepscope.analyzer.ledger.device_ledger import OwnLedger, attribute_device_time
from stepscope.analyzer.ledger.host_ledger import attribute_host_time, host_window, main_lane
from stepscope.analyzer.ledger.idle_time import host_work, observe_host
from stepscope.analyzer.ledger.steps import HostSteps, Window, device_window, file_window, host_steps
from stepscope.analyzer.pipeline.passes import (
    device_micro_batches,
    host_micro_batches,
    launched_by_optimizer,
    optimizer_time,
)
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.roofline.kernel_limits import KernelLimits, kernel_limits
from stepscope.analyzer.roofline.operator_cost import operator_flops
from stepscope.analyzer.roofline.utilization import (
    LOW_EFFICIENCY,
    best_product_efficiency,
    coverage,
    dominant_dtype,
    peak_is_exceeded,
    step_flops,
)
from stepscope.analyzer.trace_quality import device_facts, host_facts
from stepscope.analyzer.what_if.device_graph import build_graph
from stepscope.analyzer.what_if.host_graph import read_timeline
from stepscope.core.documents.analysis import RooflineCoverage
from stepscope.core.errors import DataError, TruncatedTraceError
from stepscope.core.hardware.gpu_catalogue import GpuModel, find_gpu
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Notice
from stepscope.trace.columns import NONE, TraceColumns


def view_rank(trace: TraceColumns, rank: int, *, whole_file: bool = False) -> RankView:
    """Analyse one rank's window without the other ranks.

    Args:
        trace: its events.
        rank: its number in the job.
        whole_file: analyse first to last device activity instead of the steps, as other tools do.

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
    activities = device_activities(trace)
    if len(activities):
        return _view_device(trace, rank, steps, activities, whole_file=whole_file)
    if main_lane(trace, steps) == NONE:
        raise DataError(
            "holds neither device activities nor host operators",
            where=trace.header.path,
            what_next="profile with activities=[CPU, CUDA]",
        )
    return _view_host(trace, rank, steps)


def _view_device(
    trace: TraceColumns, rank: int, steps: HostSteps, activities: Activities, *, whole_file: bool
) -> RankView:
    marked = steps
    window = None if whole_file else device_window(activities, steps)
    notices = list(steps.notices)
    if window is None:
        if len(steps) and not whole_file:
            notices.append(Notice("no_kernels_in_steps", f"rank {rank}: no kernel was launched inside a step"))
        window = _lasting(file_window(activities), trace)
        steps = HostSteps(steps.index[:0], steps.start_ns[:0], steps.end_ns[:0], steps.main_lane)
    gpu = find_gpu(next((device.name for device in trace.header.devices), None))
    kernels = activities.of(Work.COMPUTE)
    limits = kernel_limits(trace, activities.row[kernels], activities.launch_row[kernels], gpu=gpu)
    notices += _doubts_about_peak(rank, gpu, limits)
    host = observe_host(trace, steps, activities)
    own = attribute_device_time(activities, window, host, limits.category.astype(np.int8))
    in_steps = steps.position_of(activities.launch_ns[kernels]) != NONE
    flops = step_flops(limits.model_flops, limits.flops, in_steps, len(window.boundary_ns))
    backward, optimizer = _by_launcher(trace, activities, own, window, steps, kernels)
    sums = rank_kernels(trace, activities, limits, own.kernel_owned_ns, window)
    return RankView(
        rank=rank,
        header=trace.header,
        window=window,
        segments=own.segments,
        calls=device_calls(trace, rank, activities, steps),
        hidden_communication_ns=own.hidden_communication_ns,
        micro_batches=device_micro_batches(trace, steps, activities, kernels, own.kernel_owned_ns),
        optimizer_ns=optimizer,
        backward_ns=backward,
        kernels=kernel_table([sums.by_name]),
        kernel_sums=sums,
        coverage=coverage(limits),
        step_flops=flops.model or None,
        executed_flops=flops.executed or None,
        peak_flops=_peak(gpu, limits),
        facts=device_facts(trace, activities, window, marked),
        host_work=host_work(trace, steps, activities, own.segments),
        on_device=True,
        notices=notices,
        graph=build_graph(trace, activities, steps, window, host.spans_of_lane),
        floor=device_floor(trace, activities, steps, window, own.segments),
    )


def _doubts_about_peak(rank: int, gpu: GpuModel | None, limits: KernelLimits) -> list[Notice]:
    name = gpu.name if gpu else "this GPU"
    if peak_is_exceeded(limits):
        faster = f"rank {rank}: kernels ran faster than {name} can by its data sheet"
        return [Notice("wrong_peak", f"{faster}: the peak, the clock or the FLOP model is wrong")]
    best = best_product_efficiency(limits)
    if best is not None and best < LOW_EFFICIENCY:
        slow = f"rank {rank}: even the best large matrix products reach {best:.0%} of the dense peak of {name}"
        return [
            Notice("low_peak", f"{slow}: clocks held down (power cap, heat), awkward sizes, or another card's peak")
        ]
    return []


def _lasting(window: Window, trace: TraceColumns) -> Window:
    if window.end_ns <= window.start_ns:
        raise DataError(
            "holds no activity that takes time",
            where=trace.header.path,
            what_next="check that the profiler recorded at least one step",
        )
    return window


def _view_host(trace: TraceColumns, rank: int, steps: HostSteps) -> RankView:
    window = _lasting(host_window(trace, steps), trace)
    lane = main_lane(trace, steps)
    bounds = window.step_bounds_ns
    work = operator_flops(trace)
    in_steps = steps.position_of(trace.start_ns[work.row]) != NONE
    flops = step_flops(work.model_flops, work.flops, in_steps, len(window.boundary_ns))
    segments = attribute_host_time(trace, steps, window)
    return RankView(
        rank=rank,
        header=trace.header,
        window=window,
        segments=segments,
        calls=host_calls(trace, rank, steps, lane),
        hidden_communication_ns=0,
        micro_batches=host_micro_batches(trace, lane, steps),
        optimizer_ns=covered_time(bounds[:-1], bounds[1:], optimizer_time(trace, lane)),
        backward_ns=np.zeros(len(window.boundary_ns), np.int64),
        kernels=[],
        kernel_sums=no_kernels(),
        coverage=RooflineCoverage(0.0, 0.0, 0.0),
        step_flops=flops.model or None,
        executed_flops=flops.executed or None,
        peak_flops=None,
        facts=host_facts(trace, steps),
        host_work=host_work(trace, replace(steps, main_lane=lane), None, segments),
        on_device=False,
        notices=list(steps.notices),
        timeline=read_timeline(trace, lane, segments) if len(steps) else None,
    )


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
    in_optimizer = launched_by_optimizer(trace, activities, kernels, steps)
    in_backward = (launch != NONE) & (lane != steps.main_lane) & ~in_optimizer
    weights = own.kernel_owned_ns
    return (
        np.bincount(place, weights=weights * in_backward, minlength=num_steps).astype(np.int64),
        np.bincount(place, weights=weights * in_optimizer, minlength=num_steps).astype(np.int64),
    )


def _peak(gpu: GpuModel | None, limits: KernelLimits) -> float | None:
    dtype = dominant_dtype(limits)
    return gpu.peak_flops(dtype) if gpu is not None and dtype is not None else None
