"""Which GPUs are to be measured, by which names do NVML, CUDA and people know them?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepscope.core.analysis import Notice
from stepscope.core.errors import DataError, UnreachableError, UsageError
from stepscope.core.preflight import CheckResult, Outcome
from stepscope.workflow.preflight.driver import DriverGpu, DriverLook, check_answers
from stepscope.workflow.preflight.gpus import MeasuredGpu
from stepscope.workflow.preflight.request import PreflightRequest, Programs
from stepscope.workflow.preflight.workers import Failure, Reply, Worker, ask

_NUM_PROCESSES = 2
"""On the CPU, where none are named."""
_DOCTOR = "run: stepscope doctor"


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found.

    Attributes:
        gpus: to measure.
        versions: of torch and CUDA.
        results: of GPUs that cannot be measured.
        warnings: on what was found.
    """

    gpus: tuple[MeasuredGpu, ...]
    versions: dict[str, str]
    results: tuple[CheckResult, ...] = ()
    warnings: tuple[Notice, ...] = ()


def visible_names(programs: Programs, variable: str) -> list[str] | None:
    """What the caller's environment lets CUDA see, in CUDA's order; None for everything."""
    text = programs.environment.get(variable)
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def discover_cpu(request: PreflightRequest) -> Discovery:
    """Processes on the CPU that stand for GPUs.

    Raises:
        UsageError: one is no number.
    """
    names = request.gpus or tuple(map(str, range(_NUM_PROCESSES)))
    if not all(name.isdecimal() for name in names):
        raise UsageError("processes on the CPU have numbers", where="--gpus", what_next="name them so: 0,1")
    return Discovery(tuple(MeasuredGpu(int(name), name, "CPU") for name in names), {})


def discover_by_driver(request: PreflightRequest, driver: DriverLook) -> Discovery:
    """GPUs that NVML knows, where nothing is to be run on them: that needs no torch.

    Raises:
        DataError: NVML cannot be asked, or knows no GPU.
        UnreachableError: the driver hangs.
    """
    check_answers(driver)
    return _chosen([_by_driver(one) for one in driver.gpus], driver.lost, request)


def discover(request: PreflightRequest, programs: Programs, driver: DriverLook) -> Discovery:
    """GPUs of this node that CUDA sees, and those that NVML knows.

    Raises:
        UsageError: torch is not installed.
        DataError: this torch cannot use GPUs, or there is none.
        UnreachableError: the driver hangs.
    """
    with Worker((*programs.device, "cuda"), programs.environment) as scout:
        reply = ask(scout, {"do": "describe"}, request.start_seconds)
    versions = reply["versions"] if isinstance(reply, dict) else {}
    devices = reply["devices"] if isinstance(reply, dict) else []
    visible = visible_names(programs, "HIP_VISIBLE_DEVICES" if "hip" in versions else "CUDA_VISIBLE_DEVICES")
    warnings: list[Notice] = []
    unseen: list[tuple[int, str]] = []
    if devices:
        gpus = [_gpu(one, visible, driver) for one in devices]
        unseen = [] if visible is not None else _unseen(driver, gpus)
        if request.gpus and any(one.is_split for one in driver.gpus):
            gpus = _whole(gpus, driver, visible)
    else:
        _check_hope(reply, versions)
        why = reply.detail if isinstance(reply, Failure) else "torch sees no GPU"
        gpus = [_by_driver(one) for one in driver.gpus if visible is None or _is_among(one, visible)]
        if not gpus:
            if isinstance(reply, Failure):
                raise UnreachableError(f"torch cannot look for GPUs: {why}", what_next=_DOCTOR)
            raise DataError(f"{why} here", what_next=f"{_DOCTOR}, or try --device cpu")
        # one GPU off the bus can hide all others from CUDA: each is tried alone
        warnings.append(Notice("cuda_sees_no_gpu", f"{why}; each GPU that NVML knows is tried alone"))
    found = _chosen(gpus, (*driver.lost, *unseen), request)
    return replace(found, versions=versions, warnings=tuple(warnings))


