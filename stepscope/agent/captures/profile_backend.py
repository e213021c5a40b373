"""Capture backend for processes under `profile()`: asked over their own connection, they write into their run."""

from __future__ import annotations

import os.path
from collections.abc import Collection, Sequence
from dataclasses import replace

from stepscope.agent.captures.backend import CaptureTarget, TargetAnswer
from stepscope.agent.training_link.server import TrainingServer
from stepscope.core.documents.node import TrainingRank
from stepscope.core.metrics.readings import Missing
from stepscope.core.protocol.messages import Answer, AnswerState, Cancel, CaptureRequest


class ProfileBackend:
    """Captures through `profile()`."""

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

    def request(self, capture: CaptureRequest, keys: Collection[str]) -> None:
        """Ask these processes; asked again they answer what has become of it."""
        self._server.say(capture, keys)

    def cancel(self, capture_id: str, keys: Collection[str]) -> None:
        """Tell these processes; one that knows nothing of it says so."""
        self._server.say(Cancel(capture_id), keys)

    def answers(self) -> Sequence[TargetAnswer]:
        """What was answered since the last call."""
        directories = {rank.key: rank.run_directory for rank in self._server.ranks()}
        return [TargetAnswer(key, _within(answer, directories.get(key))) for key, answer in self._server.take_answers()]


def _target_of(rank: TrainingRank) -> CaptureTarget:
    return CaptureTarget(
        rank.key,
        ProfileBackend.name,
        rank.pid,
        rank.uid,
        rank.rank,
        rank.run,
        rank.run_directory,
        world_size=rank.world_size,
        newest_step=rank.step,
        step_ms=rank.step_ms,
    )


def _within(answer: Answer, run_directory: str | None) -> Answer:
    """The answer; failed, and without its path, where that leads out of its run: people are to type it."""
    if answer.path is None or run_directory is None:
        return answer
    inside = os.path.normpath(answer.path).startswith(os.path.normpath(run_directory) + os.sep)
    if inside:
        return answer
    outside = "it names a trace outside its run's directory"
    return replace(answer, state=AnswerState.FAILED, path=None, reason=outside)
