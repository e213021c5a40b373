"""Checks of NVIDIA's driver, of Python, stepscope and torch, and of their versions."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path

from stepscope import __version__
from stepscope.collectors.host.processes import count_gpus_on_bus
from stepscope.core.cupti import DETACH_VARIABLE, why_attached
from stepscope.core.documents.machine_checks import DoctorLine, DoctorState
from stepscope.core.metrics.readings import GPU, MissingReason
from stepscope.core.text.numbers import counted, form
from stepscope.workflow.doctor.machine import Machine
from stepscope.workflow.preflight.driver import DriverLook, DriverWatch, look_by_driver
from stepscope.workflow.preflight.gpu_state import GpuState
from stepscope.workflow.preflight.performance import why_worker_failed
from stepscope.workflow.preflight.workers import WorkerFailure, WorkerPrograms

_SECONDS = 15.0
_GPM = GPU + "sm_active_ratio"
_OK, _WARN, _FAIL = DoctorState.OK, DoctorState.WARN, DoctorState.FAIL


@dataclass(frozen=True, slots=True)
class _DriverFacts:
    """The driver and its GPUs, by NVML.

    Attributes:
        look: the GPUs.
        version, cuda: of the driver; empty where unknown.
        silent: why GPUs that were found give no readings, by index.
        gpm: why profiling counters have no value, by index; None where they have one.
    """

    look: DriverLook
    version: str = ""
    cuda: str = ""
    silent: Mapping[int, str] = field(default_factory=dict)
    gpm: Mapping[int, tuple[MissingReason, str] | None] | None = None


def ask_driver(programs: WorkerPrograms, seconds: float = _SECONDS) -> _DriverFacts:
    """Read driver and GPUs through NVML for doctor, in processes that may hang."""
    driver = look_by_driver(programs, seconds)
    if not driver.gpus:
        return _DriverFacts(driver)
    with DriverWatch({gpu.index: gpu.key for gpu in driver.gpus}, programs, seconds) as watch:
        watch.begin()
        states = watch.end(None)
        facts = next(filter(None, (watch.facts(gpu.index) for gpu in driver.gpus)), {})
    silent = {index: why_worker_failed(state) for index, state in states.items() if isinstance(state, WorkerFailure)}
    gpm = {index: _why_no_gpm(state) for index, state in states.items() if isinstance(state, GpuState)}
    return _DriverFacts(driver, facts.get("driver", ""), facts.get("cuda", ""), silent, gpm)


def look_at_driver(machine: Machine, facts: _DriverFacts) -> Iterator[DoctorLine]:
    """Doctor's check of the driver, its GPUs, and their device files."""
    on_bus, num_up = count_gpus_on_bus(machine.files), len(facts.look.gpus) - len(facts.silent)
    if facts.look.why_not:
        state = _FAIL if on_bus or facts.look.hangs else _WARN
        seen = f"; {on_bus} of NVIDIA's GPUs {form(on_bus, 'is', 'are')} on the PCI bus" if on_bus else ""
        advice = "" if on_bus or facts.look.hangs else "without a GPU stepscope analyses traces and serves host metrics"
        yield DoctorLine("driver", state, facts.look.why_not + seen, advice)
        return
    down = sorted([*facts.look.lost, *facts.silent.items()])
    version = f"{facts.version}, up to CUDA {facts.cuda}; " if facts.version else ""
    answer = f"{version}{counted(num_up, 'GPU answers', 'GPUs answer')}"
    yield DoctorLine("driver", _FAIL if down and not num_up else _OK, answer)
    for index, why in down:
        yield DoctorLine(f"GPU {index}", _FAIL, why)
    num_known = num_up + len(down)
    if on_bus > num_known:
        found = f"{on_bus} are on the PCI bus, the driver knows {num_known}"
        yield DoctorLine("GPUs", _WARN, found, "hidden by a container or cgroup, or fallen off: see dmesg for XIDs")
    yield from _look_at_device_files(machine, len(facts.look.gpus))
    yield from _look_at_gpm(facts)


def _look_at_device_files(machine: Machine, num_gpus: int) -> Iterator[DoctorLine]:
    names = machine.names("dev")
    files = [name for name in names if name.removeprefix("nvidia").isdecimal() and name.startswith("nvidia")]
    if len(files) < num_gpus:
        found = f"/dev has the files of {len(files)} of {counted(num_gpus, 'GPU')}"
        yield DoctorLine("/dev/nvidia*", _WARN, found, "give the container the others, or run: nvidia-modprobe -c 0")
    if "nvidia-uvm" not in names:
        advice = "CUDA needs it: nvidia-modprobe -u -c 0"
        yield DoctorLine("/dev/nvidia-uvm", _WARN, "is not there", advice)
    closed = [name for name in (*files, "nvidiactl") if name in names and not _opens(machine, name)]
    if closed:
        found = f"/dev/{closed[0]}{' and others' if len(closed) > 1 else ''} may not be opened by this user"
        yield DoctorLine("/dev/nvidia*", _FAIL, found, "join the group that owns it (ls -l /dev/nvidia*)")


def _opens(machine: Machine, name: str) -> bool:
    return os.access(machine.path(f"dev/{name}"), os.R_OK | os.W_OK)


def _look_at_gpm(facts: _DriverFacts) -> Iterator[DoctorLine]:
    whys = {index: why for index, why in (facts.gpm or {}).items() if why is not None}
    if facts.gpm and not whys:
        yield DoctorLine("profiling counters", _OK, "tensor, SM and memory activity through GPM")
    elif whys:
        reason, detail = next(iter(whys.values()))
        found = (
            f"none on {len(whys)} of {counted(len(facts.gpm or {}), 'GPU')}: {detail or str(reason).replace('_', ' ')}"
        )
        advice = "run dcgm-exporter with its profiling metrics, and name it to the agent (--dcgm-exporter)"
        yield DoctorLine("profiling counters", _WARN, found, advice)