def _by_driver(gpu: DriverGpu) -> MeasuredGpu:
    return MeasuredGpu(gpu.index, gpu.uuid, "", gpu.uuid.removeprefix("GPU-"), gpu.key)


def _is_among(gpu: DriverGpu, visible: Sequence[str]) -> bool:
    return any(name == str(gpu.index) or (len(name) > len("GPU-") and gpu.uuid.startswith(name)) for name in visible)


def _gpu(told: dict[str, Any], visible: list[str] | None, driver: DriverLook) -> MeasuredGpu:
    """A device of CUDA's under the names that NVML has for it, where it has any."""
    ordinal, uuid = told["index"], told["uuid"]
    known = next((gpu for gpu in driver.gpus if uuid and gpu.uuid == f"GPU-{uuid}"), None)
    name = visible[ordinal] if visible else known.uuid if known else str(ordinal)
    if known is None:
        return MeasuredGpu(ordinal, name, told["name"], uuid)
    return MeasuredGpu(known.index, name, told["name"], uuid, known.key)


def _check_hope(reply: Reply, versions: dict[str, str]) -> None:
    """Raise a UsageError or DataError where this Python will never measure a GPU."""
    if isinstance(reply, Failure) and "No module named 'torch'" in reply.detail:
        raise UsageError("torch is not installed", what_next='run: pip install "stepscope[workloads]"')
    if isinstance(reply, dict) and "cuda" not in versions and "hip" not in versions:
        what = f"no GPU can be measured: this torch ({versions['torch']}) is built without CUDA"
        raise DataError(what, what_next="install one with CUDA, or try --device cpu")


def _whole(gpus: Sequence[MeasuredGpu], driver: DriverLook, visible: list[str] | None) -> list[MeasuredGpu]:
    """Whole GPUs. Where one is split CUDA shows an instance alone, which may hide the others: those are tried alone."""
    seen = [gpu for gpu in gpus if gpu.pci_bus_id]
    hidden = [one for one in driver.gpus if not one.is_split and one.key not in {gpu.pci_bus_id for gpu in seen}]
    return [*seen, *(_by_driver(one) for one in hidden if visible is None or _is_among(one, visible))]


def _unseen(driver: DriverLook, gpus: Sequence[MeasuredGpu]) -> list[tuple[int, str]]:
    if any(not gpu.uuid or "MIG" in gpu.name for gpu in gpus):
        return []  # they cannot be told apart, or are parts of GPUs
    seen = {gpu.uuid for gpu in gpus}
    return [
        (one.index, "the driver knows it and CUDA does not see it: look for XIDs, reset it")
        for one in driver.gpus
        if one.uuid.removeprefix("GPU-") not in seen and not one.is_split
    ]


def _chosen(gpus: Sequence[MeasuredGpu], lost: Sequence[tuple[int, str]], request: PreflightRequest) -> Discovery:
    """Those that are asked for; of those that are not to be measured, why not."""
    chosen: list[MeasuredGpu] = []
    results = []
    for name in dict.fromkeys(request.gpus or [*(str(gpu.index) for gpu in gpus), *(str(index) for index, _ in lost)]):
        found = next((gpu for gpu in gpus if _is_called(gpu, name)), None)
        if found is not None:
            chosen += [found] if found not in chosen else []
            continue
        why = next((why for index, why in lost if str(index) == name), None)
        why = why or f"there is no GPU {name} here: it fell off the bus, or that is not its name"
        results.append(CheckResult("driver", (int(name),) if name.isdecimal() else (), Outcome.FAIL, why))
    return Discovery(tuple(chosen), {}, tuple(results))


def _is_called(gpu: MeasuredGpu, name: str) -> bool:
    return name == str(gpu.index) or (len(name) > len("GPU-") and gpu.uuid.startswith(name.removeprefix("GPU-")))
