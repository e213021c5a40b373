"""Comparison of GPU metrics of an agent, nvidia-smi and NVML with the work done meanwhile.

A GPM value is an average since the previous reading; it is compared with the work of exactly that time.

Each source is polled from its own thread.
"""

from __future__ import annotations

import csv
import http.client
import itertools
import math
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean, median
from typing import Any, NamedTuple

import pynvml

from benchmarks.agent.real_agent import RealAgent, gpus_read
from benchmarks.gpu_metrics.loads import Work, done_within

_MIB = 1024**2
_SETTLE_SECONDS = 0.5


class _AsSmi(NamedTuple):
    """nvidia-smi's field, the agent's metric, the scale to its unit, and how far they may differ: the larger of two.

    Attributes:
        is_slow: the agent polls it every 10 s, so it may show an older value of nvidia-smi.
        is_instant: it is another one every instant: what the agent says must be within what nvidia-smi says.
    """

    field: str
    metric: str
    scale: float = 1.0
    absolute: float = 0.0
    share: float = 0.0
    is_slow: bool = False
    is_instant: bool = False


_AS_SMI = (
    _AsSmi("power.draw.instant", "power_instant_watts", 1, 10, 0.05, is_instant=True),
    _AsSmi("power.draw.average", "power_watts", 1, 10, 0.05),
    _AsSmi("enforced.power.limit", "power_limit_watts", 1, 1),
    _AsSmi("clocks.sm", "sm_clock_hertz", 1e6, 45e6, 0.05),
    _AsSmi("clocks.mem", "memory_clock_hertz", 1e6, 15e6),
    _AsSmi("clocks.max.sm", "sm_clock_max_hertz", 1e6),
    _AsSmi("memory.used", "memory_used_bytes", _MIB, 64 * _MIB),
    _AsSmi("memory.total", "memory_total_bytes", _MIB, 2 * _MIB),
    _AsSmi("memory.reserved", "memory_reserved_bytes", _MIB, 2 * _MIB),
    _AsSmi("utilization.gpu", "utilization_ratio", 0.01, 0.05),
    _AsSmi("utilization.memory", "memory_bandwidth_busy_ratio", 0.01, 0.05),
    _AsSmi("temperature.gpu", "temperature_celsius", 1, 2),
    _AsSmi("temperature.memory", "memory_temperature_celsius", 1, 2),
    _AsSmi("pcie.link.gen.gpucurrent", "pcie_link_generation", is_slow=True),
    _AsSmi("pcie.link.width.current", "pcie_link_width", is_slow=True),
    _AsSmi("ecc.mode.current", "ecc_enabled"),
    _AsSmi("ecc.errors.corrected.volatile.total", "ecc_corrected_errors_total", is_slow=True),
    _AsSmi("ecc.errors.uncorrected.volatile.total", "ecc_uncorrected_errors_total"),
    _AsSmi("pstate", "performance_state"),
)
SMI_FIELDS = tuple(one.field for one in _AS_SMI)


class Row(NamedTuple):
    """One comparison.

    Attributes:
        what, gpu: what is compared, of which GPU.
        agent, truth: its value, and what it should be; None where it is not known.
        is_right: whether they agree.
        is_goal: whether the end depends on it.
        note: what else to know.
    """

    what: str
    gpu: int
    agent: float | None
    truth: float | None
    is_right: bool
    is_goal: bool = True
    note: str = ""

    @property
    def is_missed(self) -> bool:
        """A goal that was not reached."""
        return self.is_goal and not self.is_right

    def line(self) -> str:
        """For people."""
        ratio = f"{self.agent / self.truth:8.3f}" if self.agent is not None and self.truth else " " * 8
        told = "".join(f"{'-' if value is None else f'{value:,.4g}':>13}" for value in (self.agent, self.truth))
        status = "off" if self.is_missed else "OK" if self.is_right else "(off)"
        return f"{self.what:<46}{self.gpu:>4}{told}{ratio}  {status:<6}{self.note}"


class Phase(NamedTuple):
    """What each GPU did, and the time in which all of them were at it."""

    work: list[list[Work]]

    @property
    def begin(self) -> float:
        """Seconds since the epoch."""
        return max(one[0].begin for one in self.work)

    @property
    def end(self) -> float:
        """The same."""
        return min(one[-1].end for one in self.work)


def as_points(agent: float, truth: float) -> bool:
    """Ratios that differ by 0.05 at most."""
    return abs(agent - truth) <= 0.05


def as_share(below: float, above: float) -> Callable[[float, float], bool]:
    """At most so much less, and so much more, each a share of the truth."""
    return lambda agent, truth: bool(truth) and -below <= agent / truth - 1 <= above


