"""Which GPUs are asked for, by the names that people and Slurm give, and may anything be run on them?

What comes of it is a request by NVML's indices. On a GPU that is split into MIG instances other jobs may work, and no
expectation holds for a part: the driver alone is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepscope.collectors.jobs.designations import by_minor, by_uuid, names_of, visible_to_cuda
from stepscope.collectors.jobs.devices import Device
from stepscope.core.analysis import Notice
from stepscope.core.counting import counted, form
from stepscope.core.errors import DataError, UsageError
from stepscope.core.listing import listed
from stepscope.core.preflight import CheckGroup, CheckResult, Outcome
from stepscope.core.readings import labels_of
from stepscope.workflow.preflight.driver import DriverLook, check_answers
from stepscope.workflow.preflight.request import PreflightRequest, Programs

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_ONLY_STATE = frozenset({CheckGroup.STATE})


@dataclass(frozen=True, slots=True)
class Selection:
    """What is asked for.

    Attributes:
        request: by NVML's indices, as far as NVML knows the names.
        results: of GPUs that should be there and are not.
        warnings: on the names.
    """

    request: PreflightRequest
    results: tuple[CheckResult, ...] = ()
    warnings: tuple[Notice, ...] = ()


def select(request: PreflightRequest, driver: DriverLook, programs: Programs, num_on_bus: int) -> Selection:
    """Look the names up.

    Args:
        request: as it was made.
        driver: what NVML knows.
        programs: whose environment Slurm has set, where it is Slurm that names GPUs.
        num_on_bus: GPUs that are on the PCI bus, whatever the driver says.

    Raises:
        UsageError: Slurm names no GPU, or MIG instances alone and none is here.
        DataError: NVML knows no GPU, by which alone Slurm's names are understood.
        UnreachableError: it is Slurm that names GPUs, and the driver hangs.
    """
    too_few = _too_few(request, driver)
    try:
        selection = _named(request, driver, programs, num_on_bus)
    except (DataError, UsageError) as error:
        if not too_few:
            raise
        notice = Notice("not_measured", str(error))  # that a GPU is gone counts more
        selection = Selection(replace(request, gpus=None, groups=_ONLY_STATE), warnings=(notice,))
    return replace(selection, results=(*too_few, *selection.results))


def without_visible(programs: Programs) -> Programs:
    """All GPUs are seen: in a prolog CUDA_VISIBLE_DEVICES has Slurm's numbers, which are not CUDA's."""
    kept = {name: value for name, value in programs.environment.items() if name not in _VISIBLE}
    return replace(programs, environment=kept)


def _too_few(request: PreflightRequest, driver: DriverLook) -> tuple[CheckResult, ...]:
    """A failure where the driver tells of fewer GPUs than there must be, also because it is not there.

    One that hangs is told otherwise, and an installation that is broken drains no node.
    """
    known = len(driver.gpus) + len(driver.lost)
    is_known = not driver.why_not or driver.is_drivers
    if not is_known or known >= request.expected_gpus:
        return ()
    why = driver.why_not or "look for XIDs, reboot"
    what = f"the driver knows {known} of {counted(request.expected_gpus, 'GPU')}: {why}"
    return (CheckResult("driver", (), Outcome.FAIL, what),)


def _named(request: PreflightRequest, driver: DriverLook, programs: Programs, num_on_bus: int) -> Selection:
    if request.slurm_gpus is not None:
        check_answers(driver)
        visible = programs.environment.get("CUDA_VISIBLE_DEVICES", "")
        selection = _by_slurm(request, request.slurm_gpus, driver, visible, num_on_bus)
    elif request.gpus:
        devices = _devices(driver)
        found = [(by_uuid(devices, name), name) for name in request.gpus]
        gpus = tuple(name if device is None else device.gpu for device, name in found)
        selection = Selection(replace(request, gpus=gpus))
    else:
        return Selection(request)
    return _without_load_where_split(selection, driver)


def _by_slurm(
    request: PreflightRequest, names: Sequence[str], driver: DriverLook, visible: str, num_on_bus: int
) -> Selection:
    """Minor numbers and UUIDs.

    On machines with MIG numbers count instances, and tell nothing. Slurm sets CUDA_VISIBLE_DEVICES to UUIDs there,
    where it knows them.
    """
    if not names:
        raise UsageError("Slurm names no GPU by a number or UUID", where="--slurm-gpus")
    devices = _devices(driver)
    visible_names = names_of(visible)
    if visible_names and len(visible_to_cuda(devices, visible)) == len(visible_names):
        names = visible_names
    numbers = [name for name in names if name.isdecimal()]
    if numbers and any(gpu.is_split for gpu in driver.gpus):
        what = f"{listed(numbers)} {form(len(numbers), 'tells', 'tell')} no GPU"
        why = (
            f"Slurm's {what} on a machine with MIG: the driver is asked for all of its GPUs, and nothing is run on them"
        )
        return Selection(replace(request, gpus=None, groups=_ONLY_STATE), warnings=(Notice("slurm_counts_mig", why),))
    if numbers and driver.gpus and not any(gpu.minor for gpu in driver.gpus):
        taken = f"{listed(numbers)} {form(len(numbers), 'is taken for an index', 'are taken for indices')}"
        notice = Notice("minor_unknown", f"the driver tells no minor number: Slurm's {taken}")
        driver = replace(driver, gpus=tuple(replace(gpu, minor=str(gpu.index)) for gpu in driver.gpus))
        selection = _by_names(request, names, driver, num_on_bus)
        return replace(selection, warnings=(notice, *selection.warnings))
    return _by_names(request, names, driver, num_on_bus)


def _by_names(request: PreflightRequest, names: Sequence[str], driver: DriverLook, num_on_bus: int) -> Selection:
    """Numbers are minor numbers of whole GPUs."""
    devices = _devices(driver)
    found = {name: by_minor(devices, name) if name.isdecimal() else by_uuid(devices, name) for name in names}
    gpus = tuple(dict.fromkeys(device.gpu for device in found.values() if device is not None))
    unknown = [name for name, device in found.items() if device is None]
    request = replace(request, gpus=gpus)
    return _with_unknown(request, unknown, driver, num_on_bus) if unknown else Selection(request)


def _with_unknown(request: PreflightRequest, unknown: Sequence[str], driver: DriverLook, num_on_bus: int) -> Selection:
    """Names that no GPU has which answers: where one is lost it is that one, or one that does not tell its number.

    Otherwise a whole GPU is gone, as Slurm counted it when slurmd started. Instances are made and destroyed by people:
    their names may be wrong.

    Args:
        request: for the others.
        unknown: the names; numbers are of whole GPUs.
        driver: what NVML knows.
        num_on_bus: GPUs on the PCI bus.

    Raises:
        UsageError: there are no others, and no GPU is gone.
    """
    numbers = [name for name in unknown if name.isdecimal()]
    gone = [name for name in unknown if name.startswith("GPU-")]
    warnings: tuple[Notice, ...] = ()
    numberless = [str(gpu.index) for gpu in driver.gpus if not gpu.minor] if numbers else []
    if numberless:
        request, warnings = _with_numberless(request, numbers, numberless, len(driver.lost))
    if len(numbers) > len(numberless):
        gone = [*numbers, *gone]
    if driver.lost:  # they tell neither number nor UUID
        gpus = (*(request.gpus or ()), *(str(index) for index, _ in driver.lost))
        return Selection(replace(request, gpus=gpus), warnings=warnings)
    why = ""
    if num_on_bus > len(driver.gpus):
        seen = f"{counted(num_on_bus, 'GPU')} {form(num_on_bus, 'is', 'are')} on the PCI bus"
        why = f"{_no_gpus(unknown)}: {seen}, the driver tells of {len(driver.gpus)}: look for XIDs, reboot"
    elif gone:
        named = f"Slurm names {form(len(gone), 'GPU')} {listed(gone)}, which the driver does not tell of"
        fell = form(len(gone), "it fell off the bus", "they fell off the bus")
        why = f"{named}: {fell}, or gres.conf is wrong (compare with nvidia-smi -q, Minor Number)"
    if why:
        failed = (CheckResult("driver", (), Outcome.FAIL, why),)
        return Selection(request if request.gpus else replace(request, gpus=None, groups=_ONLY_STATE), failed, warnings)
    if not request.gpus:
        raise UsageError(_no_gpus(unknown), where="--slurm-gpus", what_next="compare it with nvidia-smi -L")
    wrong = [name for name in unknown if name not in numbers]
    if wrong:
        warnings = (*warnings, Notice("no_such_gpu", f"{_no_gpus(wrong)}: the others are checked"))
    return Selection(request, warnings=warnings)


def _no_gpus(names: Sequence[str]) -> str:
    return f"Slurm's {listed(names)} {form(len(names), 'is no GPU', 'are no GPUs')} here"


def _with_numberless(
    request: PreflightRequest, numbers: Sequence[str], numberless: Sequence[str], num_lost: int
) -> tuple[PreflightRequest, tuple[Notice, ...]]:
    """GPUs that do not tell their minor number as well; where they may be another job's, nothing is run."""
    why = f"no GPU tells that it is Slurm's {listed(numbers)}: GPU {listed(numberless)}, without a minor number, "
    why += form(len(numberless), "is checked", "are checked")
    request = replace(request, gpus=tuple(dict.fromkeys((*(request.gpus or ()), *numberless))))
    if len(numberless) + num_lost > len(numbers):
        request, why = replace(request, groups=_ONLY_STATE), f"{why} by the driver, and nothing is run"
    return request, (Notice("minor_unknown", why),)


def _without_load_where_split(selection: Selection, driver: DriverLook) -> Selection:
    request = selection.request
    split = [str(gpu.index) for gpu in driver.gpus if gpu.is_split and str(gpu.index) in (request.gpus or ())]
    if not split or not request.runs:
        return selection
    what = f"GPU {listed(split)} {form(len(split), 'is', 'are')} split into MIG instances"
    notice = Notice("split_gpu", f"{what}, where other jobs may work: the driver is asked, and nothing is run")
    return replace(selection, request=replace(request, groups=_ONLY_STATE), warnings=(*selection.warnings, notice))


def _devices(driver: DriverLook) -> list[Device]:
    """Whole GPUs, also those that are split, and MIG instances."""
    return [
        Device(labels, gpu.uuid, str(gpu.index), gpu.minor)
        for gpu in driver.gpus
        for labels in (
            labels_of(gpu=gpu.index, uuid=gpu.uuid),
            *(labels_of(gpu=gpu.index, uuid=uuid, gpu_instance=instance) for uuid, instance in gpu.instances),
        )
    ]
