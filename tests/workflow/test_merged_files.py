"""A file merged from several ranks is analyzed as the ranks it holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.errors import DataError
from stepscope.workflow.analyze import analyze
from stepscope.workflow.trace_info import read_trace_info
from tests.workflow.written_traces import trace_document


def _documents() -> list[dict[str, Any]]:
    """Two ranks with their own process and device; rank 1 computes longer."""
    documents = [trace_document(rank, compute_us=30 + 20 * rank) for rank in (0, 1)]
    for rank, document in enumerate(documents):
        for event in document["traceEvents"]:
            event["pid"] = rank if event["cat"] == "kernel" else 100 + rank
    return documents


def _merged(documents: list[dict[str, Any]]) -> str:
    return json.dumps(documents[0] | {"traceEvents": [event for doc in documents for event in doc["traceEvents"]]})


@pytest.mark.parametrize("form", ["one list", "one after another"])
def test_a_merged_file_gives_the_analysis_of_its_ranks(tmp_path: Path, form: str) -> None:
    documents = _documents()
    for rank, document in enumerate(documents):
        (tmp_path / "apart").mkdir(exist_ok=True)
        (tmp_path / "apart" / f"rank{rank}.json").write_text(json.dumps(document))
    merged = tmp_path / "merged.json"
    merged.write_text(_merged(documents) if form == "one list" else "\n".join(map(json.dumps, documents)))
    apart = analyze([str(tmp_path / "apart")], keep=False).analysis
    together = analyze([str(merged)], keep=False).analysis
    (notice,) = [notice for notice in together.warnings if notice.code == "merged_file"]
    assert "holds 2 ranks: rank 0 = " in notice.message
    assert {rank.rank_source for rank in apart.ranks} == {"header"}
    for own, alone in zip(together.ranks, apart.ranks, strict=True):  # where they come from differs, as it should
        assert replace(own, rank_source=alone.rank_source, file=alone.file) == alone
    assert replace(together, warnings=apart.warnings, ranks=apart.ranks) == apart


def test_information_on_a_merged_file_names_each_rank(tmp_path: Path) -> None:
    path = tmp_path / "merged.json"
    path.write_text(_merged(_documents()))
    files = read_trace_info([str(path)]).files
    assert [(file.rank, file.part, file.steps) for file in files] == [
        (0, "process 100", [0, 1, 2]),
        (1, "process 101", [0, 1, 2]),
    ]


def test_a_merged_file_that_cannot_be_taken_apart_is_refused(tmp_path: Path) -> None:
    events = [event for document in _documents() for event in document["traceEvents"]]
    for event in events:
        event["pid"] = 0 if event["cat"] == "kernel" else event["pid"]
    path = tmp_path / "merged.json"
    path.write_text(json.dumps(sorted(events, key=lambda event: float(event["ts"]))))
    with pytest.raises(DataError, match="device rows cannot be assigned to them"):
        analyze([str(path)])
