"""What does the agent pass on of what training processes answer?"""

from __future__ import annotations

import pytest

from stepscope.agent.captures.profile_backend import ProfileBackend
from stepscope.agent.training_link.server import TrainingServer
from stepscope.core.protocol.messages import Answer, AnswerState


class _Server(TrainingServer):
    """One rank that has answered."""

    def __init__(self, rank: object, answer: Answer) -> None:
        self._rank, self._answer = rank, answer

    def ranks(self) -> list[object]:  # type: ignore[override]
        return [self._rank]

    def take_answers(self) -> list[tuple[str, Answer]]:
        return [("a", self._answer)]


class _Rank:
    key = "a"
    run_directory = "/runs/r"


@pytest.mark.parametrize(
    ("path", "state"),
    [
        ("/runs/r/traces/step3/rank0.json.gz", AnswerState.DONE),
        ("/runs/r/../other/rank0.json.gz", AnswerState.FAILED),
        ("/runs/rest/rank0.json.gz", AnswerState.FAILED),
        ("runs/r/rank0.json.gz", AnswerState.FAILED),
    ],
)
def test_a_trace_outside_its_run_is_no_success(path: str, state: AnswerState) -> None:
    backend = ProfileBackend(_Server(_Rank(), Answer("c", AnswerState.DONE, path=path)))
    (told,) = backend.answers()
    assert (told.answer.state, told.answer.path) == (state, path if state is AnswerState.DONE else None)
