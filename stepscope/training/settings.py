"""Arguments of `profile()`, the run context built from them, and warnings about arguments that do not fit the job."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from stepscope.core.text.numbers import ranks_words
from stepscope.training.captures.schedule import Schedule, SlowStep
from stepscope.training.memory.owners import MemoryOwners
from stepscope.training.run.identity import Identity
from stepscope.training.run.mesh import KNOWN_DIMENSIONS, MESH_VARIABLE, is_dimension


@dataclass(frozen=True, slots=True)
class Settings:
    """Arguments of `profile`, documented there; not checked yet, as making a profile never raises."""

    run: str | None
    out: str | os.PathLike[str]
    schedule: Schedule | None
    ranks: str | Iterable[int]
    mesh: Any
    record_shapes: bool
    with_stack: bool
    profile_memory: bool
    capture_when: SlowStep | None
    labels: dict[str, str] | None
    simulated_compute: bool
    stuck_after: float | str | None
    memory: str | int | None
    export: str | Iterable[str] | None
    first_step: int | None


@dataclass(frozen=True, slots=True)
class RunContext:
    """What every part that watches the steps may know of the run.

    Attributes:
        attempt, first_step: which start of the job this is, and its first step.
        mesh: sizes by dimension (tp, pp, dp, ep, cp); empty when unknown.
        open_spans: names of the spans that the training loop is in, the outermost first.
        owners: the models that the training code has shown.
        when_stuck: called beside training once a step is stuck, as the job may soon be killed: write what waits.
    """

    run_directory: Path
    identity: Identity
    mesh: dict[str, int]
    settings: Settings
    open_spans: Callable[[], list[str]] = list
    owners: MemoryOwners = field(default_factory=MemoryOwners)
    when_stuck: list[Callable[[], None]] = field(default_factory=list)
    attempt: int = 1
    first_step: int = 0


_MAX_NAMED = 8

_DISJOINT = ("tp", "pp", "dp", "cp")
"""Dimensions in which each rank has one coordinate; expert parallelism lies across others."""


def implausible_arguments(settings: Settings, mesh: Mapping[str, int], world_size: int) -> list[str]:
    """One line each, for the log."""
    found = []
    if isinstance(settings.ranks, Collection) and not isinstance(settings.ranks, str):
        absent = sorted(rank for rank in settings.ranks if isinstance(rank, int) and not 0 <= rank < world_size)
        if absent:
            more = f" and {len(absent) - _MAX_NAMED:,} more" if len(absent) > _MAX_NAMED else ""
            named = ranks_words(absent[:_MAX_NAMED]) + more
            found.append(f"ranks: the job has {world_size}, so that {named} will never be captured")
    if isinstance(settings.mesh, Mapping):
        unknown = [str(name) for name in settings.mesh if not is_dimension(str(name))]
        found += [f"mesh: {name!r} is none of {', '.join(KNOWN_DIMENSIONS)} and is left out" for name in unknown]
    size = prod(mesh.get(name, 1) for name in _DISJOINT)
    is_said = settings.mesh is not None or bool(os.environ.get(MESH_VARIABLE))
    if is_said and size and world_size % size:
        sizes = ", ".join(f"{name}={mesh[name]}" for name in _DISJOINT if name in mesh)
        found.append(f"mesh: {sizes} is {size} ranks, which do not divide a job of {world_size}")
    return found
