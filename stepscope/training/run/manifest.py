"""Run manifest (run.json): rank 0 writes it at the start, at each capture and at the end."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from stepscope.core.documents.run_directory import RUN_FILE, Attempt, RunManifest
from stepscope.training.run.identity import num_usable_cpus, relevant_environment, versions
from stepscope.training.run.mesh import mesh_sizes
from stepscope.training.run.run_files import read_attempts, run_within, write_manifest
from stepscope.training.settings import RunContext

_ENDS_WITHIN_SECONDS = 10.0

MEASURING_STOPPED = "measuring stopped"
"""The attempt's ending when profile() gave up; training went on, and how it ended is not known."""


class ManifestWriter:
    """Keeps run.json true while the run goes on.

    Raises:
        OSError: from `write` and `end`, when the run directory cannot be written.
    """

    def __init__(self, context: RunContext, labels: dict[str, str]) -> None:
        self._context = context
        self._is_due = False
        self._writing = threading.Lock()  # a signal has the end written on another thread
        run_directory, identity = context.run_directory, context.identity
        this_attempt = Attempt(start_ns=time.time_ns(), end_ns=None, ended=None, world_size=identity.world_size)
        self._manifest = RunManifest(
            run=run_directory.name,
            host=identity.host,
            world_size=identity.world_size,
            mesh=context.mesh,
            num_cpus=num_usable_cpus(),
            versions=versions(),
            environment=relevant_environment(),
            attempts=[*read_attempts(run_directory), this_attempt],
            simulated_compute=context.settings.simulated_compute,
            labels=labels,
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


def attempt_ending(kind: type[BaseException] | None) -> str:
    """The word for an attempt whose training loop was left by this kind of exception, or by none."""
    if kind is None or issubclass(kind, SystemExit):
        return "finished"
    return "signal" if issubclass(kind, KeyboardInterrupt) else "exception"
