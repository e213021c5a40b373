"""Run context: arguments of `profile()`, warnings where they do not fit the job, and the manifest run.json."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.core.documents.run_directory import RUN_FILE, Attempt, RunManifest
from stepscope.core.text.numbers import ranks_words
from stepscope.training.captures.schedule import Schedule, SlowStep
from stepscope.training.memory.owners import MemoryOwners
from stepscope.training.run.identity import (
    Identity,
    cpu_affinity,
    num_usable_cpus,
    software_versions,
)
from stepscope.training.run.mesh import KNOWN_DIMENSIONS, MESH_VARIABLE, is_mesh_dimension, mesh_sizes
from stepscope.training.run.run_files import read_attempts, run_within, write_manifest
from stepscope.training.settings.environment import relevant_environment
from stepscope.training.settings.observed import ObservedSettings
from stepscope.training.steps.reached_step import Reached

_MAX_NAMED = 8

_DISJOINT = ("tp", "pp", "dp", "cp")
"""Dimensions in which each rank has one coordinate; expert parallelism lies across others."""


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """Arguments of `stepscope.profile`, documented there; not checked yet, as making a profile never raises."""

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
    live_verdict: float | str | None = None
    reduce: str | None = None
    keep_traces: str | None = None
    spool: str | os.PathLike[str] | None = None

    def warnings(self, mesh: Mapping[str, int], world_size: int) -> list[str]:
        """One line for the log for each argument that does not fit the job."""
        found = []
        if isinstance(self.ranks, Collection) and not isinstance(self.ranks, str):
            absent = sorted(rank for rank in self.ranks if isinstance(rank, int) and not 0 <= rank < world_size)
            if absent:
                more = f" and {len(absent) - _MAX_NAMED:,} more" if len(absent) > _MAX_NAMED else ""
                named = ranks_words(absent[:_MAX_NAMED]) + more
                found.append(f"ranks: the job has {world_size}, so that {named} will never be captured")
        if isinstance(self.mesh, Mapping):
            unknown = [str(name) for name in self.mesh if not is_mesh_dimension(str(name))]
            found += [f"mesh: {name!r} is none of {', '.join(KNOWN_DIMENSIONS)} and is left out" for name in unknown]
        size = prod(mesh.get(name, 1) for name in _DISJOINT)
        is_said = self.mesh is not None or bool(os.environ.get(MESH_VARIABLE))
        if is_said and size and world_size % size:
            sizes = ", ".join(f"{name}={mesh[name]}" for name in _DISJOINT if name in mesh)
            found.append(f"mesh: {sizes} is {size} ranks, which do not divide a job of {world_size}")
        return found


class OpenStep(NamedTuple):
    """The open step of a training process, and its start: monotonic seconds, and ns since the epoch."""

    number: int
    began_seconds: float
    began_ns: int


@dataclass(frozen=True, slots=True)
class RunContext:
    """The run of this training process: what every part that watches the steps may know of it.

    Attributes:
        attempt, first_step: which start of the job this is, and its first step.
        mesh: sizes by dimension (tp, pp, dp, ep, cp); empty when unknown.
        open_spans: names of the spans that the training loop is in, the outermost first.
        open_step: the step that it is in; None before the first.
        owners: the models that the training code has shown.
        when_stuck: called beside training once a step is stuck, as the job may soon be killed: write what waits.
    """

    run_directory: Path
    identity: Identity
    mesh: dict[str, int]
    settings: ProfileSettings
    open_spans: Callable[[], list[str]] = list
    open_step: Callable[[], OpenStep | None] = lambda: None
    owners: MemoryOwners = field(default_factory=MemoryOwners)
    when_stuck: list[Callable[[], None]] = field(default_factory=list)
    attempt: int = 1
    first_step: int = 0


_ENDS_WITHIN_SECONDS = 10.0

MEASURING_STOPPED = "measuring stopped"
"""The attempt's ending when profile() gave up; training went on, and how it ended is not known."""


