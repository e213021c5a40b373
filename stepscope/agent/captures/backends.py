"""Capture backends: the interface, and the backend for processes under `profile()`."""

from __future__ import annotations

import os.path
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from stepscope.agent.training_link.server import TrainingServer
from stepscope.core.documents.node import TrainingRank
from stepscope.core.metrics.readings import Missing
from stepscope.core.protocol.captures import CaptureProgress, CaptureRequest, CaptureState, CaptureTarget, CaptureUpdate
from stepscope.core.protocol.messages import Cancel


class CaptureBackend(Protocol):
    """One way to capture processes. All calls come from one thread, a few times a second, and none waits.

    Attributes:
        name: short, for people.
        why_closed: why it can capture no process; None while it can.
    """

    name: str

    @property
    def why_closed(self) -> Missing | None: ...

    def targets(self) -> Sequence[CaptureTarget]:
        """The processes that can be captured now."""

    def request(self, request: CaptureRequest, keys: Collection[str]) -> None:
        """Ask these processes for a capture; `updates` has at least one answer of each.

        A process that was asked with this id before answers its progress: it is never captured twice. Keys that are no
        targets any more are ignored.
        """

    def cancel(self, capture_id: str, keys: Collection[str]) -> None:
        """Cancel this capture in these processes; each answers its progress."""

    def updates(self) -> Sequence[CaptureUpdate]:
        """The answers since the last call, the oldest first."""


class ProfileBackend:
    """Captures through `profile()`: processes are asked over their connection and write into their run's directory."""

    name = "profile"

    def __init__(self, server: TrainingServer) -> None:
        self._server = server

    @property
    def why_closed(self) -> Missing | None:
        """Why no process can connect."""
        return self._server.why_closed

    def targets(self) -> Sequence[CaptureTarget]:
        """The processes that are connected."""
        return [_target_of(rank) for rank in self._server.ranks()]

    def request(self, request: CaptureRequest, keys: Collection[str]) -> None:
        """Ask these processes; see `CaptureBackend`."""
        self._server.send(request, keys)

    def cancel(self, capture_id: str, keys: Collection[str]) -> None:
        """Tell these processes; one that does not know the capture refuses."""
        self._server.send(Cancel(capture_id), keys)

    def updates(self) -> Sequence[CaptureUpdate]:
        """The answers since the last call."""
        directories = {rank.key: rank.hello.run_directory for rank in self._server.ranks()}
        return [
            replace(update, progress=_checked(update.progress, directories.get(update.key)))
            for update in self._server.take_updates()
        ]


def _target_of(rank: TrainingRank) -> CaptureTarget:
    hello, heartbeat = rank.hello, rank.heartbeat
    return CaptureTarget(
        key=rank.key,
        backend=ProfileBackend.name,
        rank=hello.rank,
        world_size=hello.world_size,
        run=hello.run,
        run_directory=hello.run_directory,
        pid=rank.pid,
        uid=rank.uid,
        newest_step=heartbeat.index if heartbeat else None,
        step_ms=heartbeat.ms if heartbeat else None,
    )


def _checked(progress: CaptureProgress, run_directory: str | None) -> CaptureProgress:
    """Failed, and without its path, where that leads out of the run's directory: people will type it."""
    if progress.path is None or run_directory is None:
        return progress
    if os.path.normpath(progress.path).startswith(os.path.normpath(run_directory) + os.sep):
        return progress
    reason = "its trace is outside its run's directory"
    return replace(progress, state=CaptureState.FAILED, path=None, reason=reason)
