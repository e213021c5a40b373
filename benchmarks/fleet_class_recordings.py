"""What was recorded of GPUs while labelled runs trained, and what is known of each moment?

The samples are NVML's and GPM's of two H100s at 5 Hz. Of nine runs there is a trace of the same minutes: its steps are
the labelled windows, and `truth.json` has an independent plain reading of what each GPU did in them. Between runs no
process held the GPUs; from the first use of a run's memory to its first kernels it is held and does nothing.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from bisect import bisect
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path

from benchmarks.labelled_windows import SPENT, Labelled, right_of
from stepscope.analyzer.fleet import GpuFacts, Sample
from stepscope.core.causes import Cause

_FACTS = GpuFacts("NVIDIA H100 80GB HBM3", 700.0, 1.98e9, 85.5e9, None, True)
_REST_SECONDS = 8
"""Seconds before and after a labelled window in which the GPU has come to rest, or nearly."""
RESTING = ("start", "none", "at_rest", "held")
"""Runs that are none: before a run's first kernels, between runs, and what `fleet_class_states` records."""
_MIB = 1048576.0
_HELD_BYTES = 0.56e9
"""The driver keeps 0.50 GB of a GPU without a process."""
_REASONS = ((0x1, "idle"), (0x4, "software_power_cap"), (0x8, "hardware_slowdown"), (0x20, "software_thermal"))


def recorded(folder: Path) -> list[Labelled]:
    """All labelled windows of `h100x2/`."""
    series = _series(folder / "nvml_gpm_samples_5hz.csv")
    truth = json.loads((folder / "truth.json").read_text())
    windows: list[Labelled] = []
    for run, about in truth.items():
        for gpu, samples in series.items():
            begin, end = _span(folder / run / f"{run}.rank{gpu}.json.gz")
            inside = _inside(samples, begin, end)
            if inside:
                rank = about["ranks"][gpu]
                spent = {name: rank[name] for name in SPENT}
                cause = Cause(about["cause"][0])
                healthy = frozenset({cause if cause is Cause.MEMORY_BOUND else Cause.COMPUTE_BOUND})
                window = _labelled(run, gpu, inside, right_of(spent, cause, healthy), spent)
                windows.append(replace(window, power_watts=_own_power(samples, inside)))
    for gpu, samples in series.items():
        windows += _idle(gpu, samples)
    return windows


def _labelled(
    run: str, gpu: int, samples: list[Sample], right: frozenset[Cause], spent: dict[str, float] | None = None
) -> Labelled:
    return Labelled(run, gpu, right, tuple(samples), 0.2 * len(samples), _FACTS, spent=spent or {})


def _idle(gpu: int, samples: list[Sample]) -> Iterator[Labelled]:
    """Before, between and after runs, and of each run the time until half a second before its first kernels."""
    for is_held, group in groupby(samples, lambda sample: (sample.memory_used or 0) >= _HELD_BYTES):
        stretch = list(group)
        if is_held:
            working = (at for at, sample in enumerate(stretch) if (sample.sm or 0) > 0.002)
            stretch = stretch[: max(0, next(working, len(stretch)) - 3)]
        if len(stretch) >= 10:
            yield _labelled("start" if is_held else "none", gpu, stretch, frozenset({Cause.IDLE}))


def _own_power(samples: list[Sample], inside: list[Sample]) -> float:
    """Mean power of a window. NVML tells the average of the last second, so that energies of seconds add up: back to a
    time at rest, and on to one; both are averaged."""
    before = samples[samples.index(inside[0]) - 1]
    begin, end = before.time_ns / 1e9, inside[-1].time_ns / 1e9

    def told(time: float) -> float:
        at = bisect([sample.time_ns for sample in samples], int(time * 1e9))
        earlier, later = samples[max(0, at - 1)], samples[min(at, len(samples) - 1)]
        share = (time * 1e9 - earlier.time_ns) / max(1, later.time_ns - earlier.time_ns)
        watts = earlier.power_watts or 0.0, later.power_watts or 0.0
        return watts[0] + min(1.0, max(0.0, share)) * (watts[1] - watts[0])

    back = sum(told(end - second) - told(begin - second) for second in range(_REST_SECONDS))
    on = sum(told(begin + second) - told(end + second) for second in range(1, _REST_SECONDS + 1))
    return (told(begin - _REST_SECONDS) + told(end + _REST_SECONDS) + (back + on) / (end - begin)) / 2


def _inside(samples: list[Sample], begin: float, end: float) -> list[Sample]:
    """Samples of which at least half the time before them lies in the span."""
    chosen = []
    for before, sample in pairwise(samples):
        first, last = before.time_ns / 1e9, sample.time_ns / 1e9
        if min(end, last) - max(begin, first) >= 0.5 * (last - first):
            chosen.append(sample)
    return chosen


def _span(path: Path) -> tuple[float, float]:
    """First and last instant of a trace, seconds since the epoch."""
    text = gzip.decompress(path.read_bytes()).decode()
    base = re.search(r'"baseTimeNanoseconds":\s*(\d+)', text)
    times = [float(time) for time in re.findall(r'"ts":\s*([0-9.]+)', text) if float(time) > 0]
    begin = int(base.group(1)) / 1e9 if base else 0.0
    return begin + min(times) / 1e6, begin + max(times) / 1e6


def _series(path: Path) -> dict[int, list[Sample]]:
    series: dict[int, list[Sample]] = {}
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            series.setdefault(int(row["gpu"]), []).append(_sample(row))
    return series


def _sample(row: dict[str, str]) -> Sample:
    def value(name: str, scale: float = 1.0) -> float | None:
        try:
            return float(row[name]) * scale
        except ValueError:
            return None

    vector = [pipe for name in ("FP16_UTIL", "FP32_UTIL", "FP64_UTIL", "INTEGER_UTIL") if (pipe := value(name, 0.01))]
    links = [rate for way in "RT" if (rate := value(f"NVLINK_TOTAL_{way}X_PER_SEC", _MIB)) is not None]
    bits = int(row["reasons"])
    return Sample(
        int(float(row["t"]) * 1e9),
        value("gpu_util", 0.01),
        value("mem_util", 0.01),
        value("power_w"),
        value("sm_clock", 1e6),
        frozenset(reason for bit, reason in _REASONS if bits & bit),
        value("GRAPHICS_UTIL", 0.01),
        value("SM_UTIL", 0.01),
        value("ANY_TENSOR_UTIL", 0.01),
        value("DRAM_BW_UTIL", 0.01),
        max(vector, default=None),
        max(links, default=None),
        value("PCIE_TX_PER_SEC", _MIB),
        value("PCIE_RX_PER_SEC", _MIB),
        value("mem_used"),
    )


MODES: dict[str, tuple[str, ...]] = {
    "GPM": (),
    "default dcgm-exporter page": ("sm", "vector", "throttle_reasons"),
    "the same without NVLink": ("sm", "vector", "throttle_reasons", "link_bytes"),
    "NVML without profiling counters": ("engine", "sm", "tensor", "dram", "vector"),
    "nvidia-smi's figures alone": (
        "engine", "sm", "tensor", "dram", "vector", "link_bytes", "pcie_transmit", "pcie_receive"
    ),
}  # fmt: skip
"""Sources, and what they do not have."""
