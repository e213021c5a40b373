"""Captures of the same processes are told by the names of their files, and one of them is taken."""

from __future__ import annotations

import pytest

from stepscope.core.errors import UsageError
from stepscope.core.vocabulary import Notice
from stepscope.workflow.inputs.captures import captures_of, choose


def _captures(*files: str) -> list[list[str]]:
    return [capture.files for capture in captures_of(files)]


def test_ranks_of_one_capture_are_one() -> None:
    files = ["t/rank0.json", "t/rank1.json", "t/rank2.json", "t/rank10.json"]
    assert _captures(*sorted(files)) == [files]
    assert _captures() == []


def test_captures_of_tensorboards_handler_are_counted_from_the_last_one_back() -> None:
    first, second, third = ("1694128201545000000", "1694128301545000000", "1694128401545000000")
    files = [f"log/host_{pid}.{time}.pt.trace.json" for pid in (7, 8) for time in (first, second, third)]
    del files[3]  # the second process missed the first capture
    assert _captures(*files) == [
        ["log/host_7.1694128201545000000.pt.trace.json"],
        [f"log/host_{pid}.{second}.pt.trace.json" for pid in (7, 8)],
        [f"log/host_{pid}.{third}.pt.trace.json" for pid in (7, 8)],
    ]


def test_profile_ids_steps_and_stages_are_shared_by_the_ranks() -> None:
    stages = [f"p/1758513624.40-TP-{rank}-{stage}.trace.json.gz" for rank in (0, 1) for stage in ("DECODE", "EXTEND")]
    assert _captures(*stages) == [[stages[1], stages[3]], [stages[0], stages[2]]]  # prefill comes before decode
    ids = [f"p/17585136{second}.40-TP-{rank}.trace.json.gz" for second in (24, 33) for rank in (0, 1)]
    assert _captures(*ids) == [ids[:2], ids[2:]]
    steps = [f"traces/iteration_{step}/rank{rank}_trace.json" for step in (2, 10) for rank in (0, 1)]
    assert _captures(*reversed(steps)) == [steps[:2], steps[2:]]
    assert [capture.name for capture in captures_of(steps)] == ["iteration_2", "iteration_10"]
    counted = [f"worker{rank}_step_{step}.169412820154{rank}.pt.trace.json" for step in (12, 20) for rank in (0, 1)]
    assert _captures(*counted) == [counted[:2], counted[2:]]


def test_a_rank_that_missed_the_latest_capture_is_not_replaced_by_an_older_one() -> None:
    files = ["t/rank0_step10.json", "t/rank0_step20.json", "t/rank1_step10.json"]
    assert _captures(*files) == [["t/rank0_step10.json", "t/rank1_step10.json"], ["t/rank0_step20.json"]]


def test_jobs_in_different_folders_do_not_share_captures() -> None:
    files = ["a/iteration_5/rank0.json", "b/iteration_5/rank0.json", "b/iteration_9/rank0.json"]
    assert _captures(*files) == [["b/iteration_5/rank0.json"], ["a/iteration_5/rank0.json", "b/iteration_9/rank0.json"]]


def test_the_same_name_in_two_forms_is_no_second_capture() -> None:
    assert _captures("rank0.json", "rank0.json.gz") == [["rank0.json", "rank0.json.gz"]]


def test_the_latest_is_taken_and_the_others_are_named() -> None:
    captures = captures_of([f"rank0_step{step}.json" for step in (1, 2, 3)])
    notices: list[Notice] = []
    assert choose(captures, None, notices) == ["rank0_step3.json"]
    (notice,) = notices
    assert notice.code == "older_captures"
    assert notice.message == (
        "analysed capture 3 of 3, the latest: rank0_step3.json; "
        "choose by --capture: 1 is rank0_step1.json, 2 is rank0_step2.json"
    )
    assert choose(captures, 1, notices) == ["rank0_step1.json"]
    assert choose(captures, "all", notices) == ["rank0_step1.json", "rank0_step2.json", "rank0_step3.json"]
    with pytest.raises(UsageError, match="there is no capture 4: captures are numbered 1 to 3"):
        choose(captures, 4, notices)
