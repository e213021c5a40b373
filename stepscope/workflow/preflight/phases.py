"""Preflight of a node from request to document: driver state before, measurements, driver state after."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from stepscope.collectors.host.files import Files
from stepscope.collectors.host.processes import count_gpus_on_bus
from stepscope.collectors.kernel_log import KernelLog
from stepscope.core.documents import machine_checks
from stepscope.core.errors import DataError, UsageError
from stepscope.core.metrics.readings import Finding
from stepscope.core.vocabulary import Notice
from stepscope.workflow.preflight import gpus as node_gpus
from stepscope.workflow.preflight import workers as processes
from stepscope.workflow.preflight.driver import DriverLook, DriverWatch, look_by_driver
from stepscope.workflow.preflight.gpu_state import GpuState, judge_state
from stepscope.workflow.preflight.measuring import Measuring, measure_all_reduce, measure_peers, sizes_for
from stepscope.workflow.preflight.performance import is_sxm_board, judge_failure, with_neighbours


def run_preflight(
    request: processes.PreflightRequest,
    *,
    programs: processes.WorkerPrograms | None = None,
    on_progress: Progress = lambda _: None,
) -> machine_checks.Preflight:
    """Run a preflight: check the GPUs of this node; takes some seconds to minutes.

    Args:
        programs: worker processes; ours where none are given.

    Raises:
        UsageError: torch is not installed, or Slurm's names are no GPU here.
        DataError: nothing can be measured: no torch that can, no GPU.
        UnreachableError: the driver does not answer at all.
    """
    programs = programs or processes.WorkerPrograms()
    began, time_ns = time.monotonic(), time.time_ns()
    on_progress("looking for GPUs")
    is_cuda = request.device_type == "cuda"
    driver = look_by_driver(programs, request.driver_seconds) if is_cuda else DriverLook(why_not="the CPU is not a GPU")
    selection = node_gpus.select_gpus(request, driver, programs, count_gpus_on_bus(Files()))
    request = selection.request
    programs = programs if request.slurm_gpus is None else node_gpus.without_visible(programs)
    try:
        found = _discover(request, programs, driver)
    except (DataError, UsageError) as error:
        if not selection.results:
            raise
        found = node_gpus.GpuDiscovery(
            (), {}, warnings=(Notice("not_measured", str(error)),)
        )  # a GPU that is gone counts more
    states: dict[int, GpuState | processes.WorkerFailure] = {}
    with ExitStack() as stack:
        log = stack.enter_context(KernelLog()) if is_cuda else None
        watched = {gpu.index: gpu.pci_bus_id for gpu in found.gpus if gpu.pci_bus_id in {g.key for g in driver.gpus}}
        watch = stack.enter_context(DriverWatch(watched, programs, request.driver_seconds))
        watch.begin()
        gpus = [_with_facts(gpu, watch) for gpu in found.gpus]
        versions = {**found.versions, **_driver_version(gpus, watch)}
        results: list[machine_checks.CheckResult] = []
        if request.runs:
            on_start = watch.watch if machine_checks.CheckGroup.STATE in request.groups else lambda: None
            results = measure_gpus(gpus, request, programs, on_start=on_start, on_progress=on_progress)
        if machine_checks.CheckGroup.STATE in request.groups:
            on_progress("asking the driver")
            states = watch.end(_logged(log))
            results += _judge_states(gpus, states, driver, is_loaded=request.runs)
    results = with_neighbours([*selection.results, *found.results, *results], {gpu.index: gpu.name for gpu in gpus})
    order = list(machine_checks.CHECKS)
    results.sort(key=lambda result: (order.index(result.check), result.gpus))
    return machine_checks.Preflight(
        schema=machine_checks.PREFLIGHT_SCHEMA,
        host=socket.gethostname(),
        device_type=request.device_type,
        time_ns=time_ns,
        seconds=time.monotonic() - began,
        quick=request.quick,
        versions=versions,
        outcome=machine_checks.worst(result.outcome for result in results),
        gpus=[_document_gpu(gpu, results, states.get(gpu.index)) for gpu in gpus],
        checks=results,
        warnings=list(dict.fromkeys([*selection.warnings, *found.warnings])),
    )


def _discover(
    request: processes.PreflightRequest, programs: processes.WorkerPrograms, driver: DriverLook
) -> node_gpus.GpuDiscovery:
    if request.device_type == "cpu":
        return node_gpus.discover_cpu(request)
    return (
        node_gpus.discover_gpus(request, programs, driver)
        if request.runs
        else node_gpus.discover_by_driver(request, driver)
    )


def _judge_states(
    gpus: Sequence[node_gpus.MeasuredGpu],
    states: Mapping[int, GpuState | processes.WorkerFailure],
    driver: DriverLook,
    *,
    is_loaded: bool,
) -> list[machine_checks.CheckResult]:
    results, lost = [], dict(driver.lost)
    for gpu in gpus:
        state = states.get(gpu.index)
        if state is None and (number := _number_of_unknown(gpu)) in lost:
            results.append(
                machine_checks.CheckResult("driver", (gpu.index,), machine_checks.Outcome.FAIL, lost[number])
            )
        elif state is None:
            why = driver.why_not or "NVML does not know this device: it is a part of a GPU, or none of NVIDIA's"
            outcome = machine_checks.Outcome.FAIL if driver.hangs else machine_checks.Outcome.SKIPPED
            results.append(machine_checks.CheckResult("driver", (gpu.index,), outcome, why))
        elif isinstance(state, processes.WorkerFailure):
            results.append(judge_failure("driver", (gpu.index,), state))
        else:
            results += judge_state(gpu.index, state, is_board=is_sxm_board(gpu.model, gpu.name), is_loaded=is_loaded)
    return results


def _number_of_unknown(gpu: node_gpus.MeasuredGpu) -> int:
    """Index of a device that NVML could not read, by CUDA or CUDA_VISIBLE_DEVICES; -1 for none."""
    is_whole = not gpu.pci_bus_id and "MIG" not in gpu.name
    return int(gpu.visible) if is_whole and gpu.visible.isdecimal() else -1


def _logged(log: KernelLog | None) -> dict[str, tuple[Finding, ...]] | None:
    """XIDs that the kernel logged since the log was opened, by PCI address; None where it cannot be read."""
    collection = None if log is None else log.collect()
    if collection is None or collection.missing:
        return None
    xids: dict[str, tuple[Finding, ...]] = {}
    for finding in collection.findings:
        if finding.code == "xid":
            place = dict(finding.labels)["pci_bus_id"]
            xids[place] = (*xids.get(place, ()), finding)
    return xids


def _with_facts(gpu: node_gpus.MeasuredGpu, watch: DriverWatch) -> node_gpus.MeasuredGpu:
    name = gpu.name or watch.facts(gpu.index).get("name", "")
    return replace(gpu, name=name, pcie=watch.pcie(gpu.index), nvlinks=watch.nvlinks(gpu.index))


def _driver_version(gpus: Sequence[node_gpus.MeasuredGpu], watch: DriverWatch) -> dict[str, str]:
    version = next((facts["driver"] for gpu in gpus if "driver" in (facts := watch.facts(gpu.index))), "")
    return {"driver": version} if version else {}


def _document_gpu(
    gpu: node_gpus.MeasuredGpu,
    results: Sequence[machine_checks.CheckResult],
    state: GpuState | processes.WorkerFailure | None,
) -> machine_checks.PreflightGpu:
    outcome = machine_checks.worst(result.outcome for result in results if gpu.index in result.gpus)
    about = machine_checks.PreflightGpu(gpu.index, gpu.name, gpu.uuid, gpu.pci_bus_id, outcome)
    if not isinstance(state, GpuState):
        return about
    clocks, heat, power = (state.sampled(name) for name in ("sm_clock_hertz", "temperature_celsius", "power_watts"))
    return replace(
        about,
        sm_clock_hertz=(min(clocks), max(clocks)) if clocks else None,
        temperature_celsius=max(heat, default=None),
        power_watts=max(power, default=None),
    )


Progress = Callable[[str], None]


def measure_gpus(
    gpus: Sequence[node_gpus.MeasuredGpu],
    request: processes.PreflightRequest,
    programs: processes.WorkerPrograms,
    *,
    on_start: Callable[[], None],
    on_progress: Progress,
) -> list[machine_checks.CheckResult]:
    """Run all measurements of a preflight's request.

    Args:
        on_start: called when all workers are ready.
        on_progress: called with what is measured now.
    """
    is_cuda = request.device_type == "cuda"
    groups, sizes = request.groups, sizes_for(request.device_type, quick=request.quick)

    def start(*visible: node_gpus.MeasuredGpu) -> processes.Worker:
        return processes.Worker((*programs.device, request.device_type), _environment(programs, visible))

    def start_again(*visible: node_gpus.MeasuredGpu) -> processes.Worker:
        worker = start(*visible)
        processes.ask_worker(worker, {"do": "describe"}, request.start_seconds)
        return worker

    with ExitStack() as stack:
        workers = {gpu.index: start(gpu) for gpu in gpus}
        stack.callback(processes.close_workers, list(workers.values()))
        has_pairs = machine_checks.CheckGroup.PEERS in groups and is_cuda and len(gpus) > 1
        all_seeing = stack.enter_context(start(*gpus)) if has_pairs else None
        measuring = Measuring(gpus, workers, sizes, seconds=request.seconds, is_cuda=is_cuda)
        on_progress("starting a process for each GPU")
        measuring.start(request.start_seconds, beside=all_seeing)
        on_start()
        phases: tuple[tuple[machine_checks.CheckGroup, str, Callable[[], None]], ...] = (
            (machine_checks.CheckGroup.MEMORY, "memory", measuring.memory),
            (machine_checks.CheckGroup.MATMUL, "matrix products", measuring.products),
            (machine_checks.CheckGroup.RESULTS, "their results", measuring.right_results),
            (machine_checks.CheckGroup.HOST, "host copies", measuring.host_copies),
        )
        for group, what, run in phases:
            if group in groups:
                on_progress(what)
                run()
        results, fit = measuring.results, measuring.healthy()
        if machine_checks.CheckGroup.ALL_REDUCE in groups:
            on_progress("all-reduce")
            if len(fit) > 1:
                results.append(measure_all_reduce(fit, workers, sizes, request.seconds, is_cuda=is_cuda))
            else:
                results.append(_alone("all_reduce", fit))
        if machine_checks.CheckGroup.PEERS in groups:
            on_progress("copies between GPUs")
            if all_seeing is not None and len(fit) > 1:
                processes.close_workers(list(workers.values()))  # a GPU in exclusive mode takes one process
                first = all_seeing if len(fit) == len(gpus) else None
                results += measure_peers(fit, first, lambda: start_again(*fit), sizes, request.seconds)
            else:
                results.append(_alone("peer_copy", fit, "" if is_cuda else "the CPU has no peers"))
        return results


def _alone(check: str, gpus: Sequence[node_gpus.MeasuredGpu], why: str = "") -> machine_checks.CheckResult:
    return machine_checks.CheckResult(
        check, tuple(gpu.index for gpu in gpus), machine_checks.Outcome.SKIPPED, why or "needs two working GPUs"
    )


def _environment(programs: processes.WorkerPrograms, visible: Sequence[node_gpus.MeasuredGpu]) -> Mapping[str, str]:
    """Environment of a process that sees only these GPUs, so that a lost one does not take the others with it."""
    variable = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in programs.environment else "CUDA_VISIBLE_DEVICES"
    return {**programs.environment, variable: ",".join(gpu.visible for gpu in visible)}