class ManifestWriter:
    """Keeps the run's manifest run.json true while the run goes on.

    Args:
        reached: how far an attempt had come that was killed on this host.

    Raises:
        OSError: from `write` and `end`, when the run directory cannot be written.
    """

    def __init__(
        self, context: RunContext, labels: dict[str, str], observed: ObservedSettings, reached: Reached | None = None
    ) -> None:
        self._context = context
        self._observed = observed
        self._is_due = False
        self._writing = threading.Lock()  # a signal has the end written on another thread
        run_directory, identity = context.run_directory, context.identity
        this_attempt = Attempt(
            start_ns=time.time_ns(),
            end_ns=None,
            ended=None,
            world_size=identity.world_size,
            first_step=context.settings.first_step,
        )
        self._manifest = RunManifest(
            run=run_directory.name,
            host=identity.host,
            world_size=identity.world_size,
            mesh=context.mesh,
            num_cpus=num_usable_cpus(),
            versions=software_versions(),
            environment=relevant_environment(),
            attempts=[*_with_reached(read_attempts(run_directory), reached), this_attempt],
            simulated_compute=context.settings.simulated_compute,
            labels=labels,
            cpu_affinity=cpu_affinity(),
            settings=observed.read(counts_frozen=False),
        )

    def write(self) -> None:
        """Write the file, however long the disk takes."""
        with self._writing:
            self._is_due = False
            write_manifest(self._context.run_directory, self._manifest)

    def keep(self, unprofiled_step_ms: float | None) -> None:
        """Have the file written soon, on another thread; an unknown step time leaves the one known before."""
        if unprofiled_step_ms is not None:
            self._manifest = replace(self._manifest, unprofiled_step_ms=unprofiled_step_ms)
        if not self._manifest.mesh:  # the script may have made its groups since
            world_size = self._context.identity.world_size
            self._manifest = replace(self._manifest, mesh=mesh_sizes(self._context.settings.mesh, world_size))
        self._is_due = True

    def read_settings(self, *, is_over: bool = False) -> None:
        """Have what is set now written with the next change. On the thread that trains.

        Args:
            is_over: the training code was left a while ago, and what it had set may have been restored.
        """
        known = self._manifest.settings
        settings = self._observed.with_seen(known) if is_over and known is not None else self._observed.read()
        self._manifest = replace(self._manifest, settings=settings, environment=relevant_environment())

    def run_task(self) -> None:
        """Once a second, on another thread: write what has changed."""
        if self._is_due:
            try:
                self.write()
            except OSError:  # tried again; a full disk is reported once, by the steps' file, else at the end
                self._is_due = True

    def end(self, ended: str, unprofiled_step_ms: float | None) -> None:
        """Write how the attempt ended, within seconds: a word of `ending`, or MEASURING_STOPPED.

        Raises:
            TimeoutError: the disk does not answer.
        """
        self.keep(unprofiled_step_ms)
        *earlier, attempt = self._manifest.attempts
        attempt = replace(attempt, end_ns=time.time_ns(), ended=ended)
        self._manifest = replace(self._manifest, attempts=[*earlier, attempt])
        run_within(_ENDS_WITHIN_SECONDS, self.write, f"how the run ended, {self._context.run_directory / RUN_FILE}")


def _with_reached(attempts: list[Attempt], reached: Reached | None) -> list[Attempt]:
    """The attempts, the one that was killed with the last step that it had ended."""
    if reached is None or reached.attempt != len(attempts) or attempts[-1].end_ns is not None:
        return attempts
    killed = replace(
        attempts[-1],
        last_step=reached.last_step,
        first_step_ns=reached.first_step_ns,
        last_step_ns=reached.last_step_ns,
    )
    return [*attempts[:-1], killed]


def attempt_ending(kind: type[BaseException] | None) -> str:
    """How an attempt of a run ended, by the exception that left its training loop: finished, signal or exception."""
    if kind is None or issubclass(kind, SystemExit):
        return "finished"
    return "signal" if issubclass(kind, KeyboardInterrupt) else "exception"
