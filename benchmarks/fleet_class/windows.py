"""Labelled windows: samples of one GPU with the known activity of that GPU, and their sources.

A window's label is its rank's ledger in the captures before and after it, as no profiler ran in the window itself.

The recording has NVML and GPM samples of two H100s at 5 Hz. Nine runs have a trace of the same minutes: its steps are
the labelled windows, and `truth.json` has an independent reading of what each GPU did in them. Between runs no process
held the GPUs; from a run's first use of memory to its first kernels a GPU is held but idle.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import math
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from stepscope.analyzer.fleet import GpuFacts, GpuSample, HostUse
from stepscope.core.documents.analysis import RankLedger, StepLedger
from stepscope.core.documents.run_directory import Step
from stepscope.core.vocabulary import (
    COMPUTE_CATEGORIES,
    EXPOSED_COMMUNICATION_CATEGORIES,
    IDLE_CATEGORIES,
    Cause,
    TimeCategory,
)

SPENT = ("compute", "exposed_comm", "copy", "idle")
"""A plain reading of a trace: shares of time with kernels that compute, else communication, else copies, nothing."""
_NAMED, _EITHER = 0.25, 0.05
"""A loss of this share of the trace's window is the label; within 0.05 of it, both are right."""
_MINUTE = 60.0
_FEWEST_SAMPLES = 12
_FIELDS = tuple(field.name for field in fields(GpuSample))


@dataclass(frozen=True, slots=True)
class Labelled:
    """One window.

    Attributes:
        run: which run it is of.
        gpu: index.
        right: classes that are right.
        samples: in the order of their time.
        seconds: its length.
        facts, host: of the GPU and of its processes.
        power_watts: on average of the window, freed from the driver's averaging; None where the samples' will do.
        spent: the plain reading of a trace of the same time: shares of `compute`, `exposed_comm`, `copy`, `idle`.
    """

    run: str
    gpu: int
    right: frozenset[Cause]
    samples: tuple[GpuSample, ...]
    seconds: float
    facts: GpuFacts = field(default_factory=GpuFacts)
    host: HostUse = field(default_factory=HostUse)
    spent: dict[str, float] = field(default_factory=dict)
    power_watts: float | None = None


def right_of(spent: Mapping[str, float], host: Cause, healthy: frozenset[Cause]) -> frozenset[Cause]:
    """Classes that are right for a window.

    Args:
        spent: the plain reading of a trace.
        host: why the GPU was empty, where it was.
        healthy: what bounds its kernels.
    """
    empty, waited = spent["idle"] + spent["copy"], spent["exposed_comm"]
    named = frozenset({Cause.COMMUNICATION if waited > empty else host})
    loss = max(empty, waited)
    if loss >= _NAMED + _EITHER:
        return named
    return healthy if loss < _NAMED - _EITHER else healthy | named


def projected(window: Labelled, missing: Sequence[str]) -> Labelled:
    """Window as seen by a source without these figures."""
    nothing: dict[str, Any] = dict.fromkeys(missing)
    return replace(window, samples=tuple(replace(sample, **nothing) for sample in window.samples))


def as_minute(window: Labelled) -> Labelled:
    """Window extended to a minute by repeating its samples, with the power of its own work."""
    if window.seconds >= _MINUTE:
        return window
    samples = window.samples * math.ceil(_FEWEST_SAMPLES / len(window.samples))
    distance, first = int(1e9 * _MINUTE / len(samples)), samples[0].time_ns
    drawn_out = [replace(sample, time_ns=first + at * distance) for at, sample in enumerate(samples)]
    if window.power_watts is not None:
        drawn_out = [replace(sample, power_watts=window.power_watts) for sample in drawn_out]
    return replace(window, samples=tuple(drawn_out))


def write_windows(path: Path, windows: Iterable[Labelled]) -> None:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(_as_json(window)) + "\n" for window in windows))


