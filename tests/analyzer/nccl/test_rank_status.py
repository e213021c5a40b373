"""RAS's answers tell who is ahead, who is behind and what lasts; its text names the smaller group, whichever it is."""

from __future__ import annotations

import json

import pytest

from stepscope.analyzer.nccl import explain_nccl
from stepscope.collectors.nccl.rank_status import RasTextReader, read_ras
from stepscope.core.documents.nccl import NcclReport
from stepscope.core.documents.nccl_facts import LogPlace, Version
from stepscope.core.documents.nccl_rank_status import RasRow, ranks_behind


def _mismatch(*groups: str) -> str:
    lines = ["#0-0 (fa93) MISMATCH", "  Communicator ranks have different AllGather operation counts", *groups]
    return "\n".join(["Communicators... (0.00s)", *lines, ""])


def _named(*ranks: int) -> list[str]:
    return [f"  Rank {rank} -- GPU {rank} managed by process 3230 on node 10.0.0.1" for rank in ranks]


def _explain(*answers: str) -> NcclReport:
    reader = RasTextReader("ras")
    for number, line in enumerate("\n".join(answers).splitlines(), 1):
        reader.feed(number, line)
    return explain_nccl([], statuses=reader.statuses())


_AHEAD = _mismatch(
    "  6 ranks have launched up to operation 640", "  2 ranks have launched up to operation 641", *_named(4, 5)
)
_BEHIND = _mismatch(
    "  7 ranks have launched up to operation 640",
    "  Rank 4 has launched up to operation 639 -- GPU 4 managed by process 323032 on node 10.137.190.124",
)


def test_the_few_that_ras_names_may_be_the_ones_ahead() -> None:
    """nccl#1911."""
    (finding,) = _explain(_AHEAD).findings
    assert (finding.code, finding.ranks) == ("ras_mismatch", [0, 1, 2, 3, 6, 7])
    assert finding.message.startswith(
        "communicator fa93: ranks 4–5 have launched more collectives and wait for the others "
        "(AllGather: 2 at 641, 6 at 640)"
    )


def test_or_the_ones_behind() -> None:
    (finding,) = _explain(_BEHIND).findings
    assert (finding.code, finding.ranks) == ("ras_mismatch", [4])
    assert "rank 4 has launched fewer collectives than the others (AllGather: 7 at 640, 1 at 639)" in finding.message


def test_ranks_that_have_not_launched_any() -> None:
    text = _mismatch("  7 ranks have launched up to operation 1", "  Rank 2 has not launched any operations -- GPU 2")
    assert _explain(text).findings[0].ranks == [2]


def test_the_agent_takes_the_same_ranks_for_behind() -> None:
    for text, ranks in ((_AHEAD, [0, 1, 2, 3, 6, 7]), (_BEHIND, [4])):
        (one,) = read_ras(text, file="ras").communicators
        assert ranks_behind(one) == ranks


def _json(*counts: dict[str, int], **status: int) -> str:
    ranks = [{"rank": rank, "host": "a", "pid": rank, "collective_counts": one} for rank, one in enumerate(counts)]
    ranks[0]["status"] = status
    return json.dumps(
        {"nccl_version": "2.29.1", "communicators": [{"hash": "0x1", "size": len(counts), "ranks": ranks}]}
    )


def test_equal_sums_of_different_calls_are_different() -> None:
    """Each of two ranks is ahead in one kind of call."""
    answer = _json({"AllReduce": 5, "AllGather": 4}, {"AllReduce": 4, "AllGather": 5})
    findings = explain_nccl([], statuses=[read_ras(answer, file="ras")]).findings
    assert [finding.ranks for finding in findings] == [[1], [0]]


def test_an_error_that_ranks_report() -> None:
    status = read_ras(_json({"AllReduce": 5}, {"AllReduce": 5}, init_state=0, async_error=6), file="ras")
    (finding,) = explain_nccl([], statuses=[status]).findings
    assert (finding.code, finding.ranks) == ("ras_error", [0])
    assert "reports remote process exited or there was a network error" in finding.message
    assert status.rows == (RasRow(1, 1, 2, "", "ERROR"),)


def test_errors_and_states_of_the_text_form() -> None:
    text = "\n".join(
        [
            *("#0-0 (ab) ERROR", "  Asynchronous error on 1 rank"),
            "  Rank 3 reported remote process exited or there was a network error -- GPU 3 managed by process 1 on b",
            *("#0-0 (ab) MISMATCH", "  Communicator ranks have different status", "  6 ranks have status RUNNING"),
            *("  2 ranks have status FINALIZE", *_named(4, 5)),
            *("#0-1 (cd) INCOMPLETE", "  Missing communicator data from 1 rank", *_named(21)),
        ]
    )
    assert [(one.code, one.ranks) for one in _explain(text).findings] == [
        ("ras_error", [3]),
        ("ras_missing", [21]),
        ("ras_mismatch", [4, 5]),
    ]


@pytest.mark.parametrize(
    ("answers", "codes"),
    [
        ([_BEHIND], ["ras_mismatch"]),
        ([_BEHIND, _BEHIND], ["ras_hang", "ras_mismatch"]),
        # it goes on
        ([_BEHIND, _BEHIND.replace("640", "650").replace("639", "649")], ["ras_mismatch"]),
    ],
)
def test_what_lasts_is_a_hang(answers: list[str], codes: list[str]) -> None:
    assert [finding.code for finding in _explain(*answers).findings] == codes


def test_only_the_last_answer_counts() -> None:
    table = "Communicators... (0.00s)\n    0         1         4         8        32        32   RUNNING      OK"
    report = _explain(_BEHIND, table)
    assert report.findings == []
    assert [(one.line, one.communicators) for one in report.ras] == [(7, [RasRow(1, 4, 32, "RUNNING", "OK")])]


def test_a_table_without_details() -> None:
    table = "Communicators... (0.00s)\n    0         1         4       7-8        32        32   RUNNING  INCOMPLETE"
    (finding,) = _explain(table).findings
    assert finding.code == "ras_mismatch"
    assert finding.message.startswith("RAS reports 1 communicator of 32 ranks: INCOMPLETE; ask it for details")


@pytest.mark.parametrize(("version", "codes"), [("2.29.1+cuda13.0", []), ("2.28.9+cuda13.0", ["foreign_ras"])])
def test_an_answer_of_another_version_is_said_to_be_of_another_job(version: str, codes: list[str]) -> None:
    status = read_ras(_json({"AllReduce": 5}), file="ras")
    report = explain_nccl([Version(LogPlace("log", 1, "a:1"), version)], statuses=[status])
    assert [notice.code for notice in report.warnings] == codes
