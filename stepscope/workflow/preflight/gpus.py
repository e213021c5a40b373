"""GPUs of a preflight: those that the user or Slurm names, and those that NVML and CUDA find.

Names become NVML's indices. Of a GPU that is split into MIG instances only the driver is asked: other jobs may run
there, and no expectation holds for a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stepscope.collectors.jobs import devices as device_names
from stepscope.collectors.nvml.gpu import NVSWITCH
from stepscope.core.documents.machine_checks import CheckGroup, CheckResult, Outcome
from stepscope.core.errors import DataError, UnreachableError, UsageError
from stepscope.core.hardware.devices import Device
from stepscope.core.hardware.gpu_catalogue import GpuModel, find_gpu
from stepscope.core.text.numbers import counted, form, listed
from stepscope.core.vocabulary import Notice
from stepscope.workflow.preflight import workers as processes
from stepscope.workflow.preflight.device import DeviceFacts
from stepscope.workflow.preflight.driver import DriverGpu, DriverLook, check_driver_answers

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_ONLY_STATE = frozenset({CheckGroup.STATE})


@dataclass(frozen=True, slots=True)
class GpuSelection:
    """GPUs that a preflight is to check.

    Attributes:
        request: by NVML's indices, as far as NVML knows the names.
        results: failures of GPUs that are missing.
        warnings: on the names.
    """

    request: processes.PreflightRequest
    results: tuple[CheckResult, ...] = ()
    warnings: tuple[Notice, ...] = ()


def select_gpus(
    request: processes.PreflightRequest, driver: DriverLook, programs: processes.WorkerPrograms, num_on_bus: int
) -> GpuSelection:
    """Look up the GPUs that a preflight's request or Slurm names.

    Args:
        programs: with the environment that Slurm has set, where Slurm names the GPUs.
        num_on_bus: GPUs on the PCI bus.

    Raises:
        UsageError: Slurm names no GPU, or only MIG instances and none is here.
        DataError: Slurm names GPUs, and NVML knows none to look them up.
        UnreachableError: Slurm names GPUs, and the driver hangs.
    """
    too_few = _too_few(request, driver)
    try:
        selection = _named(request, driver, programs, num_on_bus)
    except (DataError, UsageError) as error:
        if not too_few:
            raise
        notice = Notice("not_measured", str(error))  # a GPU that is gone counts more
        selection = GpuSelection(replace(request, gpus=None, groups=_ONLY_STATE), warnings=(notice,))
    return replace(selection, results=(*too_few, *selection.results))


def without_visible(programs: processes.WorkerPrograms) -> processes.WorkerPrograms:
    """Preflight's programs without CUDA_VISIBLE_DEVICES: in a prolog it has Slurm's numbers, not CUDA's."""
    kept = {name: value for name, value in programs.environment.items() if name not in _VISIBLE}
    return replace(programs, environment=kept)


def _too_few(request: processes.PreflightRequest, driver: DriverLook) -> tuple[CheckResult, ...]:
    """A failure where the driver knows fewer GPUs than expected, or is missing.

    A driver that hangs is reported elsewhere; a broken installation of stepscope must not drain the node.
    """
    known = len(driver.gpus) + len(driver.lost)
    is_known = not driver.why_not or driver.is_drivers
    if not is_known or known >= request.expected_gpus:
        return ()
    why = driver.why_not or "look for XIDs, reboot"
    what = f"the driver knows {known} of {counted(request.expected_gpus, 'GPU')}: {why}"
    return (CheckResult("driver", (), Outcome.FAIL, what),)


def _named(
    request: processes.PreflightRequest, driver: DriverLook, programs: processes.WorkerPrograms, num_on_bus: int
) -> GpuSelection:
    if request.slurm_gpus is not None:
        check_driver_answers(driver)
        visible = programs.environment.get("CUDA_VISIBLE_DEVICES", "")
        selection = _by_slurm(request, request.slurm_gpus, driver, visible, num_on_bus)
    elif request.gpus:
        devices = _devices(driver)
        found = [(device_names.find_by_uuid(devices, name), name) for name in request.gpus]
        gpus = tuple(name if device is None else device.device.index for device, name in found)
        selection = GpuSelection(replace(request, gpus=gpus))
    else:
        return GpuSelection(request)
    return _without_load_where_split(selection, driver)


