"""A window of one GPU's samples of which it is known what the GPU did: as a type, and as a line of a file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from stepscope.analyzer.fleet import GpuFacts, HostUse, Sample
from stepscope.core.causes import Cause

SPENT = ("compute", "exposed_comm", "copy", "idle")
"""A plain reading of a trace: shares of time with kernels that compute, else communication, else copies, nothing."""
_NAMED, _EITHER = 0.25, 0.05
"""A loss of this share of the trace's window is the label; within 0.05 of it, both are right."""
_MINUTE = 60.0
_FEWEST_SAMPLES = 12
_FIELDS = tuple(field.name for field in fields(Sample))


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
    samples: tuple[Sample, ...]
    seconds: float
    facts: GpuFacts = field(default_factory=GpuFacts)
    host: HostUse = field(default_factory=HostUse)
    spent: dict[str, float] = field(default_factory=dict)
    power_watts: float | None = None


def right_of(spent: Mapping[str, float], host: Cause, healthy: frozenset[Cause]) -> frozenset[Cause]:
    """Which classes are right.

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
    """The window as a source without these figures would have seen it."""
    nothing: dict[str, Any] = dict.fromkeys(missing)
    return replace(window, samples=tuple(replace(sample, **nothing) for sample in window.samples))


def as_minute(window: Labelled) -> Labelled:
    """The window drawn out to a minute, with the power of its own work: its samples, repeated where there are few."""
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
    """What `write_windows` wrote."""
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
        tuple(_sample(dict(zip(line["fields"], values, strict=True))) for values in line["samples"]),
        line["seconds"],
        GpuFacts(**line["facts"]),
        HostUse(**line["host"]),
        line["spent"],
        line["power_watts"],
    )


def _sample(values: dict[str, Any]) -> Sample:
    reasons = values.pop("throttle_reasons")
    return Sample(throttle_reasons=None if reasons is None else frozenset(reasons), **values)
