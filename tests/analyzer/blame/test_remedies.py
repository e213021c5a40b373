from __future__ import annotations

from pathlib import Path

from stepscope.analyzer.blame.remedies import ACTIONS, REMEDIES, actions_for
from stepscope.core.vocabulary.causes import Cause, Reason

VERDICTS = Path(__file__).resolve().parents[3] / "docs" / "guides" / "verdicts.md"


def test_every_reason_has_a_remedy_and_is_documented() -> None:
    text = VERDICTS.read_text()
    assert [reason for reason in Reason if reason not in REMEDIES or f"`{reason}`" not in text] == []


def test_the_reasons_remedy_comes_before_the_causes() -> None:
    actions = actions_for(Cause.DATA_LOADING, [Reason.NO_WORKERS])
    assert actions == [REMEDIES[Reason.NO_WORKERS], *ACTIONS[Cause.DATA_LOADING]]


def test_nothing_is_advised_twice() -> None:
    reasons = [Reason.DISPATCH, Reason.DISPATCH, Reason.CPU_LIMITED]
    actions = actions_for(Cause.HOST_BOUND, reasons)
    assert len(actions) == len(set(actions)) == 3
