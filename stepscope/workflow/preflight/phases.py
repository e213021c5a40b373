"""Which processes are started when, and what is measured after what?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from stepscope.core.preflight import CheckGroup, CheckResult, Outcome
from stepscope.workflow.preflight.gpus import MeasuredGpu
from stepscope.workflow.preflight.measuring import Measuring
from stepscope.workflow.preflight.measuring_links import measure_all_reduce, measure_peers
from stepscope.workflow.preflight.request import PreflightRequest, Programs
from stepscope.workflow.preflight.sizes import sizes_for
from stepscope.workflow.preflight.workers import Worker, ask, close_all

Progress = Callable[[str], None]


def measure(
    gpus: Sequence[MeasuredGpu],
    request: PreflightRequest,
    programs: Programs,
    *,
    on_start: Callable[[], None],
    on_progress: Progress,
) -> list[CheckResult]:
    """All that is run on the GPUs.

    Args:
        gpus: on which.
        request: which checks.
        programs: processes that measure.
        on_start: is called when everything is ready to be measured.
        on_progress: is told what is measured now.
    """
    is_cuda = request.device_type == "cuda"
    groups, sizes = request.groups, sizes_for(request.device_type, quick=request.quick)

    def start(*visible: MeasuredGpu) -> Worker:
        return Worker((*programs.device, request.device_type), _environment(programs, visible))

    def start_again(*visible: MeasuredGpu) -> Worker:
        worker = start(*visible)
        ask(worker, {"do": "describe"}, request.start_seconds)
        return worker

    with ExitStack() as stack:
        workers = {gpu.index: start(gpu) for gpu in gpus}
        stack.callback(close_all, list(workers.values()))
        has_pairs = CheckGroup.PEERS in groups and is_cuda and len(gpus) > 1
        all_seeing = stack.enter_context(start(*gpus)) if has_pairs else None
        measuring = Measuring(gpus, workers, sizes, seconds=request.seconds, is_cuda=is_cuda)
        on_progress("starting a process for each GPU")
        measuring.start(request.start_seconds, beside=all_seeing)
        on_start()
        phases: tuple[tuple[CheckGroup, str, Callable[[], None]], ...] = (
            (CheckGroup.MEMORY, "memory", measuring.memory),
            (CheckGroup.MATMUL, "matrix products", measuring.products),
            (CheckGroup.RESULTS, "their results", measuring.right_results),
            (CheckGroup.HOST, "host copies", measuring.host_copies),
        )
        for group, what, run in phases:
            if group in groups:
                on_progress(what)
                run()
        results, fit = measuring.results, measuring.healthy()
        if CheckGroup.ALL_REDUCE in groups:
            on_progress("all-reduce")
            if len(fit) > 1:
                results.append(measure_all_reduce(fit, workers, sizes, request.seconds, is_cuda=is_cuda))
            else:
                results.append(_alone("all_reduce", fit))
        if CheckGroup.PEERS in groups:
            on_progress("copies between GPUs")
            if all_seeing is not None and len(fit) > 1:
                close_all(list(workers.values()))  # a GPU in exclusive mode takes one process
                first = all_seeing if len(fit) == len(gpus) else None
                results += measure_peers(fit, first, lambda: start_again(*fit), sizes, request.seconds)
            else:
                results.append(_alone("peer_copy", fit, "" if is_cuda else "the CPU has no peers"))
        return results


def _alone(check: str, gpus: Sequence[MeasuredGpu], why: str = "") -> CheckResult:
    return CheckResult(check, tuple(gpu.index for gpu in gpus), Outcome.SKIPPED, why or "it takes two GPUs that work")


def _environment(programs: Programs, visible: Sequence[MeasuredGpu]) -> Mapping[str, str]:
    """Of a process that sees these GPUs only, so that one that is lost does not take the others with it."""
    variable = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in programs.environment else "CUDA_VISIBLE_DEVICES"
    return {**programs.environment, variable: ",".join(gpu.visible for gpu in visible)}
