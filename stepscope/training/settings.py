"""What did the caller of `profile` ask for?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.training.captures.schedule import Schedule
from stepscope.training.captures.slow_steps import SlowStep
from stepscope.training.memory.memory_owners import MemoryOwners
from stepscope.training.run.identity import Identity


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of `profile`, which says what each means; not checked yet, as making a profile never raises."""

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
