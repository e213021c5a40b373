"""A recorded trace with stacks: the verdict names file and line of the function that keeps the operators waiting."""

from __future__ import annotations

from pathlib import Path

from stepscope.core.vocabulary import Cause, Reason
from stepscope.workflow.analyze import analyze

_TRACE = Path(__file__).parent / "recorded_stacks" / "rank0.json.gz"
"""Three steps on a CPU, recorded with `with_stack=True`: `tokenise` in train.py counts letters in a loop."""


def test_a_verdict_on_late_python_names_file_and_line() -> None:
    verdict = analyze([str(_TRACE)]).analysis.verdict
    assert (verdict.cause, verdict.reasons) == (Cause.HOST_BOUND, [Reason.PYTHON])
    function = next(item for item in verdict.evidence if "in_function" in item.metric)
    assert function.metric == "share_of_late_host_time_in_function: train.py:11 tokenise"
    assert function.value > 0.9
    assert verdict.actions[0].startswith("shorten train.py:11 tokenise (9")
