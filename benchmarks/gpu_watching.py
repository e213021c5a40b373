"""What do an agent, nvidia-smi and NVML say of the GPUs while something runs? Each from a thread of its own."""

from __future__ import annotations

import csv
import http.client
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pynvml

from benchmarks.real_agent import RealAgent, gpus_read

_SCRAPE_SECONDS = 0.3
_SMI_SECONDS = 0.3
_CLOCK_SECONDS = 0.03
_SAME_SECONDS = 0.3
"""Values whose time differs by less are the same reading: readings are a second apart."""


class Said(NamedTuple):
    """Values of one GPU by their names.

    Attributes:
        time: when they were read, seconds since the epoch.
    """

    time: float
    values: dict[str, float]


class Clock(NamedTuple):
    """Clock of the SMs at a moment (seconds since the epoch)."""

    time: float
    hertz: float


class _Repeated:
    """A thread that does something again and again. A context manager."""

    def __init__(self, do: Callable[[], None], seconds: float) -> None:
        self._do = do
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._do()
            self._ended.wait(self._seconds)


class AgentWatch:
    """What the agent says, each reading once.

    Attributes:
        readings: of each GPU by its UUID, in order of time. Values with further labels are left out.
        failures: scrapes that were not answered.
    """

    def __init__(self, agent: RealAgent) -> None:
        self._agent = agent
        self.readings: dict[str, list[Said]] = {}
        self.failures: list[str] = []
        self._free = threading.Lock()

    def running(self) -> _Repeated:
        """Scrapes in the background."""
        return _Repeated(self._look, _SCRAPE_SECONDS)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Scrapes nothing for a while."""
        with self._free:
            yield

    def _look(self) -> None:
        try:
            with self._free:
                asked_at, page = self._agent.scrape()
        except (OSError, http.client.HTTPException) as error:
            self.failures.append(f"{type(error).__name__}: {error}")
            return
        for uuid, age in gpus_read(page).items():
            read_at = asked_at - age
            earlier = self.readings.setdefault(uuid, [])
            if earlier and read_at - earlier[-1].time < _SAME_SECONDS:
                continue
            values = {
                metric.removeprefix("stepscope_gpu_"): value
                for metric, told in page.items()
                for labels, value in told.items()
                if metric.startswith("stepscope_gpu_")
                and dict(labels).keys() == {"gpu", "uuid"}
                and dict(labels)["uuid"] == uuid
            }
            earlier.append(Said(read_at, values))


class SmiWatch:
    """What nvidia-smi says.

    Args:
        fields: as it names them.

    Attributes:
        samples: of each GPU by its UUID.
        refused: fields that this nvidia-smi does not know.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self.samples: dict[str, list[Said]] = {}
        self._fields = fields if _smi(fields) is not None else [field for field in fields if _smi([field]) is not None]
        self.refused = sorted(set(fields) - set(self._fields))

    def running(self) -> _Repeated:
        """Asks in the background."""
        return _Repeated(self._look, _SMI_SECONDS)

    def _look(self) -> None:
        began = time.time()
        rows = _smi(self._fields) or {}
        asked_at = (began + time.time()) / 2
        for uuid, row in rows.items():
            told = {field: _number(text) for field, text in zip(self._fields, row, strict=True)}
            known = {field: value for field, value in told.items() if value is not None}
            self.samples.setdefault(uuid, []).append(Said(asked_at, known))


def _smi(fields: Sequence[str]) -> dict[str, list[str]] | None:
    """Its answer by UUID; None where it refuses."""
    command = ["nvidia-smi", f"--query-gpu={','.join(['uuid', *fields])}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        return None
    rows = [[cell.strip() for cell in row] for row in csv.reader(done.stdout.splitlines()) if row]
    if any(len(row) != 1 + len(fields) or not row[0].startswith("GPU-") for row in rows):
        return None
    return {row[0]: row[1:] for row in rows}


def _number(text: str) -> float | None:
    words = {"Enabled": 1.0, "Disabled": 0.0}
    try:
        return words[text] if text in words else float(text.removeprefix("P"))
    except ValueError:
        return None  # [N/A]


class ClockWatch:
    """The SMs' clock, more often than the agent reads it.

    Attributes:
        clocks: of each GPU by its UUID.
        peak_memory_bytes_per_second: the same; both edges of the memory's highest clock, over the bus's width.
    """

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._handles: dict[str, Any] = {}
        self.clocks: dict[str, list[Clock]] = {}
        self.peak_memory_bytes_per_second: dict[str, float] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(pynvml.nvmlDeviceGetUUID(handle))
            self._handles[uuid], self.clocks[uuid] = handle, []
            hertz = 1e6 * pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM)
            width = pynvml.nvmlDeviceGetMemoryBusWidth(handle)
            self.peak_memory_bytes_per_second[uuid] = 2.0 * hertz * width / 8

    def running(self) -> _Repeated:
        """Asks in the background."""
        return _Repeated(self._look, _CLOCK_SECONDS)

    def _look(self) -> None:
        for uuid, handle in self._handles.items():
            hertz = 1e6 * pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
            self.clocks[uuid].append(Clock(time.time(), hertz))

    def mean_within(self, uuid: str, begin: float, end: float) -> float:
        """Mean clock in this time."""
        within = [clock.hertz for clock in self.clocks[uuid] if begin <= clock.time <= end]
        return sum(within) / len(within) if within else float("nan")
