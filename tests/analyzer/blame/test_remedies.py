from __future__ import annotations

from stepscope.analyzer.blame.remedies import REMEDIES, actions_for, remedy_text
from stepscope.core.vocabulary import Cause, Reason
from stepscope_reference import PAGES
from stepscope_reference.fields import member_texts


def test_every_reason_has_a_remedy_and_is_documented() -> None:
    text = PAGES["causes"]()
    assert [reason for reason in Reason if reason not in REMEDIES or f"| `{reason}` |" not in text] == []


def test_every_cause_and_reason_has_its_evidence_on_the_page() -> None:
    text = PAGES["causes"]()
    assert [cause for cause in Cause if f"| `{cause}` |" not in text] == []
    assert [name for kind in (Cause, Reason) for name, evidence in member_texts(kind).items() if not evidence] == []
    causes = {str(cause) for cause in Cause}
    for name, evidence in member_texts(Reason).items():
        assert causes.issuperset(evidence.partition(": ")[0].replace("`", "").split(", ")), name


def test_the_reasons_remedy_comes_before_the_causes() -> None:
    actions = actions_for(Cause.DATA_LOADING, [Reason.NO_WORKERS])
    assert (
        actions[0] == remedy_text(Reason.NO_WORKERS) == "num_workers=4: the training process makes every batch itself"
    )
    assert actions[1].startswith("move decoding")
    assert actions_for(Cause.DATA_LOADING, [Reason.STARVED, Reason.NO_WORKERS]) == actions


def test_nothing_is_advised_twice() -> None:
    reasons = [Reason.DISPATCH, Reason.DISPATCH, Reason.CPU_LIMITED]
    actions = actions_for(Cause.HOST_BOUND, reasons)
    assert len(actions) == len(set(actions)) == 3