def _by_slurm(
    request: processes.PreflightRequest, names: Sequence[str], driver: DriverLook, visible: str, num_on_bus: int
) -> GpuSelection:
    """Select by minor numbers and UUIDs.

    On machines with MIG Slurm's numbers count instances and identify no GPU. There Slurm sets CUDA_VISIBLE_DEVICES to
    UUIDs, where it knows them.
    """
    if not names:
        raise UsageError("Slurm names no GPU by a number or UUID", where="--slurm-gpus")
    devices = _devices(driver)
    _visible_names = device_names.parse_device_list(visible)
    if _visible_names and len(device_names.devices_visible_to_cuda(devices, visible)) == len(_visible_names):
        names = _visible_names
    numbers = [name for name in names if name.isdecimal()]
    if numbers and any(gpu.is_split for gpu in driver.gpus):
        what = f"{listed(numbers)} {form(len(numbers), 'identifies', 'identify')} no GPU"
        why = (
            f"Slurm's {what} on a machine with MIG: the driver is asked for all of its GPUs, and nothing is run on them"
        )
        return GpuSelection(
            replace(request, gpus=None, groups=_ONLY_STATE), warnings=(Notice("slurm_counts_mig", why),)
        )
    if numbers and driver.gpus and not any(gpu.minor for gpu in driver.gpus):
        taken = f"{listed(numbers)} {form(len(numbers), 'is taken for an index', 'are taken for indices')}"
        notice = Notice("minor_unknown", f"the driver reports no minor number: Slurm's {taken}")
        driver = replace(driver, gpus=tuple(replace(gpu, minor=str(gpu.index)) for gpu in driver.gpus))
        selection = _by_names(request, names, driver, num_on_bus)
        return replace(selection, warnings=(notice, *selection.warnings))
    return _by_names(request, names, driver, num_on_bus)


def _by_names(
    request: processes.PreflightRequest, names: Sequence[str], driver: DriverLook, num_on_bus: int
) -> GpuSelection:
    devices = _devices(driver)
    found = {
        name: device_names.find_by_minor(devices, name)
        if name.isdecimal()
        else device_names.find_by_uuid(devices, name)
        for name in names
    }
    gpus = tuple(dict.fromkeys(device.device.index for device in found.values() if device is not None))
    unknown = [name for name, device in found.items() if device is None]
    request = replace(request, gpus=gpus)
    return _with_unknown(request, unknown, driver, num_on_bus) if unknown else GpuSelection(request)


def _with_unknown(
    request: processes.PreflightRequest, unknown: Sequence[str], driver: DriverLook, num_on_bus: int
) -> GpuSelection:
    """Select for names that no answering GPU has: such a GPU is lost, or does not report its minor number.

    Otherwise a whole GPU is gone, as Slurm counted it when slurmd started. Instances are created and destroyed by
    users: their names may be wrong.

    Args:
        unknown: the names; numbers are of whole GPUs.

    Raises:
        UsageError: there are no others, and no GPU is gone.
    """
    numbers = [name for name in unknown if name.isdecimal()]
    gone = [name for name in unknown if name.startswith("GPU-")]
    warnings: tuple[Notice, ...] = ()
    without_minor = [str(gpu.index) for gpu in driver.gpus if not gpu.minor] if numbers else []
    if without_minor:
        request, warnings = _with_unknown_minor(request, numbers, without_minor, len(driver.lost))
    if len(numbers) > len(without_minor):
        gone = [*numbers, *gone]
    if driver.lost:  # neither number nor UUID of these is known
        gpus = (*(request.gpus or ()), *(str(index) for index, _ in driver.lost))
        return GpuSelection(replace(request, gpus=gpus), warnings=warnings)
    why = ""
    if num_on_bus > len(driver.gpus):
        seen = f"{counted(num_on_bus, 'GPU')} {form(num_on_bus, 'is', 'are')} on the PCI bus"
        why = f"{_no_gpus(unknown)}: {seen}, the driver knows {len(driver.gpus)}: look for XIDs, reboot"
    elif gone:
        named = f"Slurm names {form(len(gone), 'GPU')} {listed(gone)}, which the driver does not know"
        fell = form(len(gone), "it fell off the bus", "they fell off the bus")
        why = f"{named}: {fell}, or gres.conf is wrong (compare with nvidia-smi -q, Minor Number)"
    if why:
        failed = (CheckResult("driver", (), Outcome.FAIL, why),)
        return GpuSelection(
            request if request.gpus else replace(request, gpus=None, groups=_ONLY_STATE), failed, warnings
        )
    if not request.gpus:
        raise UsageError(_no_gpus(unknown), where="--slurm-gpus", what_next="compare it with nvidia-smi -L")
    wrong = [name for name in unknown if name not in numbers]
    if wrong:
        warnings = (*warnings, Notice("no_such_gpu", f"{_no_gpus(wrong)}: the others are checked"))
    return GpuSelection(request, warnings=warnings)


