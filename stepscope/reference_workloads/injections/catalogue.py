"""Catalogue of the injections, and `--inject NAME[:field=value,...]`, which chooses one with its severity."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from stepscope.core.errors import UsageError
from stepscope.core.text.numbers import unknown_name
from stepscope.reference_workloads.injections import communication, compute, failure, gpu_memory, host
from stepscope.reference_workloads.job import Injection

_KINDS: tuple[type[Injection], ...] = (
    host.SlowLoader,
    host.BurstyLoader,
    host.CpuStarvedLoader,
    host.LaunchBound,
    host.HostSync,
    host.CheckpointStall,
    host.CpuOptimizer,
    gpu_memory.AllocatorChurn,
    compute.MemoryBound,
    compute.Recompute,
    compute.FewMicroBatches,
    compute.UnevenStages,
    compute.Straggler,
    communication.TinyBuckets,
    communication.NoOverlap,
    communication.NoPrefetch,
    communication.WrongTransport,
    failure.UnevenData,
    failure.DyingRank,
    gpu_memory.OomGrowth,
    gpu_memory.OomFragmentation,
)
INJECTIONS: dict[str, type[Injection]] = {kind.name: kind for kind in _KINDS}

_CALLED = {int: "a whole number", float: "a number"}
"""Kind of a severity -> what it is to a reader."""


def parse_injection(text: str) -> Injection:
    """Injection of a fault: parse NAME or NAME:field=value,..., e.g. `slow_loader:milliseconds_per_item=5`.

    Raises:
        UsageError: there is no such fault or field, or the value is not of the field's kind, or out of its bounds.
    """
    name, _, settings = text.partition(":")
    if name not in INJECTIONS:
        raise unknown_name("fault", name, sorted(INJECTIONS))
    kind = INJECTIONS[name]
    defaults = kind()
    known = {field.name: type(getattr(defaults, field.name)) for field in fields(kind)}
    values: dict[str, object] = {}
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        if key not in known:
            raise unknown_name("setting", key, known, where=f"fault {name}", listing="" if known else "it has none")
        if key in values:
            raise UsageError(f"injection {name} has {key} twice", what_next="give it once")
        try:
            values[key] = known[key](value)
        except ValueError as error:
            raise UsageError(f"{key} of injection {name} is {_CALLED[known[key]]}, not {value!r}") from error
    return kind(**values)


def list_faults() -> list[dict[str, Any]]:
    """List all injectable faults: name, expected verdict, needs, and default severity."""
    return [
        {
            "name": kind.name,
            "what": (kind.__doc__ or "").splitlines()[0],
            "cause": kind.cause,
            "also_right": list(kind.also_right),
            "reasons": list(kind.reasons),
            "shows": kind.shows,
            "needs": [need.text for need in kind.needs],
            "severity": asdict(kind()),
        }
        for kind in INJECTIONS.values()
    ]
