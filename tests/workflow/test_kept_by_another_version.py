"""Analyses saved by another version, with fewer or other categories, are still shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepscope.analyzer.compare.comparison import compare_runs
from stepscope.analyzer.compare.run_record import RunRecord
from stepscope.cli.terminal.analysis import print_analysis
from stepscope.core.documents.analysis import Analysis
from stepscope.core.errors import DataError
from stepscope.core.text.wording import category_words
from stepscope.core.vocabulary import TimeCategory
from stepscope.dashboard.components import timeline_canvas_panel
from stepscope.store.documents import decode_analysis, encode_document
from stepscope.workflow.panels.ledger import ledger_panel, most_different_ranks
from stepscope.workflow.panels.report import render_report
from tests.dashboard import example_run as example


@pytest.fixture(scope="module")
def whole() -> Analysis:
    return example.make_analysis(example.make_timelines())


def _ledgers(document: dict[str, Any]) -> list[dict[str, float]]:
    """The job's, every rank's, every step's."""
    ranks = document["ranks"]
    return [document["ledger"], *(r["ledger"] for r in ranks), *(s["ledger"] for r in ranks for s in r["steps"])]


@pytest.mark.parametrize(
    "heading", [TimeCategory.COMPUTE_BOUND, TimeCategory.WAIT, TimeCategory.BUBBLE, TimeCategory.IDLE_OTHER]
)
def test_without_a_heading_it_is_shown_everywhere(
    whole: Analysis, heading: TimeCategory, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(encode_document(whole))
    for ledger in _ledgers(document):
        ledger.pop(heading, None)
    analysis = decode_analysis(json.dumps(document).encode())
    print_analysis(analysis)
    shown = capsys.readouterr().out
    table = shown[shown.index("Time of each rank") : shown.index("Kernels with most time")]
    assert category_words(heading) not in table
    assert "<html" in render_report(analysis, [], title="a run", version="0")
    assert most_different_ranks(analysis, 2)
    assert ledger_panel(analysis) is not None
    assert timeline_canvas_panel("run", analysis) is not None
    for sides in ((whole, analysis), (analysis, whole)):
        found = compare_runs(*([RunRecord("run", side)] for side in sides), names=("a", "b"), conditions=())
        assert encode_document(found)


def test_a_heading_that_only_one_rank_lacks_is_nothing_there(
    whole: Analysis, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(encode_document(whole))
    del document["ranks"][0]["ledger"][TimeCategory.BUBBLE]
    print_analysis(decode_analysis(json.dumps(document).encode()))
    assert "Pipeline bubble" in capsys.readouterr().out


@pytest.mark.parametrize("place", [0, 1, -1])
def test_with_an_unknown_heading_it_is_refused_in_one_line(whole: Analysis, place: int) -> None:
    document = json.loads(encode_document(whole))
    _ledgers(document)[place]["dream_time"] = 0.5
    with pytest.raises(DataError, match="dream_time") as refused:
        decode_analysis(json.dumps(document).encode(), where="analysis.json")
    assert str(refused.value).startswith("analysis.json: ")
    assert len(str(refused.value).splitlines()) == 1