def _no_gpus(names: Sequence[str]) -> str:
    return f"Slurm's {listed(names)} {form(len(names), 'is no GPU', 'are no GPUs')} here"


def _with_unknown_minor(
    request: processes.PreflightRequest, numbers: Sequence[str], without_minor: Sequence[str], num_lost: int
) -> tuple[processes.PreflightRequest, tuple[Notice, ...]]:
    """Add GPUs without a known minor number; where they may be another job's, nothing is run."""
    why = f"no GPU tells that it is Slurm's {listed(numbers)}: GPU {listed(without_minor)}, without a minor number, "
    why += form(len(without_minor), "is checked", "are checked")
    request = replace(request, gpus=tuple(dict.fromkeys((*(request.gpus or ()), *without_minor))))
    if len(without_minor) + num_lost > len(numbers):
        request, why = replace(request, groups=_ONLY_STATE), f"{why} by the driver, and nothing is run"
    return request, (Notice("minor_unknown", why),)


def _without_load_where_split(selection: GpuSelection, driver: DriverLook) -> GpuSelection:
    request = selection.request
    split = [str(gpu.index) for gpu in driver.gpus if gpu.is_split and str(gpu.index) in (request.gpus or ())]
    if not split or not request.runs:
        return selection
    what = f"GPU {listed(split)} {form(len(split), 'is', 'are')} split into MIG instances"
    notice = Notice("split_gpu", f"{what}, where other jobs may work: the driver is asked, and nothing is run")
    return replace(selection, request=replace(request, groups=_ONLY_STATE), warnings=(*selection.warnings, notice))


def _devices(driver: DriverLook) -> list[device_names.DeviceUsage]:
    """Whole GPUs, also those that are split, and MIG instances."""
    return [
        device_names.DeviceUsage(Device(uuid, str(gpu.index), instance), gpu.uuid, gpu.minor)
        for gpu in driver.gpus
        for uuid, instance in ((gpu.uuid, ""), *gpu.instances)
    ]


_NUM_PROCESSES = 2
"""On the CPU, where none are named."""
_DOCTOR = "run: stepscope doctor"
_WITHOUT_TORCH = 'run: pip install "stepscope[workloads]", or ask the driver alone with --checks state'


@dataclass(frozen=True, slots=True)
class GpuDiscovery:
    """GPUs that a preflight found.

    Attributes:
        results: of GPUs that cannot be measured.
    """

    gpus: tuple[MeasuredGpu, ...]
    versions: dict[str, str]
    results: tuple[CheckResult, ...] = ()
    warnings: tuple[Notice, ...] = ()


def _visible_names(programs: processes.WorkerPrograms, variable: str) -> list[str] | None:
    """Devices that the environment lets CUDA see, in CUDA's order; None for all."""
    text = programs.environment.get(variable)
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def discover_cpu(request: processes.PreflightRequest) -> GpuDiscovery:
    """Processes on the CPU that stand for a preflight's GPUs.

    Raises:
        UsageError: a name is not a number.
    """
    names = request.gpus or tuple(map(str, range(_NUM_PROCESSES)))
    if not all(name.isdecimal() for name in names):
        raise UsageError("processes on the CPU have numbers", where="--gpus", what_next="give numbers, such as 0,1")
    return GpuDiscovery(tuple(MeasuredGpu(int(name), name, "CPU") for name in names), {})


def discover_by_driver(request: processes.PreflightRequest, driver: DriverLook) -> GpuDiscovery:
    """Find a preflight's GPUs through NVML, where nothing runs on them: that needs no torch.

    Raises:
        DataError: NVML cannot be asked, or knows no GPU.
        UnreachableError: the driver hangs.
    """
    check_driver_answers(driver)
    return _chosen([_by_driver(one) for one in driver.gpus], driver.lost, request)


