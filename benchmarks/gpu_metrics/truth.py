"""Check of the agent's GPU metrics against nvidia-smi and against work of known size. Needs GPUs.

    python -m benchmarks.gpu_metrics.truth [--seconds 4.5] [--out FILE.json]

A real agent reads once per second. Meanwhile all GPUs idle, then multiply, copy, read, transfer to the host and, if
there are several, to each other over NVLink, at full and partial duty; ratios are relative to what the GPU could have
done in its cycles, as counted by its SMs. Last, a profiler runs beside the agent. Deviations are listed again at the
end, with exit status 1.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from benchmarks.agent.real_agent import RealAgent, real_agent, troubles
from benchmarks.gpu_metrics import loads
from benchmarks.gpu_metrics.comparison import (
    SMI_FIELDS,
    AgentWatch,
    ClockWatch,
    Comparison,
    Phase,
    Row,
    SmiWatch,
    as_points,
    as_share,
)
from benchmarks.gpu_metrics.loads import ALL_REDUCE_MIB, Load, Work, done_within, run_on_all

_GIB, _MIB = 1024**3, 1024**2
_BF16_PER_CLOCK = 4096
"""Dense FLOP of an SM in a clock, Hopper: 989.4 TFLOP/s are 132 SMs at 1.83 GHz."""
_POWER_SETTLE_SECONDS = 1.0
"""Power is an average of a second."""
_LAST_READING_SECONDS = 1.2
_LONGEST_GAP_SECONDS = 2.6
"""What was read is published once a second: one reading may be passed over."""
_UNITS = {"TFLOP/s": 1e12, "GB/s": 1e9}


class Truth:
    """Work on the GPUs and its comparison with the metrics."""

    def __init__(self, agent: RealAgent, seconds: float, folder: Path) -> None:
        self._agent, self._seconds, self._folder = agent, seconds, folder
        properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        self._uuids = [f"GPU-{str(one.uuid).removeprefix('GPU-')}" for one in properties]
        self._num_sms = [one.multi_processor_count for one in properties]
        self.watch, self.clocks, self.smi = AgentWatch(agent), ClockWatch(), SmiWatch(SMI_FIELDS)
        self.found = Comparison(self._uuids, self.watch, self.smi)
        if unknown := [uuid for uuid in self._uuids if uuid not in self.clocks.clocks]:
            raise RuntimeError(f"NVML knows {sorted(self.clocks.clocks)}, but not CUDA's {unknown}")

    def at_rest(self) -> None:
        """Before anything runs."""
        begin = time.time()
        with self.smi.running():
            time.sleep(self._seconds)
        time.sleep(_LAST_READING_SECONDS)
        self.found.as_smi("rest", begin, begin + self._seconds)

    def products(self) -> None:
        """Tensor cores, and nvidia-smi under this load.

        Sizes are no multiples of all tiles: some percent of the FLOPs are done on zeros that fill a tile up.
        """
        with self.smi.running():
            phase = self._product(8192)
        self.found.as_smi("load", phase.begin + _POWER_SETTLE_SECONDS, phase.end)
        for name, least in (("sm_active", 0.9), ("sm_occupancy", 0.02), ("graphics_engine_active", 0.9)):
            self.found.at_least("load", f"{name}_ratio", phase, least)
        self._product(4096)
        self._product(8192, 0.5)
        self._product(8192, 0.25)

    def _product(self, size: int, duty: float = 1.0) -> Phase:
        """Ratio to what could be done in the cycles of the SMs."""
        what = f"bf16 {size} at {duty:.0%}"
        phase = self._run(what, functools.partial(loads.matmul, size), duty, unit="TFLOP/s")

        def most(gpu: int, begin: float, end: float) -> float:
            cycles = loads.cycles_within(phase.work[gpu], begin, end)
            return self._num_sms[gpu] * _BF16_PER_CLOCK * cycles / (end - begin)

        self.found.average(what, "tensor_active_ratio", phase, as_points, most=most)
        return phase

    def memory(self) -> None:
        """The GPUs' own memory."""

        def most(gpu: int, *_: float) -> float:
            return self.clocks.peak_memory_bytes_per_second[self._uuids[gpu]]

        copy, read = functools.partial(loads.copy, 4 * _GIB), functools.partial(loads.read, _GIB)
        for what, make, duty in (("copy at 100%", copy, 1.0), ("copy at 50%", copy, 0.5), ("sum at 100%", read, 1.0)):
            self.found.average(what, "dram_active_ratio", self._run(what, make, duty), as_points, most=most)

    def host_link(self) -> None:
        """PCIe. The rate has headers in it."""
        for what, make, way in (
            ("host to GPU", loads.to_gpu, "receive"),
            ("GPU to host", loads.from_gpu, "transmit"),
        ):
            phase = self._run(what, functools.partial(make, 256 * _MIB))
            self.found.average(what, f"pcie_{way}_bytes_per_second", phase, as_share(0.1, 0.1), is_goal=False)

    def nvlink(self, ranks: list[subprocess.Popen[str]]) -> None:
        """All-reduces. GPM's rate has the protocol in it."""
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write("go\n")
            rank.stdin.flush()
        codes = [rank.wait(timeout=60) for rank in ranks]
        time.sleep(_LAST_READING_SECONDS)
        if any(codes):
            raise RuntimeError(f"all-reduces ended with {codes}")
        told = [json.loads((self._folder / f"rank{rank}.json").read_text()) for rank in range(len(ranks))]
        for mib in ALL_REDUCE_MIB:
            phase = Phase([[Work(*burst) for burst in one[str(mib)]] for one in told])
            self._say_speed(f"all-reduce {mib} MiB each way", phase, "GB/s")
            for way in ("transmit", "receive"):
                what, name = f"{mib} MiB", f"nvlink_{way}_bytes"
                self.found.average(what, f"{name}_per_second", phase, as_share(0.05, 0.25))
                self.found.counted(what, f"{name}_total", phase, as_share(0.05, 0.05))

    def beside_profiler(self) -> None:
        """A profiler that records all kernels of the first GPU."""
        with torch.cuda.device(0):
            data = torch.ones(_GIB // 4, device="cuda")
            load = Load(lambda: data.mul_(1.0), 2.0 * _GIB)
            each = loads.seconds_of(load)
            self._kernel_seconds(load, 1)  # the first profile of a process takes its time
            count = max(1, round((self._seconds - 1.0) / each))
            begin = time.time()
            beside = self._kernel_seconds(load, count)
            end = time.time()
            time.sleep(_LAST_READING_SECONDS)
            with self.watch.paused(), self._agent.frozen():
                alone = self._kernel_seconds(load, max(1, count // 2))
        note = self.found.note
        note(Row("profiler: kernels", 0, float(len(beside)), float(count), len(beside) == count))
        if beside and alone:
            mine, other = 1e6 * median(beside), 1e6 * median(alone)
            note(Row("profiler: kernel us, agent works / frozen", 0, mine, other, as_share(0.02, 0.02)(mine, other)))
        for gpu in range(len(self._uuids)):
            times = [one.time for one in self.found.readings(gpu, begin, end)]
            gap = max(later - earlier for earlier, later in itertools.pairwise([begin, *times, end]))
            note(Row("profiler: longest gap of readings, s", gpu, gap, None, gap <= _LONGEST_GAP_SECONDS))
            settled = self.found.averages(gpu, begin, end)
            whole = [one for one in settled if {"sm_active_ratio", "dram_active_ratio"} <= one.values.keys()]
            is_right = 0 < len(whole) == len(settled)
            note(Row("profiler: readings with GPM", gpu, float(len(whole)), float(len(settled)), is_right))

    def health(self) -> None:
        """Whether the agent read all the time."""
        wrong = troubles(self._agent.scrape()[1])
        said = " ".join(f"{name} {value:g}" for name, value in wrong.items())
        self.found.note(Row("agent: troubles with reading", 0, sum(wrong.values()), None, not wrong, note=said))
        failed = self.watch.failures
        said = "".join(failed[:1])[:80]
        self.found.note(Row("agent: scrapes without answer", 0, float(len(failed)), None, not failed, note=said))

    def _run(self, what: str, make: Callable[[], Load], duty: float = 1.0, *, unit: str = "GB/s") -> Phase:
        """Run this on all GPUs."""
        phase = Phase(run_on_all(make, self._seconds, duty))
        time.sleep(_LAST_READING_SECONDS)  # what was read last is on the page then
        self._say_speed(what, phase, unit)
        return phase

    def _say_speed(self, what: str, phase: Phase, unit: str) -> None:
        speeds = []
        for gpu, work in enumerate(phase.work):
            begin, end = work[0].begin, work[-1].end
            speeds.append(f"{done_within(work, begin, end) / (end - begin) / _UNITS[unit]:,.1f} {unit}")
            begin = work[0].end  # cycles are read after each burst
            told = self.clocks.mean_within(self._uuids[gpu], begin, end)
            counted = loads.cycles_within(work, begin, end) / (end - begin) if end > begin else math.nan
            if not math.isnan(counted):
                is_right = as_share(0.02, 0.02)(told, counted)
                self.found.note(Row(f"{what}: SM clock, NVML / counted", gpu, told, counted, is_right, is_goal=False))
        print(f"-- {what}: {', '.join(speeds)}", flush=True)

    def _kernel_seconds(self, load: Load, count: int) -> list[float]:
        """How long each kernel took, by a profile of so many launches."""
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(count):
                load.launch()
            torch.cuda.synchronize()
        path = self._folder / "profile.json"
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
            [
                sys.executable,
                "-m",
                "benchmarks.gpu_metrics.loads",
                str(rank),
                str(num_ranks),
                str(folder),
                str(seconds),
            ],
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


def _compare(folder: Path, seconds: float) -> Truth:
    with _ranks(folder, seconds) as ranks, real_agent(folder) as agent:
        truth = Truth(agent, seconds, folder)
        if truth.smi.refused:
            print(f"nvidia-smi does not know {', '.join(truth.smi.refused)}")
        print(f"{'what':<46}{'GPU':>4}{'agent':>13}{'truth':>13}   ratio")
        steps: dict[str, Callable[[], None]] = {
            "rest": truth.at_rest,
            "products": truth.products,
            "memory": truth.memory,
            "PCIe": truth.host_link,
            **({"NVLink": functools.partial(truth.nvlink, ranks)} if ranks else {}),
            "profiler": truth.beside_profiler,
            "agent": truth.health,
        }
        with truth.watch.running(), truth.clocks.running():
            for name, step in steps.items():
                try:
                    step()
                except Exception as error:  # one that fails costs itself alone: time on GPUs is scarce
                    said = f"{type(error).__name__}: {error}"[:300]
                    truth.found.note(Row(f"{name} failed", 0, None, None, is_right=False, note=said))
    return truth


def _document(truth: Truth) -> dict[str, Any]:
    """All that was seen."""
    return {
        "torch": torch.__version__,
        "gpus": torch.cuda.get_device_name(0),
        "rows": [row._asdict() for row in truth.found.rows],
        "readings": {uuid: [one._asdict() for one in said] for uuid, said in truth.watch.readings.items()},
        "nvidia_smi": {uuid: [one._asdict() for one in said] for uuid, said in truth.smi.samples.items()},
        "clocks": truth.clocks.clocks,
        "peak_memory_bytes_per_second": truth.clocks.peak_memory_bytes_per_second,
    }


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.5, help="seconds of each phase")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available() or shutil.which("nvidia-smi") is None:
        print("a CUDA GPU and nvidia-smi are needed", file=sys.stderr)
        sys.exit(2)
    sys.setswitchinterval(0.0005)  # the loads' threads wait no longer for those that watch
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        truth = _compare(Path(folder), options.seconds)
    if options.out:
        options.out.write_text(json.dumps(_document(truth)) + "\n")
    missed = [row for row in truth.found.rows if row.is_missed]
    for row in missed:
        print(row.line())
    print(f"{len(missed)} of {len(truth.found.rows)} are off; {time.monotonic() - began:.0f} s")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