def _why_no_gpm(state: GpuState) -> tuple[MissingReason, str] | None:
    """Why there are no counters; a value that needs a second sample counts as one."""
    absent = next((one for one in state.after.missing if one.metric == _GPM), None)
    return None if absent is None or absent.reason is MissingReason.NOT_YET else (absent.reason, absent.detail)


_EXTRAS = {
    "agent": ("pynvml", "prometheus_client"),
    "analyze": ("numpy", "msgspec", "isal", "fsspec", "rich"),
    "dashboard": ("dash", "dash_mantine_components", "uvicorn"),
    "workloads": ("torch",),
}
"""Extra -> the modules that it installs."""
_CUDA = re.compile(r"^cuda\b[^=]*= *['\"]([\d.]+)['\"]", re.MULTILINE)
_HIP = re.compile(r"^hip\b[^=]*= *['\"]([\d.]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class InstalledTorch:
    """An installed torch, which doctor knows without importing it.

    Attributes:
        version: of torch.
        cuda, hip: versions that it is built for; None for none.
    """

    version: str
    cuda: str | None
    hip: str | None


def _has_module(name: str) -> bool:
    return util.find_spec(name) is not None


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def look_at_python(has_module: Callable[[str], bool] = _has_module) -> Iterator[DoctorLine]:
    """Doctor's check of Python, and which parts of stepscope can run."""
    yield DoctorLine("python", _OK, f"{platform.python_version()} on {platform.system()} {platform.release()}")
    there = [extra for extra, modules in _EXTRAS.items() if all(map(has_module, modules))]
    missing = [extra for extra in _EXTRAS if extra not in there]
    found = f"{__version__} with {', '.join(there) or 'no extra'}"
    if not missing:
        yield DoctorLine("stepscope", _OK, found)
        return
    advice = f'for more: pip install "stepscope[{",".join(missing)}]"'
    yield DoctorLine("stepscope", _OK, f"{found}; without {', '.join(missing)}", advice)


def look_at_pynvml(version_of: Callable[[str], str | None] = _version_of) -> Iterator[DoctorLine]:
    """Doctor's check of NVML's binding, and for its abandoned fork."""
    binding, fork = version_of("nvidia-ml-py"), version_of("pynvml")
    if fork is not None:
        advice = "pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py"
        yield DoctorLine(
            "pynvml", _WARN, f"the abandoned package pynvml {fork} is installed; torch warns of it", advice
        )
    elif binding is None:
        advice = 'pip install "stepscope[agent]"'
        yield DoctorLine("nvidia-ml-py", _WARN, "not installed: GPUs cannot be asked through NVML", advice)
    else:
        yield DoctorLine("nvidia-ml-py", _OK, binding)


def find_torch() -> InstalledTorch | None:
    """The torch that an import would find, for doctor. It is not imported: that takes seconds."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except OSError:
        text = ""
    cuda, hip = _CUDA.search(text), _HIP.search(text)
    return InstalledTorch(_version_of("torch") or "?", cuda[1] if cuda else None, hip[1] if hip else None)


def judge_torch(torch: InstalledTorch | None, *, driver_cuda: str, num_gpus: int) -> DoctorLine:
    """Doctor's check whether torch and driver fit.

    Args:
        driver_cuda: the newest CUDA that the driver runs, such as "13.0"; empty where unknown.
    """
    if torch is None:
        return DoctorLine(
            "torch", _WARN, "not installed: no preflight, no workloads", 'pip install "stepscope[workloads]"'
        )
    if torch.hip is not None:
        return DoctorLine("torch", _OK, f"{torch.version} for ROCm {torch.hip}")
    if torch.cuda is None:
        if num_gpus:
            advice = "install one with CUDA: https://pytorch.org/get-started/locally"
            return DoctorLine("torch", _FAIL, f"{torch.version} is built without CUDA, and here are GPUs", advice)
        return DoctorLine("torch", _OK, f"{torch.version}, built without CUDA")
    built, runs = _numbers(torch.cuda), _numbers(driver_cuda)
    found = f"{torch.version} for CUDA {torch.cuda}"
    if not runs or runs >= built:
        return DoctorLine("torch", _OK, f"{found}; the driver runs up to {driver_cuda}" if runs else found)
    found += f", the driver runs up to {driver_cuda}"
    if runs[0] < built[0]:
        advice = f"update the driver, or install a torch for CUDA {runs[0]}"
        return DoctorLine("torch", _FAIL, found, advice)
    advice = "it works, but kernels compiled at run time may not load: update the driver"
    return DoctorLine("torch", _WARN, found, advice)


def judge_detachment(torch: InstalledTorch | None, environment: Mapping[str, str]) -> Iterator[DoctorLine]:
    """Judge what a capture leaves behind: CUPTI slows steps as long as it is attached. Nothing without CUDA."""
    if torch is None or torch.cuda is None:
        return
    why = why_attached(torch.cuda, environment.get(DETACH_VARIABLE))
    if why is None:
        yield DoctorLine("after a capture", _OK, "CUPTI is detached, and steps take what they took before")
        return
    advice = f"unset {DETACH_VARIABLE}" if DETACH_VARIABLE in why else "install a torch for CUDA 12.6 or later"
    yield DoctorLine("after a capture", _WARN, f"CUPTI stays attached, which slows small steps: {why}", advice)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