def read_windows(path: Path) -> list[Labelled]:
    """Windows read back from a file of `write_windows`."""
    return [_from_json(json.loads(line)) for line in path.read_text().splitlines() if line]


def _as_json(window: Labelled) -> dict[str, Any]:
    return {
        "run": window.run,
        "gpu": window.gpu,
        "right": sorted(window.right),
        "seconds": round(window.seconds, 3),
        "facts": asdict(window.facts),
        "host": asdict(window.host),
        "spent": window.spent,
        "power_watts": _plain(window.power_watts),
        "fields": _FIELDS,
        "samples": [[_plain(getattr(sample, name)) for name in _FIELDS] for sample in window.samples],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _from_json(line: dict[str, Any]) -> Labelled:
    return Labelled(
        line["run"],
        line["gpu"],
        frozenset(map(Cause, line["right"])),
        tuple(_sample_from_json(dict(zip(line["fields"], values, strict=True))) for values in line["samples"]),
        line["seconds"],
        GpuFacts(**line["facts"]),
        HostUse(**line["host"]),
        line["spent"],
        line["power_watts"],
    )


def _sample_from_json(values: dict[str, Any]) -> GpuSample:
    reasons = values.pop("throttle_reasons")
    return GpuSample(throttle_reasons=None if reasons is None else frozenset(reasons), **values)


_WORK = (*COMPUTE_CATEGORIES, TimeCategory.COMMUNICATION, TimeCategory.COPY)
"""What takes as long without a profiler. All else is time in which the GPU waits for a host: its own or a peer's."""
_HOST_CAUSES = {TimeCategory.DATA_LOADING: Cause.DATA_LOADING, TimeCategory.CHECKPOINT: Cause.CHECKPOINT}
"""Whatever else a GPU was empty for is its host."""
_CLOSE = 0.1


@dataclass(frozen=True, slots=True)
class Captured:
    """A rank's mean step in a capture.

    Attributes:
        shares: of the step, by category.
    """

    step_ms: float
    shares: dict[TimeCategory, float]


def mean_step(ledger: RankLedger) -> Captured | None:
    """Mean of the complete steps: the last one lacks what precedes the next. None if there is none."""
    steps: Sequence[StepLedger] = ledger.steps[:-1] or ledger.steps
    total = sum(step.ms for step in steps)
    if not total:
        return None
    return Captured(
        total / len(steps),
        {category: sum(s.ms * s.ledger[category] for s in steps) / total for category in TimeCategory},
    )


def at_pace(captured: Captured, step_ms: float) -> dict[TimeCategory, float]:
    """Shares in a step of this length: the work takes the same time, waits for the host fill the rest.

    So what a profiler adds is taken out, on the rank that it makes late and on those that wait for it. Where nothing is
    waited for, or the work alone takes longer, the shares stay as they are.
    """
    work = sum(captured.shares[category] for category in _WORK)
    rest = step_ms - work * captured.step_ms
    if work >= 1.0 or rest < 0.0:
        return dict(captured.shares)
    scale = rest / ((1.0 - work) * captured.step_ms)
    in_ms = {
        category: share * captured.step_ms * (1.0 if category in _WORK else scale)
        for category, share in captured.shares.items()
    }
    return {category: ms / step_ms for category, ms in in_ms.items()}


def label_of(shares: Mapping[TimeCategory, float]) -> tuple[dict[str, float], frozenset[Cause]]:
    """Label of a window: use of the rank's time, and the classes that agree with it."""
    spent = {
        "compute": sum(shares[category] for category in COMPUTE_CATEGORIES),
        "exposed_comm": sum(shares[category] for category in EXPOSED_COMMUNICATION_CATEGORIES),
        "copy": shares[TimeCategory.COPY],
        "idle": sum(shares[category] for category in IDLE_CATEGORIES),
    }
    why = max(IDLE_CATEGORIES, key=lambda category: shares[category])
    bounds = {Cause.COMPUTE_BOUND: shares[TimeCategory.COMPUTE_BOUND] + shares[TimeCategory.COMPUTE_OTHER]}
    bounds |= {
        Cause.MEMORY_BOUND: shares[TimeCategory.MEMORY_BOUND],
        Cause.LATENCY_BOUND: shares[TimeCategory.LATENCY_BOUND],
    }
    most = max(bounds.values())
    healthy = frozenset(cause for cause, share in bounds.items() if share >= most - _CLOSE)
    return spent, right_of(spent, _HOST_CAUSES.get(why, Cause.HOST_BOUND), healthy)


def label_between(beside: Sequence[Captured], step_ms: float) -> tuple[dict[str, float], frozenset[Cause]]:
    """The same of a window of steps of this length, from the captures beside it, which count alike."""
    each = [at_pace(captured, step_ms) for captured in beside]
    return label_of({category: fmean(shares[category] for shares in each) for category in TimeCategory})


def undisturbed(steps: Sequence[Step]) -> list[tuple[int, list[Step], int]]:
    """A rank's steps between each two captures, and the first steps of the two.

    Without the step before a capture, in which it is prepared, and the one after it, which waits for its end.
    """
    captures: list[tuple[int, int]] = []
    for at in (step.index for step in steps if step.captured):
        first = captures.pop()[0] if captures and captures[-1][1] == at - 1 else at
        captures.append((first, at))
    between = []
    for (first, last), (next_first, _) in itertools.pairwise(captures):
        quiet = [step for step in steps if last + 1 < step.index < next_first - 1]
        if quiet:
            between.append((first, quiet, next_first))
    return between


def pace_within(steps: Sequence[Step], begin_ns: int, end_ns: int) -> float | None:
    """Mean milliseconds per step within this time; single steps are unreliable, as hosts run ahead."""
    inside = [step for step in steps if begin_ns <= step.start_ns and step.end_ns <= end_ns]
    return (inside[-1].end_ns - inside[0].start_ns) / 1e6 / len(inside) if inside else None


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
    run: str, gpu: int, samples: list[GpuSample], right: frozenset[Cause], spent: dict[str, float] | None = None
) -> Labelled:
    return Labelled(run, gpu, right, tuple(samples), 0.2 * len(samples), _FACTS, spent=spent or {})


