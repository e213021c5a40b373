"""From a request to the whole document."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from stepscope.collectors.host.files import Files
from stepscope.collectors.host.pci_gpus import count_on_bus
from stepscope.collectors.kernel_log import KernelLog
from stepscope.core.analysis import Notice
from stepscope.core.errors import DataError, UsageError
from stepscope.core.preflight import (
    CHECKS,
    PREFLIGHT_SCHEMA,
    CheckGroup,
    CheckResult,
    Outcome,
    Preflight,
    PreflightGpu,
    worst,
)
from stepscope.core.readings import Finding
from stepscope.workflow.preflight.discovery import Discovery, discover, discover_by_driver, discover_cpu
from stepscope.workflow.preflight.driver import DriverLook, DriverWatch, look
from stepscope.workflow.preflight.expectations import is_board
from stepscope.workflow.preflight.gpus import MeasuredGpu
from stepscope.workflow.preflight.judging import judge_failure, with_neighbours
from stepscope.workflow.preflight.phases import Progress, measure
from stepscope.workflow.preflight.request import PreflightRequest, Programs
from stepscope.workflow.preflight.selection import select, without_visible
from stepscope.workflow.preflight.state_judging import GpuState, judge_state
from stepscope.workflow.preflight.workers import Failure


def run_preflight(
    request: PreflightRequest,
    *,
    programs: Programs | None = None,
    on_progress: Progress = lambda _: None,
    files: Files | None = None,
) -> Preflight:
    """Check the GPUs of this node; takes some seconds to minutes.

    Args:
        request: what to check.
        programs: processes that measure; ours where none are given.
        on_progress: is told what is measured now.
        files: of the machine, by which its PCI bus is looked at; this one's where none are given.

    Raises:
        UsageError: torch is not installed, or Slurm's names are no GPU here.
        DataError: nothing can be measured: no torch that can, no GPU.
        UnreachableError: the driver does not answer at all.
    """
    programs = programs or Programs()
    began, time_ns = time.monotonic(), time.time_ns()
    on_progress("looking for GPUs")
    is_cuda = request.device_type == "cuda"
    driver = look(programs, request.driver_seconds) if is_cuda else DriverLook(why_not="the CPU is no GPU")
    selection = select(request, driver, programs, count_on_bus(files or Files()))
    request = selection.request
    programs = programs if request.slurm_gpus is None else without_visible(programs)
    try:
        found = _discover(request, programs, driver)
    except (DataError, UsageError) as error:
        if not selection.results:
            raise
        found = Discovery((), {}, warnings=(Notice("not_measured", str(error)),))  # that a GPU is gone counts more
    states: dict[int, GpuState | Failure] = {}
    with ExitStack() as stack:
        log = stack.enter_context(KernelLog()) if is_cuda else None
        watched = {gpu.index: gpu.pci_bus_id for gpu in found.gpus if gpu.pci_bus_id in {g.key for g in driver.gpus}}
        watch = stack.enter_context(DriverWatch(watched, programs, request.driver_seconds))
        watch.begin()
        gpus = [_with_facts(gpu, watch) for gpu in found.gpus]
        versions = {**found.versions, **_driver_version(gpus, watch)}
        results: list[CheckResult] = []
        if request.runs:
            on_start = watch.watch if CheckGroup.STATE in request.groups else lambda: None
            results = measure(gpus, request, programs, on_start=on_start, on_progress=on_progress)
        if CheckGroup.STATE in request.groups:
            on_progress("asking the driver")
            states = watch.end(_logged(log))
            results += _judge_states(gpus, states, driver, is_loaded=request.runs)
    results = with_neighbours([*selection.results, *found.results, *results], {gpu.index: gpu.name for gpu in gpus})
    order = list(CHECKS)
    results.sort(key=lambda result: (order.index(result.check), result.gpus))
    return Preflight(
        schema=PREFLIGHT_SCHEMA,
        host=socket.gethostname(),
        device_type=request.device_type,
        time_ns=time_ns,
        seconds=time.monotonic() - began,
        quick=request.quick,
        versions=versions,
        outcome=worst(result.outcome for result in results),
        gpus=[_document_gpu(gpu, results, states.get(gpu.index)) for gpu in gpus],
        checks=results,
        warnings=list(dict.fromkeys([*selection.warnings, *found.warnings])),
    )


def _discover(request: PreflightRequest, programs: Programs, driver: DriverLook) -> Discovery:
    if request.device_type == "cpu":
        return discover_cpu(request)
    return discover(request, programs, driver) if request.runs else discover_by_driver(request, driver)


def _judge_states(
    gpus: Sequence[MeasuredGpu], states: Mapping[int, GpuState | Failure], driver: DriverLook, *, is_loaded: bool
) -> list[CheckResult]:
    results, lost = [], dict(driver.lost)
    for gpu in gpus:
        state = states.get(gpu.index)
        if state is None and (number := _number_of_unknown(gpu)) in lost:
            results.append(CheckResult("driver", (gpu.index,), Outcome.FAIL, lost[number]))
        elif state is None:
            why = driver.why_not or "NVML does not know this device: it is a part of a GPU, or none of NVIDIA's"
            outcome = Outcome.FAIL if driver.hangs else Outcome.SKIPPED
            results.append(CheckResult("driver", (gpu.index,), outcome, why))
        elif isinstance(state, Failure):
            results.append(judge_failure("driver", (gpu.index,), state))
        else:
            results += judge_state(gpu.index, state, is_board=is_board(gpu.model, gpu.name), is_loaded=is_loaded)
    return results


def _number_of_unknown(gpu: MeasuredGpu) -> int:
    """NVML's number of a device that it could not tell of, as CUDA or CUDA_VISIBLE_DEVICES has it; -1: it has none."""
    is_whole = not gpu.pci_bus_id and "MIG" not in gpu.name
    return int(gpu.visible) if is_whole and gpu.visible.isdecimal() else -1


