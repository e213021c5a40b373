"""Catalogue of the injections, and `--inject NAME[:field=value,...]`, which chooses one with its severity."""

from __future__ import annotations

from dataclasses import fields

from stepscope.core.errors import UsageError
from stepscope.reference_workloads.injections.communication import NoOverlap, NoPrefetch, TinyBuckets, WrongTransport
from stepscope.reference_workloads.injections.compute import (
    FewMicroBatches,
    MemoryBound,
    Recompute,
    Straggler,
    UnevenStages,
)
from stepscope.reference_workloads.injections.failure import DyingRank, UnevenData
from stepscope.reference_workloads.injections.gpu_memory import AllocatorChurn, OomFragmentation, OomGrowth
from stepscope.reference_workloads.injections.host import (
    BurstyLoader,
    CheckpointStall,
    CpuOptimizer,
    CpuStarvedLoader,
    HostSync,
    LaunchBound,
    SlowLoader,
)
from stepscope.reference_workloads.job import Injection

_KINDS: tuple[type[Injection], ...] = (
    SlowLoader,
    BurstyLoader,
    CpuStarvedLoader,
    LaunchBound,
    HostSync,
    CheckpointStall,
    CpuOptimizer,
    AllocatorChurn,
    MemoryBound,
    Recompute,
    FewMicroBatches,
    UnevenStages,
    Straggler,
    TinyBuckets,
    NoOverlap,
    NoPrefetch,
    WrongTransport,
    UnevenData,
    DyingRank,
    OomGrowth,
    OomFragmentation,
)
INJECTIONS: dict[str, type[Injection]] = {kind.name: kind for kind in _KINDS}

_CALLED = {int: "a whole number", float: "a number"}
"""Kind of a severity -> what it is to a reader."""


def parse_injection(text: str) -> Injection:
    """The fault that NAME or NAME:field=value,... means, e.g. `slow_loader:milliseconds_per_item=5`.

    Raises:
        UsageError: there is no such fault or field, or the value is not of the field's kind, or out of its bounds.
    """
    name, _, settings = text.partition(":")
    if name not in INJECTIONS:
        raise UsageError(f"there is no injection {name!r}", what_next=f"choose one of {', '.join(sorted(INJECTIONS))}")
    kind = INJECTIONS[name]
    defaults = kind()
    known = {field.name: type(getattr(defaults, field.name)) for field in fields(kind)}
    values: dict[str, object] = {}
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        if key not in known:
            what_next = f"it has {', '.join(known)}" if known else "it has none"
            raise UsageError(f"injection {name} has no setting {key!r}", what_next=what_next)
        if key in values:
            raise UsageError(f"injection {name} has {key} twice", what_next="give it once")
        try:
            values[key] = known[key](value)
        except ValueError as error:
            raise UsageError(f"{key} of injection {name} is {_CALLED[known[key]]}, not {value!r}") from error
    return kind(**values)
