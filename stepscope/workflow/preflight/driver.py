"""NVML's readings of each GPU before, during and after, taken in a process per GPU as any call may hang."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepscope.collectors.nvml.binding import NO_BINDING, DriverUnusableError
from stepscope.core.errors import DataError, UnreachableError
from stepscope.core.metrics.readings import GPU, Collection, Finding, read_labels
from stepscope.core.metrics.stream import StreamReader
from stepscope.workflow.preflight import workers as processes
from stepscope.workflow.preflight.gpu_state import GpuState, gpu_value_of
from stepscope.workflow.preflight.performance import why_worker_failed

_UNUSABLE = f"{DriverUnusableError.__name__}: "
"""Beginning of a process's error of this kind."""


@dataclass(frozen=True, slots=True)
class DriverGpu:
    """A GPU of a preflight that NVML knows.

    Attributes:
        key: its PCI address, by which it is asked for.
        index: NVML's.
        minor: number of its file in /dev; empty where not known.
        is_split: whether MIG is on.
        instances: UUID of each MIG device, and the id of the GPU instance that it is in.
    """

    key: str
    index: int
    uuid: str
    minor: str = ""
    is_split: bool = False
    instances: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DriverLook:
    """The GPUs that NVML knows before a preflight.

    Attributes:
        gpus: those that answer.
        lost: index of each other, and why it does not answer.
        why_not: why no GPU is known; empty otherwise.
        hangs: whether that is because the driver hangs.
        is_drivers: whether the driver refused or is missing; else this installation may be broken.
    """

    gpus: tuple[DriverGpu, ...] = ()
    lost: tuple[tuple[int, str], ...] = ()
    why_not: str = ""
    hangs: bool = False
    is_drivers: bool = False


def check_driver_answers(driver: DriverLook) -> None:
    """Check that NVML knows a GPU for the preflight.

    Raises:
        DataError: NVML cannot be used, or knows no GPU.
        UnreachableError: the driver hangs.
    """
    if driver.hangs:
        raise UnreachableError(f"the driver hangs: {driver.why_not}", what_next="drain the node and reboot it")
    if not driver.gpus and not driver.lost:
        raise DataError(driver.why_not or "NVML knows no GPU here", what_next="run: stepscope doctor")


def look_by_driver(programs: processes.WorkerPrograms, seconds: float) -> DriverLook:
    """Find a preflight's GPUs through NVML, each in a process of its own: one that hangs hides no other.

    Args:
        seconds: after which the driver, or a GPU, counts as hanging.
    """
    with processes.Worker(programs.state, programs.environment) as worker:
        reply = processes.ask_worker(worker, {"do": "count"}, seconds)
    if isinstance(reply, processes.WorkerFailure):
        text = reply.detail.removeprefix(_UNUSABLE)
        is_drivers = (
            reply.kind is processes.FailureKind.ERROR and reply.detail.startswith(_UNUSABLE) and text != NO_BINDING
        )
        return DriverLook(why_not=text, hangs=reply.kind is processes.FailureKind.HUNG, is_drivers=is_drivers)
    assert isinstance(reply, dict)
    workers = [processes.Worker(programs.state, programs.environment) for _ in range(reply["count"])]
    try:
        replies = processes.ask_workers(
            {worker: {"do": "look", "index": index} for index, worker in enumerate(workers)}, seconds
        )
    finally:
        processes.close_workers(workers)
    gpus, lost = [], []
    for index, worker in enumerate(workers):
        gpu = _gpu_of(index, replies[worker])
        if isinstance(gpu, DriverGpu):
            gpus.append(gpu)
        else:
            lost.append((index, gpu))
    return DriverLook(tuple(gpus), tuple(lost))


def _gpu_of(index: int, reply: processes.Reply) -> DriverGpu | str:
    if isinstance(reply, processes.WorkerFailure):
        return why_worker_failed(reply)
    assert isinstance(reply, dict)
    if "lost" in reply:
        reason, detail = reply["lost"]
        return str(detail or reason)
    names = reply["names"]
    instances = tuple((uuid, gpu_instance) for uuid, gpu_instance in names["instances"])
    uuid = dict(read_labels(reply["labels"]))["uuid"]
    return DriverGpu(reply["key"], index, uuid, names["minor"], names["is_split"], instances)


class DriverWatch:
    """NVML's readings of GPUs before, during and after a preflight's measurement. A context manager."""

    def __init__(self, keys: Mapping[int, str], programs: processes.WorkerPrograms, seconds: float) -> None:
        """
        Args:
            keys: PCI address of each GPU, by index.
            programs: which processes.
            seconds: after which the driver counts as hanging.
        """
        self._keys = keys
        self._seconds = seconds
        self._workers = {index: processes.Worker(programs.state, programs.environment) for index in keys}
        self._before: dict[int, Collection] = {}
        self._ends: dict[int, Mapping[str, int]] = {}

    def __enter__(self) -> DriverWatch:
        return self

    def __exit__(self, *_: object) -> None:
        processes.close_workers(list(self._workers.values()))

    def begin(self) -> None:
        """Read all before."""
        for index, reply in self._ask_all("read").items():
            if isinstance(reply, dict):
                self._before[index] = StreamReader().read(reply["collection"])
                self._ends[index] = reply["ends"]

    def watch(self) -> None:
        """Sample from now on what changes under load."""
        self._ask_all("watch")

    def end(self, logged: Mapping[str, tuple[Finding, ...]] | None) -> dict[int, GpuState | processes.WorkerFailure]:
        """Read all again: the state of each GPU, or how its process failed.

        Args:
            logged: what the kernel logged meanwhile, by address on PCI; None where its log cannot be read.
        """
        samples = self._ask_all("samples")
        states: dict[int, GpuState | processes.WorkerFailure] = {}
        for index, reply in self._ask_all("read").items():
            sampled = samples[index]
            if not isinstance(reply, dict) or not isinstance(sampled, dict) or index not in self._before:
                states[index] = self._workers[index].failure or processes.WorkerFailure(
                    processes.FailureKind.DIED, "it sent nothing"
                )
                continue
            after = StreamReader().read(reply["collection"])
            states[index] = GpuState(
                self._before[index],
                tuple(StreamReader().read(sample) for sample in sampled["samples"]) or (after,),
                after,
                None if logged is None else logged.get(self._keys[index], ()),
            )
        return states

    def facts(self, index: int) -> dict[str, str]:
        """Constant facts of a GPU: name, driver, ..."""
        before = self._before.get(index, Collection())
        return next((dict(reading.labels) for reading in before.readings if reading.metric == GPU + "info"), {})

    def pcie(self, index: int) -> tuple[int, int] | None:
        """PCIe generation and lanes that GPU and slot support; None where not known."""
        before = self._before.get(index, Collection())
        generation, width = (gpu_value_of(before, f"pcie_link_{what}_max") for what in ("generation", "width"))
        return None if generation is None or width is None else (int(generation), int(width))

    def nvlinks(self, index: int) -> Mapping[str, int] | None:
        """Active NVLinks by where they end, see `collectors.nvml`; None where not known."""
        return self._ends.get(index)

    def _ask_all(self, do: str) -> dict[int, processes.Reply]:
        requests: dict[processes.Worker, Mapping[str, Any]] = {
            worker: {"do": do, "key": self._keys[index]} for index, worker in self._workers.items()
        }
        replies = processes.ask_workers(requests, self._seconds)
        return {index: replies[worker] for index, worker in self._workers.items()}
