"""Does NVIDIA's driver answer, for how many GPUs, and what does it let this process see?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stepscope.collectors.host.pci_gpus import count_on_bus
from stepscope.core.counting import counted, form
from stepscope.core.doctor import DoctorLine, DoctorState
from stepscope.core.gpu_metrics import GPU
from stepscope.core.readings import MissingReason
from stepscope.workflow.doctor.machine import Machine
from stepscope.workflow.preflight.driver import DriverLook, DriverWatch, look
from stepscope.workflow.preflight.judging import why_failed
from stepscope.workflow.preflight.request import Programs
from stepscope.workflow.preflight.state_judging import GpuState
from stepscope.workflow.preflight.workers import Failure

_SECONDS = 15.0
_GPM = GPU + "sm_active_ratio"
_OK, _WARN, _FAIL = DoctorState.OK, DoctorState.WARN, DoctorState.FAIL


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """What NVML told.

    Attributes:
        look: which GPUs.
        version, cuda: of the driver; empty where it did not tell.
        silent: why GPUs that were found tell nothing more, by index.
        gpm: why its profiling counters have no value, by index; None where they have one.
    """

    look: DriverLook
    version: str = ""
    cuda: str = ""
    silent: Mapping[int, str] = field(default_factory=dict)
    gpm: Mapping[int, tuple[MissingReason, str] | None] | None = None


def ask_driver(programs: Programs, seconds: float = _SECONDS) -> DriverFacts:
    """Ask NVML in processes that may hang.

    Args:
        programs: which processes.
        seconds: after which they count as hanging.
    """
    found = look(programs, seconds)
    if not found.gpus:
        return DriverFacts(found)
    with DriverWatch({gpu.index: gpu.key for gpu in found.gpus}, programs, seconds) as watch:
        watch.begin()
        states = watch.end(None)
        facts = next(filter(None, (watch.facts(gpu.index) for gpu in found.gpus)), {})
    silent = {index: why_failed(state) for index, state in states.items() if isinstance(state, Failure)}
    gpm = {index: _why_no_gpm(state) for index, state in states.items() if isinstance(state, GpuState)}
    return DriverFacts(found, facts.get("driver", ""), facts.get("cuda", ""), silent, gpm)


def look_at_driver(machine: Machine, facts: DriverFacts) -> Iterator[DoctorLine]:
    """The driver, its GPUs, and the files by which they are opened."""
    on_bus, told = count_on_bus(machine.files), len(facts.look.gpus) - len(facts.silent)
    if facts.look.why_not:
        state = _FAIL if on_bus or facts.look.hangs else _WARN
        seen = f"; {on_bus} of NVIDIA's GPUs {form(on_bus, 'is', 'are')} on the PCI bus" if on_bus else ""
        advice = "" if on_bus or facts.look.hangs else "without a GPU stepscope analyses traces and serves host metrics"
        yield DoctorLine("driver", state, facts.look.why_not + seen, advice)
        return
    down = sorted([*facts.look.lost, *facts.silent.items()])
    version = f"{facts.version}, up to CUDA {facts.cuda}; " if facts.version else ""
    answer = f"{version}{counted(told, 'GPU answers', 'GPUs answer')}"
    yield DoctorLine("driver", _FAIL if down and not told else _OK, answer)
    for index, why in down:
        yield DoctorLine(f"GPU {index}", _FAIL, why)
    num_known = told + len(down)
    if on_bus > num_known:
        found = f"{on_bus} are on the PCI bus, the driver tells of {num_known}"
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
        advice = "CUDA does not start without: nvidia-modprobe -u -c 0"
        yield DoctorLine("/dev/nvidia-uvm", _WARN, "is not there", advice)
    closed = [name for name in (*files, "nvidiactl") if name in names and not _opens(machine, name)]
    if closed:
        found = f"/dev/{closed[0]}{' and others' if len(closed) > 1 else ''} may not be opened by this user"
        yield DoctorLine("/dev/nvidia*", _FAIL, found, "join the group that owns it (ls -l /dev/nvidia*)")


def _opens(machine: Machine, name: str) -> bool:
    return os.access(machine.path(f"dev/{name}"), os.R_OK | os.W_OK)


def _look_at_gpm(facts: DriverFacts) -> Iterator[DoctorLine]:
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
    """Why there are no counters; a value that takes a second sample counts as one."""
    absent = next((one for one in state.after.missing if one.metric == _GPM), None)
    return None if absent is None or absent.reason is MissingReason.NOT_YET else (absent.reason, absent.detail)