def _idle(gpu: int, samples: list[GpuSample]) -> Iterator[Labelled]:
    """Before, between and after runs, and of each run the time until half a second before its first kernels."""
    for is_held, group in groupby(samples, lambda sample: (sample.memory_used or 0) >= _HELD_BYTES):
        stretch = list(group)
        if is_held:
            working = (at for at, sample in enumerate(stretch) if (sample.sm or 0) > 0.002)
            stretch = stretch[: max(0, next(working, len(stretch)) - 3)]
        if len(stretch) >= 10:
            yield _labelled("start" if is_held else "none", gpu, stretch, frozenset({Cause.IDLE}))


def _own_power(samples: list[GpuSample], inside: list[GpuSample]) -> float:
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


def _inside(samples: list[GpuSample], begin: float, end: float) -> list[GpuSample]:
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


def _series(path: Path) -> dict[int, list[GpuSample]]:
    series: dict[int, list[GpuSample]] = {}
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            series.setdefault(int(row["gpu"]), []).append(_sample_at(row))
    return series


def _sample_at(row: dict[str, str]) -> GpuSample:
    def value(name: str, scale: float = 1.0) -> float | None:
        try:
            return float(row[name]) * scale
        except ValueError:
            return None

    vector = [pipe for name in ("FP16_UTIL", "FP32_UTIL", "FP64_UTIL", "INTEGER_UTIL") if (pipe := value(name, 0.01))]
    links = [rate for way in "RT" if (rate := value(f"NVLINK_TOTAL_{way}X_PER_SEC", _MIB)) is not None]
    bits = int(row["reasons"])
    return GpuSample(
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