def discover_gpus(
    request: processes.PreflightRequest, programs: processes.WorkerPrograms, driver: DriverLook
) -> GpuDiscovery:
    """Find a preflight's GPUs through CUDA and NVML.

    Raises:
        UsageError: torch is not installed.
        DataError: this torch cannot use GPUs, or there is none.
        UnreachableError: the driver hangs.
    """
    with processes.Worker((*programs.device, "cuda"), programs.environment) as scout:
        reply = processes.ask_worker(scout, {"do": "describe"}, request.start_seconds)
    versions = reply["versions"] if isinstance(reply, dict) else {}
    devices = [DeviceFacts(**one) for one in reply["devices"]] if isinstance(reply, dict) else []
    visible = _visible_names(programs, "HIP_VISIBLE_DEVICES" if "hip" in versions else "CUDA_VISIBLE_DEVICES")
    warnings: list[Notice] = []
    unseen: list[tuple[int, str]] = []
    if devices:
        gpus = [_gpu(one, visible, driver) for one in devices]
        unseen = [] if visible is not None else _unseen(driver, gpus)
        if request.gpus and any(one.is_split for one in driver.gpus):
            gpus = _whole(gpus, driver, visible)
    else:
        _check_torch(reply, versions)
        why = reply.detail if isinstance(reply, processes.WorkerFailure) else "torch sees no GPU"
        gpus = [_by_driver(one) for one in driver.gpus if visible is None or _is_among(one, visible)]
        if not gpus:
            if isinstance(reply, processes.WorkerFailure):
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


def _gpu(device: DeviceFacts, visible: list[str] | None, driver: DriverLook) -> MeasuredGpu:
    """A device of CUDA under NVML's names for it, where it has any."""
    known = next((gpu for gpu in driver.gpus if device.uuid and gpu.uuid == f"GPU-{device.uuid}"), None)
    name = visible[device.index] if visible else known.uuid if known else str(device.index)
    if known is None:
        return MeasuredGpu(device.index, name, device.name, device.uuid)
    return MeasuredGpu(known.index, name, device.name, device.uuid, known.key)


def _check_torch(reply: processes.Reply, versions: dict[str, str]) -> None:
    """Raise a UsageError or DataError where this Python cannot measure a GPU at all."""
    if isinstance(reply, processes.WorkerFailure) and "No module named 'torch'" in reply.detail:
        raise UsageError("torch is not installed", what_next=_WITHOUT_TORCH)
    if isinstance(reply, dict) and "cuda" not in versions and "hip" not in versions:
        what = f"no GPU can be measured: this torch ({versions['torch']}) is built without CUDA"
        raise DataError(what, what_next="install one with CUDA, or try --device cpu")


def _whole(gpus: Sequence[MeasuredGpu], driver: DriverLook, visible: list[str] | None) -> list[MeasuredGpu]:
    """Whole GPUs. A split GPU can hide the others from CUDA, which shows one instance: those are tried alone."""
    seen = [gpu for gpu in gpus if gpu.pci_bus_id]
    hidden = [one for one in driver.gpus if not one.is_split and one.key not in {gpu.pci_bus_id for gpu in seen}]
    return [*seen, *(_by_driver(one) for one in hidden if visible is None or _is_among(one, visible))]


def _unseen(driver: DriverLook, gpus: Sequence[MeasuredGpu]) -> list[tuple[int, str]]:
    if any(not gpu.uuid or "MIG" in gpu.name for gpu in gpus):
        return []  # not distinguishable, or parts of GPUs
    seen = {gpu.uuid for gpu in gpus}
    return [
        (one.index, "the driver knows it and CUDA does not see it: look for XIDs, reset it")
        for one in driver.gpus
        if one.uuid.removeprefix("GPU-") not in seen and not one.is_split
    ]


def _chosen(
    gpus: Sequence[MeasuredGpu], lost: Sequence[tuple[int, str]], request: processes.PreflightRequest
) -> GpuDiscovery:
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
    return GpuDiscovery(tuple(chosen), {}, tuple(results))


def _is_called(gpu: MeasuredGpu, name: str) -> bool:
    return name == str(gpu.index) or (len(name) > len("GPU-") and gpu.uuid.startswith(name.removeprefix("GPU-")))


@dataclass(frozen=True, slots=True)
class MeasuredGpu:
    """A GPU that a preflight measures.

    Attributes:
        index: NVML's, else CUDA's.
        visible: its name in CUDA_VISIBLE_DEVICES: an ordinal or a UUID.
        name, uuid, pci_bus_id: the driver's; uuid without "GPU-".
        pcie: generation and lanes that GPU and slot support; None where not known.
        nvlinks: active links by where they end, see `collectors.nvml`; None where not known.
    """

    index: int
    visible: str
    name: str
    uuid: str = ""
    pci_bus_id: str = ""
    pcie: tuple[int, int] | None = None
    nvlinks: Mapping[str, int] | None = None

    @property
    def model(self) -> GpuModel | None:
        """Its entry in the catalogue."""
        return find_gpu(self.name)

    def links_to(self, other: MeasuredGpu) -> int:
        """Number of NVLinks that lead to another GPU."""
        links = self.nvlinks or {}
        return links.get(NVSWITCH, 0) + links.get(other.pci_bus_id, 0)
