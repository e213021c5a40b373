"""Profile backend: which answers of training processes the agent passes on."""

from __future__ import annotations

import pytest

from stepscope.agent.captures.coordinator import ProfileCaptureBackend
from stepscope.agent.training_link.server import TrainingServer
from stepscope.core.documents.node import TrainingRank
from stepscope.core.protocol.captures import CaptureProgress, CaptureState, CaptureUpdate
from tests.agent.training_link.conftest import hello

_RANK = TrainingRank("a", hello(run_directory="/runs/r"), None, 1, 0, 0.0)


class _Server(TrainingServer):
    """One rank that has answered."""

    def __init__(self, progress: CaptureProgress) -> None:
        self._progress = progress

    def ranks(self) -> tuple[TrainingRank, ...]:
        return (_RANK,)

    def take_updates(self) -> list[CaptureUpdate]:
        return [CaptureUpdate("c", "a", self._progress)]


@pytest.mark.parametrize(
    ("path", "state"),
    [
        ("/runs/r/traces/step3/rank0.json.gz", CaptureState.DONE),
        ("/runs/r/../other/rank0.json.gz", CaptureState.FAILED),
        ("/runs/rest/rank0.json.gz", CaptureState.FAILED),
        ("runs/r/rank0.json.gz", CaptureState.FAILED),
    ],
)
def test_a_trace_outside_its_run_is_no_success(path: str, state: CaptureState) -> None:
    backend = ProfileCaptureBackend(_Server(CaptureProgress(CaptureState.DONE, path=path)))
    (update,) = backend.updates()
    assert (update.progress.state, update.progress.path) == (state, path if state is CaptureState.DONE else None)