def _logged(log: KernelLog | None) -> dict[str, tuple[Finding, ...]] | None:
    """XIDs that the kernel logged since the log was opened, by address on PCI; None where it cannot be read."""
    told = None if log is None else log.collect()
    if told is None or told.missing:
        return None
    found: dict[str, tuple[Finding, ...]] = {}
    for finding in told.findings:
        if finding.code == "xid":
            place = dict(finding.labels)["pci_bus_id"]
            found[place] = (*found.get(place, ()), finding)
    return found


def _with_facts(gpu: MeasuredGpu, watch: DriverWatch) -> MeasuredGpu:
    name = gpu.name or watch.facts(gpu.index).get("name", "")
    return replace(gpu, name=name, pcie=watch.pcie(gpu.index), nvlinks=watch.nvlinks(gpu.index))


def _driver_version(gpus: Sequence[MeasuredGpu], watch: DriverWatch) -> dict[str, str]:
    told = next((facts["driver"] for gpu in gpus if "driver" in (facts := watch.facts(gpu.index))), "")
    return {"driver": told} if told else {}


def _document_gpu(gpu: MeasuredGpu, results: Sequence[CheckResult], state: GpuState | Failure | None) -> PreflightGpu:
    outcome = worst(result.outcome for result in results if gpu.index in result.gpus)
    about = PreflightGpu(gpu.index, gpu.name, gpu.uuid, gpu.pci_bus_id, outcome)
    if not isinstance(state, GpuState):
        return about
    clocks, heat, power = (state.sampled(name) for name in ("sm_clock_hertz", "temperature_celsius", "power_watts"))
    return replace(
        about,
        sm_clock_hertz=(min(clocks), max(clocks)) if clocks else None,
        temperature_celsius=max(heat, default=None),
        power_watts=max(power, default=None),
    )
