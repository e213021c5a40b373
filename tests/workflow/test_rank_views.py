"""Which file is which rank: by the trace, by its calls, by the names of all files; numbers by order name nobody."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.documents.analysis import Analysis
from stepscope.core.errors import DataError, UsageError
from stepscope.core.vocabulary import Cause
from stepscope.trace.columns import TraceColumns
from stepscope.workflow.analyze import analyze, analyze_captures
from stepscope.workflow.inputs.trace_files import open_stamped
from stepscope.workflow.inputs.trace_stamps import TraceStamp
from stepscope.workflow.what_if import what_if
from tests.workflow.written_traces import trace_document, write_trace

SGLANG = "1790000000.1234567-TP-{}.trace.json.gz"


def write_job(folder: Path, names: list[str], slow: str) -> None:
    """Files without a rank in the trace, of which one computes longer."""
    for name in names:
        write_trace(folder / name, None, world_size=len(names), compute_us=75 if name == slow else 30)


def _sources(analysis: Analysis) -> set[str | None]:
    return {rank.rank_source for rank in analysis.ranks}


def test_a_straggler_is_named_by_the_rank_in_its_file_name(tmp_path: Path) -> None:  # AMD-AGI/Hyperloom#1447
    write_job(tmp_path, [SGLANG.format(rank) for rank in range(12)], SGLANG.format(10))
    analysis = analyze([str(tmp_path)]).analysis
    assert (analysis.verdict.cause, analysis.verdict.ranks) == (Cause.STRAGGLER, [10])
    assert "look at rank 10" in analysis.verdict.summary
    assert _sources(analysis) == {"file_name"}
    assert analysis.ranks[10].place == {"tp": 10}
    assert not [notice for notice in analysis.warnings if notice.code == "rank_assumed"]


def test_ranks_by_order_are_shown_and_their_files_named(tmp_path: Path) -> None:
    names = [f"job_{letter}.json" for letter in "abcd"]
    write_job(tmp_path, names, "job_c.json")
    analysis = analyze([str(tmp_path)]).analysis
    verdict = analysis.verdict
    assert (verdict.cause, verdict.ranks) == (Cause.STRAGGLER, [])
    assert "look at job_c.json: this file gives no global rank" in verdict.summary
    assert not [evidence for evidence in verdict.evidence if evidence.ranks]
    assert next(row for row in analysis.root_causes if row.cause is Cause.STRAGGLER).ranks == []
    assert [(rank.rank, rank.rank_source, rank.file) for rank in analysis.ranks] == [
        (place, "order", name) for place, name in enumerate(names)
    ]
    assert [n.message for n in analysis.warnings if n.code == "rank_assumed"][2].endswith(
        "job_c.json: gives no global rank; shown as rank 2 by order"
    )
    assert not [fix for fix in what_if([str(tmp_path)]).fixes if 0 < len(fix.ranks) < 4]


def test_places_in_several_dimensions_name_a_process_without_its_rank(tmp_path: Path) -> None:
    names = [f"DP0-TP{tp}-PP{pp}-EP2.json" for tp in (0, 1, 2) for pp in (0, 1)]
    write_job(tmp_path, names, "DP0-TP2-PP1-EP2.json")
    analysis = analyze([str(tmp_path)]).analysis
    assert analysis.verdict.ranks == []
    assert "look at DP0-TP2-PP1-EP2 (DP0-TP2-PP1-EP2.json)" in analysis.verdict.summary
    assert [rank.file for rank in analysis.ranks[:3]] == [f"DP0-TP{tp}-PP0-EP2.json" for tp in (0, 1, 2)]
    assert analysis.ranks[5].place == {"dp": 0, "tp": 2, "pp": 1, "ep": 2}


def test_files_that_machines_number_alike_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    write_job(tmp_path, [f"node{node}/rank{rank}.json" for node in (0, 1) for rank in (0, 1)], "node1/rank1.json")
    analysis = analyze([str(tmp_path / "node0"), str(tmp_path / "node1")]).analysis
    assert analysis.verdict == analyze([str(tmp_path)]).analysis.verdict
    assert analysis.verdict.ranks == []
    assert "look at node1/rank1.json: this file gives no global rank" in analysis.verdict.summary


def test_folders_of_ranks_are_one_job(tmp_path: Path) -> None:
    names = [f"rank_{rank}/host_{4711 + rank}.1694128201545.pt.trace.json" for rank in range(12)]
    write_job(tmp_path, names, names[10])
    verdict = analyze([str(tmp_path)]).analysis.verdict
    assert verdict.ranks == [10]
    assert "look at rank 10" in verdict.summary


def test_numbers_in_names_are_ordered_as_numbers(tmp_path: Path) -> None:
    names = [f"trace.{number}.json" for number in range(11)]
    write_job(tmp_path, names, "trace.10.json")
    analysis = analyze([str(tmp_path)]).analysis
    assert [rank.file for rank in analysis.ranks] == names
    assert "look at trace.10.json" in analysis.verdict.summary


def _described(rank: int, caller: int | None) -> dict[str, Any]:
    """A trace without a rank in its header, whose operators name group and caller."""
    document = trace_document(None, compute_us=30 + 45 * rank)
    call: dict[str, Any] = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    call |= {} if caller is None else {"Rank": caller}
    document["traceEvents"].append(
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "record_param_comms",
            "pid": 100,
            "tid": 1,
            "ts": 3,
            "dur": 1,
            "args": call,
        }
    )
    return document


def test_collectives_tell_the_rank_that_header_and_name_do_not(tmp_path: Path) -> None:
    for name, rank in (("a.json", 1), ("b.json", 0)):
        (tmp_path / name).write_text(json.dumps(_described(rank, rank)))
    analysis = analyze([str(tmp_path)]).analysis
    assert (analysis.verdict.cause, analysis.verdict.ranks) == (Cause.STRAGGLER, [1])
    assert [(rank.file, rank.rank_source) for rank in analysis.ranks] == [
        ("b.json", "collectives"),
        ("a.json", "collectives"),
    ]


def test_a_header_is_believed_before_a_name(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_trace(tmp_path / f"TP-{1 - rank}.json", rank, compute_us=30 + 45 * rank)
    analysis = analyze([str(tmp_path)]).analysis
    assert (analysis.verdict.ranks, _sources(analysis)) == ([1], {"header"})


def test_ranks_of_replicas_are_no_ranks_of_the_job(tmp_path: Path) -> None:
    names = [f"dp{dp}_pp0_tp{tp}_dcp0_ep0_rank{tp}.json" for dp in (0, 1) for tp in (0, 1)]
    write_job(tmp_path, names, names[3])
    analysis = analyze([str(tmp_path)]).analysis
    assert analysis.job.ranks == [0, 1, 2, 3]
    assert "look at DP1-PP0-TP1-DCP0-EP0" in analysis.verdict.summary


def test_the_only_file_is_rank_0(tmp_path: Path) -> None:
    analysis = analyze([str(write_trace(tmp_path / "a.json", None))]).analysis
    assert (analysis.job.ranks, _sources(analysis)) == ([0], {"only_file"})


def _captures(folder: Path, rank: int | None) -> None:
    for number in (1, 2, 10):
        write_trace(folder / f"trace{number}.json", rank, world_size=1, later_us=1e6 * number, compute_us=30 + number)


@pytest.mark.parametrize("rank", [None, 0])
def test_numbered_files_of_one_process_at_different_times_are_captures(tmp_path: Path, rank: int | None) -> None:
    _captures(tmp_path, rank)
    latest = analyze([str(tmp_path)])
    assert (latest.analysis.job.ranks, latest.num_captures) == ([0], 3)
    assert latest.analysis.ranks[0].file == "trace10.json"
    (notice,) = [notice for notice in latest.analysis.warnings if notice.code == "older_captures"]
    assert notice.message.startswith(
        "analysed capture 3 of 3, the latest: trace10.json; choose by --capture: 1 is trace1"
    )
    assert analyze([str(tmp_path)], capture=2).analysis.ranks[0].file == "trace2.json"
    with pytest.raises(UsageError, match="there is no capture 4"):
        analyze([str(tmp_path)], capture=4)
    each = analyze_captures([str(tmp_path)])
    assert [one.analysis.ranks[0].file for one in each.captures] == ["trace1.json", "trace2.json", "trace10.json"]


def test_files_of_other_processes_are_no_captures(tmp_path: Path) -> None:
    _captures(tmp_path, 0)
    document = trace_document(0, world_size=1)
    document["baseTimeNanoseconds"] += 10**12
    for event in document["traceEvents"]:
        event["pid"] = 200 if event["pid"] == 100 else event["pid"]
    (tmp_path / "trace11.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match="says it is rank 0, and so does"):
        analyze([str(tmp_path)])


def test_captures_of_tensorboards_handler_are_not_refused(tmp_path: Path) -> None:
    for number in (0, 1):
        for rank in (0, 1):
            time = 1694128201545000000 + 10**11 * number + rank
            name = f"host_{70 + rank}.{time}.pt.trace.json"
            write_trace(tmp_path / name, rank, later_us=1e8 * number, compute_us=30 + 10 * number)
    result = analyze([str(tmp_path)])
    assert (result.analysis.job.ranks, result.num_captures) == ([0, 1], 2)
    assert [rank.file for rank in result.analysis.ranks] == [
        f"host_{70 + rank}.{1694128301545000000 + rank}.pt.trace.json" for rank in (0, 1)
    ]
    one = analyze_captures([str(tmp_path)])
    assert [capture.capture for capture in one.captures] == [1, 2]


def test_an_older_capture_of_a_run_is_analysed_on_request_and_not_kept(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (5, 20):
        write_trace(run / "traces" / f"step{step}" / "rank0.json.gz", 0, world_size=1, later_us=1e6 * step)
    (run / "run.json").write_text("{}")
    assert analyze([str(run)], capture=1).kept_in is None
    assert not (run / "analysis.json").exists()
    assert analyze([str(run)], capture=2).kept_in == run


def test_folders_of_iterations_are_captures(tmp_path: Path) -> None:  # as torchtitan writes them
    for step in (2, 10):
        for rank in (0, 1):
            folder = tmp_path / "profiling" / "traces" / f"iteration_{step}"
            write_trace(folder / f"rank{rank}_trace.json.gz", rank, later_us=1e6 * step)
    for place in (tmp_path / "profiling" / "traces", tmp_path / "profiling"):
        result = analyze([str(place)])
        assert (result.analysis.job.ranks, result.num_captures, result.kept_in) == ([0, 1], 2, None)
        assert "iteration_10; choose by --capture: 1 is iteration_2" in result.analysis.warnings[0].message


def test_another_accelerator_is_named_and_not_analysed(tmp_path: Path) -> None:
    document = trace_document(0, world_size=1)
    for event in document["traceEvents"]:
        if event["cat"] == "cuda_runtime":
            event |= {"cat": "xpu_runtime", "name": "urEnqueueKernelLaunch"}
    (tmp_path / "rank0.json.gz").write_bytes(gzip.compress(json.dumps(document).encode()))
    with pytest.raises(DataError, match=r"rank0\.json\.gz: records an Intel GPU \(XPU\); only NVIDIA and AMD"):
        analyze([str(tmp_path)])
    write_trace(tmp_path / "rank1.json.gz", 1)
    analysis = analyze([str(tmp_path)]).analysis
    assert analysis.job.ranks == [1]
    assert [notice.code for notice in analysis.warnings][:1] == ["unusable_file"]


def test_ranks_whose_profilers_began_seconds_apart_are_viewed_from_where_all_record(tmp_path: Path) -> None:
    for rank in (0, 1):
        document = trace_document(rank)
        mark, call, _, kernel = document["traceEvents"][:4]
        document["traceEvents"] = []
        for step in range(3 * rank, 8):  # rank 1 records from the fourth on
            begin, ids = step * 500_000, {"correlation": step + 1}
            document["traceEvents"] += [
                mark | {"name": f"ProfilerStep#{step}", "ts": begin, "dur": 500_000},
                call | {"ts": begin + 10, "args": ids},
                kernel | {"ts": begin + 20, "dur": 450_000, "args": ids},
            ]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    analysis = analyze([str(tmp_path)]).analysis
    assert analysis.trace_quality.steps_used == [3, 4, 5, 6, 7]
    assert [rank.window_ms for rank in analysis.ranks] == [2450.0] * 2
    apart = "the ranks' profilers began 1,500.0 ms apart: the steps before 3 are left out"
    assert apart in [notice.message for notice in analysis.warnings]


def test_all_captures_of_a_run_are_read_once_and_each_counts_to_the_verdict_on_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    for number in (5, 20, 35):
        write_trace(run / "traces" / f"step{number}" / "rank0.json.gz", 0, world_size=1, later_us=1e6 * number)
    (run / "run.json").write_text("{}")
    (run / "steps").mkdir()
    lines = [json.dumps({"index": i, "start_ns": i * 10**8, "end_ns": (i + 1) * 10**8}) for i in range(40)]
    (run / "steps" / "rank0.jsonl").write_text("\n".join(lines) + "\n")
    read: list[str] = []

    def read_and_note(path: str) -> tuple[list[TraceColumns], TraceStamp | None]:
        read.append(Path(path).parent.name)
        return open_stamped(path)

    monkeypatch.setattr("stepscope.workflow.fan_out.tasks.open_stamped", read_and_note)
    each = analyze_captures([str(run)])
    assert sorted(read) == ["step20", "step35", "step5"]
    alone = [analyze([str(run)], capture=number, keep=False).analysis for number in (1, 2, 3)]
    assert [one.analysis for one in each.captures] == alone