class Comparison:
    """Compares, and prints each comparison at once. GPUs are numbered by CUDA's index.

    Args:
        uuids: of the GPUs, in CUDA's order.

    Attributes:
        rows: what was compared.
    """

    def __init__(self, uuids: Sequence[str], watch: AgentWatch, smi: SmiWatch) -> None:
        self.rows: list[Row] = []
        self._uuids, self._watch, self._smi = uuids, watch, smi

    def note(self, row: Row) -> None:
        """Keep a comparison and say it."""
        self.rows.append(row)
        print(row.line(), flush=True)

    def readings(self, gpu: int, begin: float, end: float) -> list[Said]:
        """What was read in this time."""
        return [one for one in self._all(gpu) if begin <= one.time <= end]

    def averages(self, gpu: int, begin: float, end: float) -> list[Said]:
        """Readings of which also what GPM averages over was in this time."""
        return self.readings(gpu, begin + self._interval(gpu), end)

    def as_smi(self, name: str, begin: float, end: float) -> None:
        """Medians of both in this time."""
        for gpu, uuid in enumerate(self._uuids):
            samples = self._smi.samples.get(uuid, [])
            readings = self.readings(gpu, begin, end)
            for one in _AS_SMI:
                told = _values(readings, one.metric)
                now = [one.scale * x for x in _values((s for s in samples if begin <= s.time <= end), one.field)]
                if not told and not now:
                    continue
                agent, truth, is_right = median(told) if told else None, median(now) if now else None, False
                if agent is not None and truth is not None:
                    if one.is_slow:
                        ever = [one.scale * value for value in _values(samples, one.field)]
                        truth = min(ever, key=lambda value: abs(value - agent))
                    if one.is_instant:
                        truth = min(max(agent, min(now)), max(now))
                    is_right = abs(agent - truth) <= max(one.absolute, one.share * truth) + 1e-6 * abs(truth)
                note = f"{len(told)} readings, {len(now)} samples"
                self.note(Row(f"{name}: {one.metric}", gpu, agent, truth, is_right, is_goal=bool(now), note=note))

    def average(
        self,
        what: str,
        metric: str,
        phase: Phase,
        agrees: Callable[[float, float], bool],
        *,
        most: Callable[[int, float, float], float] = lambda *_: 1.0,
        is_goal: bool = True,
    ) -> None:
        """An average of GPM's, against what was done a second.

        Args:
            what: for people.
            metric: the agent's.
            phase: what ran.
            agrees: whether the agent's value is right, by the true one.
            most: of a ratio: units of work a second that this GPU could do between these times; NaN where it is not
                known, which leaves the reading out.
            is_goal: whether the end depends on it.
        """
        for gpu, work in enumerate(phase.work):
            seconds, told, truths = self._interval(gpu), [], []
            for one in self.averages(gpu, phase.begin + _SETTLE_SECONDS, phase.end):
                if metric not in one.values:
                    continue
                begin = one.time - seconds
                true = done_within(work, begin, one.time) / seconds / most(gpu, begin, one.time)
                if not math.isnan(true):
                    told.append(one.values[metric])
                    truths.append(true)
            agent, truth = (fmean(told), fmean(truths)) if told else (None, None)
            is_right = agent is not None and truth is not None and agrees(agent, truth)
            each = " ".join(f"{mine:.4g}/{true:.4g}" for mine, true in zip(told, truths, strict=True))
            self.note(Row(f"{what}: {metric}", gpu, agent, truth, is_right, is_goal, each))

    def counted(self, what: str, metric: str, phase: Phase, agrees: Callable[[float, float], bool]) -> None:
        """What a counter grew by a second, from the first reading to the last, against what was done."""
        for gpu, work in enumerate(phase.work):
            counted = [one for one in self.averages(gpu, phase.begin, phase.end) if metric in one.values]
            agent = truth = None
            if len(counted) > 1:
                first, last = counted[0], counted[-1]
                seconds = last.time - first.time
                agent = (last.values[metric] - first.values[metric]) / seconds
                truth = done_within(work, first.time, last.time) / seconds
            is_right = agent is not None and truth is not None and agrees(agent, truth)
            self.note(Row(f"{what}: {metric}", gpu, agent, truth, is_right, note=f"{len(counted)} readings"))

    def at_least(self, what: str, metric: str, phase: Phase, least: float) -> None:
        """A ratio that must always be between this and 1."""
        for gpu in range(len(phase.work)):
            told = _values(self.averages(gpu, phase.begin + _SETTLE_SECONDS, phase.end), metric)
            is_right = bool(told) and all(least <= value <= 1.0 for value in told)
            agent = fmean(told) if told else None
            self.note(Row(f"{what}: {metric}", gpu, agent, None, is_right, note=f"{least:g} to 1"))

    def _all(self, gpu: int) -> list[Said]:
        return self._watch.readings.get(self._uuids[gpu], [])

    def _interval(self, gpu: int) -> float:
        """Seconds between two readings; those that were passed over do not count."""
        gaps = [later.time - earlier.time for earlier, later in itertools.pairwise(self._all(gpu))]
        return median([gap for gap in gaps if 0.5 < gap < 1.5] or [1.0])


def _values(told: Iterable[Said], name: str) -> list[float]:
    return [one.values[name] for one in told if name in one.values]


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
