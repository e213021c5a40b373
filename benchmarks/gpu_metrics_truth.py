"""Is what the agent says of a GPU right? Against nvidia-smi, and against work of a known size. Needs GPUs.

    python -m benchmarks.gpu_metrics_truth [--seconds 4.5] [--out FILE.json]

A real agent reads once a second. Beside it all GPUs rest, then multiply, copy, read, talk to the host and, where there
are several, to each other over NVLink, at full and partial duty. A value of GPM is an average since the reading before;
it is compared with what was done in that very time, over what the GPU could have done at the clock that it had. Last, a
profiler runs beside the agent. Ends with 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity

from benchmarks import gpu_loads
from benchmarks.gpu_loads import ALL_REDUCE_MIB, Load, Work, done_within, run_on_all
from benchmarks.gpu_watching import AgentWatch, ClockWatch, Said, SmiWatch
from benchmarks.real_agent import RealAgent, real_agent, troubles

_GIB, _MIB = 1024**3, 1024**2
_BF16_PER_CLOCK = 4096
"""Dense FLOP of an SM in a clock, Hopper: 989.4 TFLOP/s are 132 SMs at 1.83 GHz."""
_SETTLE_SECONDS = 0.5
_POWER_SETTLE_SECONDS = 1.0
"""Power is an average of a second."""
_LAST_READING_SECONDS = 1.2
_LONGEST_GAP_SECONDS = 2.6
"""What was read is published once a second: one reading may be passed over."""
_POINTS = 0.05

_AS_SMI: tuple[tuple[str, str, float, float, float], ...] = (
    # nvidia-smi's field, the agent's metric, scale to its unit, how far they may differ: absolutely, or as a share
    ("power.draw.instant", "power_instant_watts", 1, 10, 0.05),
    ("power.draw.average", "power_watts", 1, 10, 0.05),
    ("enforced.power.limit", "power_limit_watts", 1, 1, 0),
    ("clocks.sm", "sm_clock_hertz", 1e6, 45e6, 0.05),
    ("clocks.mem", "memory_clock_hertz", 1e6, 15e6, 0),
    ("clocks.max.sm", "sm_clock_max_hertz", 1e6, 0, 0),
    ("memory.used", "memory_used_bytes", _MIB, 64 * _MIB, 0),
    ("memory.total", "memory_total_bytes", _MIB, 2 * _MIB, 0),
    ("memory.reserved", "memory_reserved_bytes", _MIB, 2 * _MIB, 0),
    ("utilization.gpu", "utilization_ratio", 0.01, 0.05, 0),
    ("utilization.memory", "memory_bandwidth_busy_ratio", 0.01, 0.05, 0),
    ("temperature.gpu", "temperature_celsius", 1, 2, 0),
    ("temperature.memory", "memory_temperature_celsius", 1, 2, 0),
    ("pcie.link.gen.gpucurrent", "pcie_link_generation", 1, 0, 0),
    ("pcie.link.width.current", "pcie_link_width", 1, 0, 0),
    ("ecc.mode.current", "ecc_enabled", 1, 0, 0),
    ("ecc.errors.corrected.volatile.total", "ecc_corrected_errors_total", 1, 0, 0),
    ("ecc.errors.uncorrected.volatile.total", "ecc_uncorrected_errors_total", 1, 0, 0),
    ("pstate", "performance_state", 1, 0, 0),
)
_SELDOM = ("pcie.link.gen.gpucurrent", "pcie.link.width.current", "ecc.errors.corrected.volatile.total")
"""Read every 10 s: the agent may say what nvidia-smi said a while ago."""


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

    def line(self) -> str:
        """For people."""
        ratio = f"{self.agent / self.truth:8.3f}" if self.agent is not None and self.truth else " " * 8
        told = "".join(f"{'-' if value is None else f'{value:,.4g}':>13}" for value in (self.agent, self.truth))
        status = "OK" if self.is_right else "off" if self.is_goal else "(off)"
        return f"{self.what:<46}{self.gpu:>4}{told}{ratio}  {status:<6}{self.note}"


class Phase(NamedTuple):
    """What ran from when to when, and what each GPU (by CUDA's index) did."""

    begin: float
    end: float
    work: list[list[Work]]


class Truth:
    """Compares, phase by phase.

    Attributes:
        rows: what was compared.
    """

    def __init__(self, agent: RealAgent, watch: AgentWatch, clocks: ClockWatch, smi: SmiWatch, seconds: float) -> None:
        self.rows: list[Row] = []
        self._agent, self._watch, self._clocks, self._smi = agent, watch, clocks, smi
        self._seconds = seconds
        properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        self._uuids = [f"GPU-{str(one.uuid).removeprefix('GPU-')}" for one in properties]
        self._num_sms = [one.multi_processor_count for one in properties]
        unknown = [uuid for uuid in self._uuids if uuid not in clocks.clocks]
        if unknown:
            raise RuntimeError(f"NVML knows {sorted(clocks.clocks)}, but not CUDA's {unknown}")

    def note(self, row: Row) -> None:
        """Keep a comparison and say it at once."""
        self.rows.append(row)
        print(row.line(), flush=True)

    def within(self, gpu: int, begin: float, end: float) -> list[Said]:
        """Readings of which all was between these times, also what GPM averages over."""
        readings = self._watch.readings.get(self._uuids[gpu], [])
        return [one for one in readings if one.time - self.interval(gpu) >= begin and one.time <= end]

    def interval(self, gpu: int) -> float:
        """Seconds between two readings; those that were passed over do not count."""
        readings = self._watch.readings.get(self._uuids[gpu], [])
        gaps = [later.time - earlier.time for earlier, later in itertools.pairwise(readings)]
        return median([gap for gap in gaps if 0.5 < gap < 1.5] or [1.0])

    def phase(self, make: Callable[[], Load], duty: float = 1.0) -> Phase:
        """Run this on all GPUs; its settled time."""
        work = run_on_all(make, self._seconds, duty)
        time.sleep(_LAST_READING_SECONDS)  # what was read last is on the page then
        return Phase(max(one[0].begin for one in work), min(one[-1].end for one in work), work)

    def as_smi(self, name: str, begin: float, end: float) -> None:
        """Medians of both in this time."""
        for gpu, uuid in enumerate(self._uuids):
            readings = [one for one in self._watch.readings.get(uuid, []) if begin <= one.time <= end]
            for field, metric, scale, absolute, share in _AS_SMI:
                told = [one.values[metric] for one in readings if metric in one.values]
                samples = self._smi.samples.get(uuid, [])
                ever = [scale * one.values[field] for one in samples if field in one.values]
                now = [scale * one.values[field] for one in samples if field in one.values and begin <= one.time <= end]
                note = f"{len(told)} readings, {len(now)} samples"
                if not told or not now:
                    if told or now:
                        agent, truth = median(told) if told else None, median(now) if now else None
                        self.note(Row(f"{name}: {metric}", gpu, agent, truth, False, is_goal=not told, note=note))
                    continue
                agent, truth = median(told), median(now)
                if field in _SELDOM:
                    truth = min(ever, key=lambda value: abs(value - agent))
                is_right = abs(agent - truth) <= max(absolute, share * truth) + 1e-6 * abs(truth)
                self.note(Row(f"{name}: {metric}", gpu, agent, truth, is_right, note=note))

    def ratio(self, what: str, metric: str, phase: Phase, most: Callable[[int, float, float], float]) -> None:
        """A ratio against what was done over the most that could be done.

        Args:
            what: for people.
            metric: the agent's.
            phase: what ran.
            most: units of work a second that this GPU could do between these times.
        """
        for gpu, work in enumerate(phase.work):
            told, truths = [], []
            for one in self.within(gpu, phase.begin + _SETTLE_SECONDS, phase.end):
                begin = one.time - self.interval(gpu)
                if metric in one.values:
                    told.append(one.values[metric])
                    truths.append(done_within(work, begin, one.time) / self.interval(gpu) / most(gpu, begin, one.time))
            agent, truth = (fmean(told), fmean(truths)) if told else (None, None)
            is_right = agent is not None and truth is not None and abs(agent - truth) <= _POINTS
            each = " ".join(f"{mine:.3f}/{true:.3f}" for mine, true in zip(told, truths, strict=True))
            self.note(Row(f"{what}: {metric}", gpu, agent, truth, is_right, note=each))

    def at_least(self, what: str, metric: str, phase: Phase, least: float, most: float = 1.0) -> None:
        """A value that must be between these."""
        for gpu in range(len(phase.work)):
            settled = self.within(gpu, phase.begin + _SETTLE_SECONDS, phase.end)
            told = [one.values[metric] for one in settled if metric in one.values]
            is_right = bool(told) and all(least <= value <= most for value in told)
            agent = fmean(told) if told else None
            self.note(Row(f"{what}: {metric}", gpu, agent, None, is_right, note=f"{least:g} to {most:g}"))

    def moved(self, what: str, name: str, phase: Phase, share: float, *, is_goal: bool, rate_share: float) -> None:
        """Bytes a second by both metrics of this name: the rate that GPM tells, and what is counted.

        Args:
            what: for people.
            name: of the metrics, up to `_bytes`.
            phase: what ran.
            share: how far what is counted may be from what was sent.
            is_goal: whether the end depends on it.
            rate_share: the same as `share` for the rate, upwards: it may have the protocol in it.
        """
        for gpu, work in enumerate(phase.work):
            rate, total = f"{name}_bytes_per_second", f"{name}_bytes_total"
            settled = [one for one in self.within(gpu, phase.begin + _SETTLE_SECONDS, phase.end) if rate in one.values]
            truths = [
                done_within(work, one.time - self.interval(gpu), one.time) / self.interval(gpu) for one in settled
            ]
            agent, truth = (fmean(one.values[rate] for one in settled), fmean(truths)) if settled else (None, None)
            is_right = bool(agent is not None and truth and -share <= agent / truth - 1 <= rate_share)
            self.note(Row(f"{what}: {rate}", gpu, agent, truth, is_right, is_goal, f"{len(settled)} readings"))
            # What is counted is compared over whole seconds, as rates are: between the first and the last reading.
            counted = [one for one in self.within(gpu, phase.begin, phase.end) if total in one.values]
            agent, truth = None, None
            if len(counted) > 1:
                first, last = counted[0], counted[-1]
                agent = (last.values[total] - first.values[total]) / (last.time - first.time)
                truth = done_within(work, first.time, last.time) / (last.time - first.time)
            is_right = bool(agent is not None and truth and abs(agent / truth - 1) <= share)
            self.note(Row(f"{what}: {total}", gpu, agent, truth, is_right, is_goal, f"{len(counted)} readings"))

    # what is compared

    def at_rest(self) -> None:
        """Before anything runs."""
        begin = time.time()
        with self._smi.running():
            time.sleep(self._seconds)
        time.sleep(_LAST_READING_SECONDS)
        self.as_smi("rest", begin, begin + self._seconds)

    def products(self) -> None:
        """Tensor cores, and what nvidia-smi says under this load."""

        def most(gpu: int, begin: float, end: float) -> float:
            hertz = self._clocks.mean_within(self._uuids[gpu], begin, end)
            return self._num_sms[gpu] * _BF16_PER_CLOCK * hertz

        for size, duty in ((8192, 1.0), (4096, 1.0), (8192, 0.5), (8192, 0.25)):
            what = f"bf16 {size} at {duty:.0%}"
            if (size, duty) == (8192, 1.0):
                with self._smi.running():
                    phase = self.phase(lambda: gpu_loads.matmul(8192), duty)
                self.as_smi("load", phase.begin + _POWER_SETTLE_SECONDS, phase.end)
                self.at_least(what, "sm_active_ratio", phase, 0.9)
                self.at_least(what, "sm_occupancy_ratio", phase, 0.02)
                self.at_least(what, "graphics_engine_active_ratio", phase, 0.9)
            else:
                phase = self.phase(functools.partial(gpu_loads.matmul, size), duty)
            self._say_speed(what, phase, 1e12, "TFLOP/s")
            self.ratio(what, "tensor_active_ratio", phase, most)

    def memory(self) -> None:
        """The GPUs' own memory."""

        def most(gpu: int, *_: float) -> float:
            return self._clocks.peak_memory_bytes_per_second[self._uuids[gpu]]

        for what, make, duty in (
            ("copy at 100%", functools.partial(gpu_loads.copy, 4 * _GIB), 1.0),
            ("copy at 50%", functools.partial(gpu_loads.copy, 4 * _GIB), 0.5),
            ("sum at 100%", functools.partial(gpu_loads.read, _GIB), 1.0),
        ):
            phase = self.phase(make, duty)
            self._say_speed(what, phase, 1e9, "GB/s")
            self.ratio(what, "dram_active_ratio", phase, most)

    def host_link(self) -> None:
        """PCIe. The rate has headers in it."""
        for what, make, name in (
            ("host to GPU", gpu_loads.to_gpu, "pcie_receive"),
            ("GPU to host", gpu_loads.from_gpu, "pcie_transmit"),
        ):
            phase = self.phase(functools.partial(make, 256 * _MIB))
            self.moved(what, name, phase, 0.1, is_goal=False, rate_share=0.1)

    def nvlink(self, ranks: list[subprocess.Popen[str]], folder: Path) -> None:
        """All-reduces. GPM's rate has the protocol in it."""
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write("go\n")
            rank.stdin.flush()
        codes = [rank.wait(timeout=60) for rank in ranks]
        time.sleep(_LAST_READING_SECONDS)
        if any(codes):
            self.note(Row(f"all-reduces ended with {codes}", 0, None, None, is_right=False))
            return
        told = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(len(ranks))]
        for mib in ALL_REDUCE_MIB:
            work = [[Work(*burst) for burst in one[str(mib)]] for one in told]
            phase = Phase(max(one[0].begin for one in work), min(one[-1].end for one in work), work)
            self._say_speed(f"all-reduce {mib} MiB", phase, 1e9, "GB/s each way")
            for name in ("nvlink_transmit", "nvlink_receive"):
                self.moved(f"{mib} MiB", name, phase, 0.05, is_goal=True, rate_share=0.25)

    def beside_profiler(self, folder: Path) -> None:
        """A profiler that records all kernels of the first GPU."""
        with torch.cuda.device(0):
            data = torch.ones(_GIB // 4, device="cuda")
            load = Load(lambda: data.mul_(1.0), 2.0 * _GIB)
            each = gpu_loads.seconds_of(load)
            _kernel_seconds(load, 1, folder)  # the first profile of a process takes its time
            count = max(1, round((self._seconds - 1.0) / each))
            begin = time.time()
            beside = _kernel_seconds(load, count, folder)
            end = time.time()
            time.sleep(_LAST_READING_SECONDS)
            with self._watch.paused(), self._agent.frozen():
                alone = _kernel_seconds(load, max(1, count // 2), folder)
        self.note(Row("profiler: kernels", 0, float(len(beside)), float(count), len(beside) == count))
        if beside and alone:
            mine, other = 1e6 * median(beside), 1e6 * median(alone)
            is_right = abs(mine / other - 1) <= 0.02
            self.note(Row("profiler: kernel us, agent works / frozen", 0, mine, other, is_right))
        for gpu, uuid in enumerate(self._uuids):
            times = [one.time for one in self._watch.readings.get(uuid, []) if begin <= one.time <= end]
            gap = max(b - a for a, b in itertools.pairwise([begin, *times, end]))
            self.note(Row("profiler: longest gap of readings, s", gpu, gap, None, gap <= _LONGEST_GAP_SECONDS))
            settled = self.within(gpu, begin, end)
            whole = [one for one in settled if {"sm_active_ratio", "dram_active_ratio"} <= one.values.keys()]
            is_right = bool(settled) and len(whole) == len(settled)
            self.note(Row("profiler: readings with GPM", gpu, float(len(whole)), float(len(settled)), is_right))

    def health(self) -> None:
        """Whether the agent read all the time."""
        found = troubles(self._agent.scrape()[1])
        note = " ".join(f"{name} {value:g}" for name, value in found.items())
        self.note(Row("agent: troubles with reading", 0, sum(found.values()), None, not found, note=note))
        failed = self._watch.failures
        what = "agent: scrapes without answer"
        self.note(Row(what, 0, float(len(failed)), None, not failed, note="".join(failed[:1])[:80]))

    def _say_speed(self, what: str, phase: Phase, unit: float, name: str) -> None:
        speeds = [done_within(work, phase.begin, phase.end) / (phase.end - phase.begin) / unit for work in phase.work]
        clocks = [self._clocks.mean_within(uuid, phase.begin, phase.end) / 1e6 for uuid in self._uuids]
        told = ", ".join(
            f"{speed:,.1f} {name} at {clock:,.0f} MHz" for speed, clock in zip(speeds, clocks, strict=True)
        )
        print(f"-- {what}: {told}", flush=True)


def _kernel_seconds(load: Load, count: int, folder: Path) -> list[float]:
    """How long each kernel took, by a profile of so many launches."""
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(count):
            load.launch()
        torch.cuda.synchronize()
    path = folder / "profile.json"
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    return [1e-6 * event["dur"] for event in events if event.get("cat") == "kernel"]


@contextmanager
def _ranks(folder: Path, seconds: float) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that wait to reduce, one a GPU; none where there is one GPU. NVLink multicast stays off."""
    num_ranks = torch.cuda.device_count() if torch.distributed.is_nccl_available() else 0
    environment = {**os.environ, "NCCL_NVLS_ENABLE": "0"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu_loads", str(rank), str(num_ranks), str(folder), str(seconds)],
            stdin=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(num_ranks if num_ranks > 1 else 0)
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _compare(folder: Path, seconds: float) -> dict[str, Any]:
    """All of it; the figures."""
    results: dict[str, Any] = {"torch": torch.__version__, "gpus": torch.cuda.get_device_name(0)}
    with _ranks(folder, seconds) as ranks, real_agent(folder) as agent:
        watch, clocks, smi = AgentWatch(agent), ClockWatch(), SmiWatch()
        truth = Truth(agent, watch, clocks, smi, seconds)
        if smi.refused:
            print(f"nvidia-smi does not know {', '.join(smi.refused)}")
        print(f"{'what':<46}{'GPU':>4}{'agent':>13}{'truth':>13}   ratio")
        with watch.running(), clocks.running():
            steps: list[tuple[str, Callable[[], None]]] = [
                ("rest", truth.at_rest),
                ("products", truth.products),
                ("memory", truth.memory),
                ("PCIe", truth.host_link),
                ("NVLink", functools.partial(truth.nvlink, ranks, folder)),
                ("profiler", functools.partial(truth.beside_profiler, folder)),
                ("agent", truth.health),
            ]
            for name, step in steps:
                if name == "NVLink" and not ranks:
                    continue
                try:
                    step()
                except Exception as error:  # one that fails costs itself alone: time on GPUs is scarce
                    note = f"{type(error).__name__}: {error}"
                    truth.note(Row(f"{name} failed", 0, None, None, is_right=False, note=note[:300]))
    results["rows"] = [row._asdict() for row in truth.rows]
    results["readings"] = {uuid: [one._asdict() for one in said] for uuid, said in watch.readings.items()}
    results["nvidia_smi"] = {uuid: [one._asdict() for one in said] for uuid, said in smi.samples.items()}
    results["clocks"] = clocks.clocks
    results["peak_memory_bytes_per_second"] = clocks.peak_memory_bytes_per_second
    return results


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.5, help="of each phase")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available() or shutil.which("nvidia-smi") is None:
        print("this needs a GPU that CUDA can use, and nvidia-smi", file=sys.stderr)
        sys.exit(2)
    sys.setswitchinterval(0.0005)  # the loads' threads wait no longer for those that watch
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        results = _compare(Path(folder), options.seconds)
    if options.out:
        options.out.write_text(json.dumps(results) + "\n")
    missed = [row for row in results["rows"] if row["is_goal"] and not row["is_right"]]
    print(f"{len(missed)} of {len(results['rows'])} are off; {time.monotonic() - began:.0f} s")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
