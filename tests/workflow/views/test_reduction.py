"""A capture reduced to views: the same numbers without the traces, which go only once their views are whole."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope
from stepscope.core.documents.analysis import Analysis
from stepscope.core.documents.run_directory import KeepTraces
from stepscope.core.errors import DataError, StepscopeError
from stepscope.core.vocabulary import TimeCategory
from stepscope.workflow.analyze import analyze
from stepscope.workflow.inputs import trace_stamps
from stepscope.workflow.inputs.trace_files import open_stamped
from stepscope.workflow.trace_info import read_trace_info
from stepscope.workflow.views import view_format
from stepscope.workflow.views.kept_views import own_ms
from stepscope.workflow.views.reduction import OUTLIERS_AT_MOST, make_view, reduce_capture, traces_to_keep
from stepscope.workflow.what_if import what_if
from tests.workflow.written_traces import trace_document, write_trace

RANKS = range(4)


@pytest.fixture(autouse=True)
def _views_are_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STEPSCOPE_VIEWS", "on")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(trace_stamps, "SETTLED_NS", 0)  # the traces of a test are younger than any real ones


def write_run(folder: Path, compute_us: tuple[int, ...] = (30, 30, 75, 30)) -> Path:
    """A run of four ranks, of which one computes longer."""
    for rank, own_us in enumerate(compute_us):
        path = folder / "traces" / "step5" / f"rank{rank}.json.gz"
        write_trace(path, rank, world_size=4, compute_us=own_us)
        (folder / "steps").mkdir(exist_ok=True)
        (folder / "steps" / f"rank{rank}.jsonl").touch()
    attempt = {"start_ns": 0, "end_ns": None, "ended": None, "world_size": 4}
    manifest = {"run": "r", "host": "h", "world_size": 4, "mesh": {"dp": 4}, "num_cpus": 4, "versions": {}}
    document = {"schema": "stepscope.run/1", "environment": {}, "attempts": [attempt], **manifest}
    (folder / "run.json").write_text(json.dumps(document))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


def trace_of(run: Path, rank: int) -> Path:
    return run / "traces" / "step5" / f"rank{rank}.json.gz"


def view_of(run: Path, rank: int) -> Path:
    return run / "views" / "step5" / f"rank{rank}.view"


def reduced(run: Path, keep: KeepTraces = KeepTraces.NONE) -> dict[str, str]:
    """Reduce all ranks' traces of a run; returns why some were kept."""
    for rank in RANKS:
        make_view(trace_of(run, rank))
    return reduce_capture(trace_of(run, 0), 0, RANKS, keep).kept


def traces(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("traces/*/*"))


def analysis_of(path: Path) -> Analysis:
    return analyze([str(path)], keep=False).analysis


def warnings_of(analysis: Analysis) -> list[str]:
    return [notice.message for notice in analysis.warnings if notice.code == "unusable_file"]


def test_views_alone_give_the_same_numbers(run: Path) -> None:
    first, predicted = analysis_of(run), what_if([str(run)])
    shutil.rmtree(run / "views")
    assert reduced(run) == {}
    assert traces(run) == []
    assert (analysis_of(run), what_if([str(run)])) == (first, predicted)
    shutil.rmtree(run / "traces")  # a copy of what is left has no empty folders
    assert (analysis_of(run), what_if([str(run)])) == (first, predicted)


def test_they_are_read_where_views_are_off_and_after_a_move(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = analysis_of(run)
    reduced(run)
    monkeypatch.setenv("STEPSCOPE_VIEWS", "off")
    assert analysis_of(run) == first
    shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(run)
    assert analysis_of(tmp_path / "copy").root_causes == first.root_causes


def test_the_slow_rank_and_a_median_one_keep_their_traces(run: Path) -> None:
    kept = reduced(run, KeepTraces.OUTLIERS)
    assert kept == {"rank2.json.gz": "spends most time itself", "rank0.json.gz": "the median rank"}
    assert traces(run) == sorted(kept)
    shown = read_trace_info([str(run)])
    assert [file.rank for file in shown.files] == [0, 2]
    (notice,) = shown.warnings
    assert notice.message.startswith("2 traces were reduced to views; the first: ")


def test_a_rank_without_a_trace_stays_missing(run: Path) -> None:
    trace_of(run, 1).unlink()
    for rank in (0, 2, 3):
        make_view(trace_of(run, rank))
    reduce_capture(trace_of(run, 0), 0, RANKS, KeepTraces.NONE)
    assert traces(run) == []
    assert analysis_of(run).job.missing_ranks == [1]
    assert warnings_of(analysis_of(run)) == []


def test_a_trace_removed_by_hand_is_missing_though_its_view_is_there(run: Path) -> None:
    make_view(trace_of(run, 1))
    trace_of(run, 1).unlink()
    assert analysis_of(run).job.missing_ranks == [1]


def test_a_trace_without_a_whole_fresh_view_stays(run: Path) -> None:
    for rank in RANKS:
        make_view(trace_of(run, rank))
    view_of(run, 0).unlink()
    view_of(run, 1).write_bytes(view_of(run, 1).read_bytes()[:-1])
    write_trace(trace_of(run, 2), 2, world_size=4, compute_us=31)  # after its view
    reduce_capture(trace_of(run, 3), 3, RANKS, KeepTraces.NONE)
    assert traces(run) == ["rank0.json.gz", "rank1.json.gz", "rank2.json.gz"]
    assert analysis_of(run).job.ranks == list(RANKS)


def test_a_trace_of_another_code_s_view_stays(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in RANKS:
        make_view(trace_of(run, rank))
    monkeypatch.setattr("stepscope.workflow.views.kept_views.maker", lambda: "another")
    reduce_capture(trace_of(run, 0), 0, RANKS, KeepTraces.NONE)
    assert len(traces(run)) == 4


def test_all_stay_where_profilers_began_seconds_apart(run: Path) -> None:
    """Their windows are cut by the traces, once all ranks are known."""
    for rank in RANKS:
        document = trace_document(rank, world_size=4)
        mark, call, _, kernel = document["traceEvents"][:4]
        document["traceEvents"] = []
        for step in range(4 if rank == 2 else 0, 8):
            begin, ids = step * 500_000, {"correlation": step + 1}
            document["traceEvents"] += [
                mark | {"name": f"ProfilerStep#{step}", "ts": begin, "dur": 500_000},
                call | {"ts": begin + 10, "args": ids},
                kernel | {"ts": begin + 20, "dur": 450_000, "args": ids},
            ]
        trace_of(run, rank).write_bytes(gzip.compress(json.dumps(document).encode()))
    first = analysis_of(run)
    kept = reduced(run)
    assert kept == {f"rank{rank}.json.gz": "the ranks' profilers began seconds apart" for rank in RANKS}
    assert analysis_of(run) == first
    for rank in (0, 3):  # nodes that share no disk choose without each other
        reduce_capture(trace_of(run, rank), rank, [rank], KeepTraces.NONE)
    assert traces(run) == ["rank1.json.gz", "rank2.json.gz"]
    assert analysis_of(run) == first  # by the views that were cut before
    for view in run.glob("views/step5/rank*.from-*.view"):
        view.unlink()
    (notice,) = [notice for notice in analysis_of(run).warnings if notice.code == "profilers_apart"]
    assert notice.message.endswith("is left in, as traces were reduced to their views")


def test_a_record_that_cannot_be_written_keeps_all(run: Path) -> None:
    for rank in RANKS:
        make_view(trace_of(run, rank))
    (run / "views" / "step5" / "rank0.removed.json").mkdir()
    with pytest.raises(StepscopeError):
        reduce_capture(trace_of(run, 0), 0, RANKS, KeepTraces.NONE)
    assert len(traces(run)) == 4


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "missing", "foreign", "neighbour", "fifo", "link"])
def test_a_view_that_stands_for_no_trace_is_refused(damage: str, run: Path, tmp_path: Path) -> None:
    reduced(run)
    view = view_of(run, 1)
    content = view.read_bytes()
    view.unlink()
    if damage == "fifo":
        os.mkfifo(view)
    elif damage == "link":
        view.symlink_to(view_of(run, 0))
    elif damage != "missing":
        other = write_run(tmp_path / "other", (30, 31, 30, 30))
        reduced(other)
        flipped = content[:500] + bytes([content[500] ^ 1]) + content[501:]
        damaged = {"truncated": content[:-1], "flipped": flipped, "empty": b""}
        damaged |= {"foreign": view_of(other, 1).read_bytes(), "neighbour": view_of(run, 3).read_bytes()}
        view.write_bytes(damaged[damage])
    analysis = analysis_of(run)
    assert analysis.job.ranks == [0, 2, 3]
    (line,) = warnings_of(analysis)
    assert "rank1" in line
    if damage not in ("missing", "fifo", "link"):
        assert line.endswith("; the trace was removed: copy views/ of the run again")
    if damage in ("foreign", "neighbour"):
        assert line.startswith(f"{view}: is not the view of the trace that was removed;")


def test_another_version_s_view_says_which_and_what_to_do(run: Path) -> None:
    reduced(run)
    for rank in RANKS:
        content = view_of(run, rank).read_bytes()
        view_of(run, rank).write_bytes(view_format.with_header(content, maker="another", version="0.0.9"))
    with pytest.raises(DataError) as refused:
        analysis_of(run)
    assert str(refused.value) == (
        f"none of 4 files can be used; the first: {view_of(run, 0)}: was made by stepscope 0.0.9, this is"
        f" {stepscope.__version__}, and its trace was removed; analyze the run with that installation:"
        ' pip install "stepscope[analyze]==0.0.9"'
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("name", ["rank1.view", "rank0.removed.json"])
def test_another_user_s_files_are_refused(name: str, run: Path) -> None:
    reduced(run)
    os.chown(run / "views" / "step5" / name, 12345, -1)
    if name.endswith(".view"):
        (line,) = warnings_of(analysis_of(run))
    else:
        with pytest.raises(DataError) as refused:
            analysis_of(run)
        line = str(refused.value)
    assert "belongs to another user than the trace or its run" in line


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"{}", b"[" * 9000, b'"removed": {"../../x": ', b"other", b"newer", b"step"]
)
def test_a_damaged_or_foreign_record_is_told_in_one_line(damage: bytes, run: Path) -> None:
    reduced(run)
    path = run / "views" / "step5" / "rank0.removed.json"
    record: dict[str, Any] = json.loads(path.read_text())
    changes = {
        b"other": {"run": "q"},
        b"newer": {"schema": "stepscope.removed-traces/2"},
        b"step": {"capture": "step6"},
    }
    changed = record | changes.get(damage, {})
    if b".." in damage:
        changed["removed"] = {"../../x": {"bytes": 1, "digest": "1"}}
    path.write_bytes(json.dumps(changed).encode() if changed != record else damage)
    with pytest.raises(DataError) as refused:
        analysis_of(run)
    assert str(refused.value).startswith(f"{path}: ")


def test_what_needs_the_trace_says_so(run: Path) -> None:
    reduced(run)
    one = str(trace_of(run, 0))
    with pytest.raises(DataError, match="was reduced to its view, and this needs the trace"):
        read_trace_info([one])
    with pytest.raises(DataError, match="of the profiled steps from the first one on alone; leave --window file out"):
        analyze([one], whole_file=True)
    assert analyze([one]).analysis.job.ranks == [0]
    assert analyze([str(run / "traces" / "step5")], keep=False).analysis.job.ranks == list(RANKS)


def test_a_trace_that_goes_while_it_is_read_is_taken_from_its_view(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = analysis_of(run)
    shutil.rmtree(run / "views")

    def removing(path: str) -> Any:
        if trace_of(run, 0).exists():
            reduced(run)
        return open_stamped(path)

    monkeypatch.setattr("stepscope.workflow.fan_out.tasks.open_stamped", _once(removing))
    assert analysis_of(run) == first


def _once(call: Any) -> Any:
    """The call for the first time, afterwards what it replaces."""
    called: list[str] = []

    def calling(path: str) -> Any:
        called.append(path)
        return call(path) if len(called) == 1 else open_stamped(path)

    return calling


_MS = st.floats(0.0, 1e4)
_BREAKDOWN = st.dictionaries(st.sampled_from([category.value for category in TimeCategory]), _MS, min_size=1)


@given(st.lists(_BREAKDOWN, min_size=1, max_size=40))
def test_few_traces_stay_always_the_slowest(breakdowns: list[dict[str, float]]) -> None:
    by_name = {f"rank{rank}.json.gz": breakdown for rank, breakdown in enumerate(breakdowns)}
    kept = traces_to_keep(by_name)
    assert set(kept) <= set(by_name)
    assert 1 <= len(kept) <= OUTLIERS_AT_MOST + 2
    assert max(own_ms(by_name[name]) for name in kept) == max(map(own_ms, breakdowns))


def test_ranks_that_differ_stay_beside_the_slowest() -> None:
    usual = {"compute_other": 60.0, "communication_wait": 40.0}
    ranks = [{name: value + 0.01 * (rank % 7) for name, value in usual.items()} for rank in range(1024)]
    ranks[700]["data_loading"] = 30.0
    ranks[3]["compute_other"] = 95.0
    kept = traces_to_keep({f"rank{rank}": one for rank, one in enumerate(ranks)})
    assert set(kept) >= {"rank3", "rank700"}
    assert len(kept) == 3
    assert traces_to_keep({}) == {}


def _reduce(run: Path, rank: int, keep: str = "none", **environment: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "stepscope.workflow.reduction_process", str(os.getpid()), str(rank))
    return subprocess.run(
        [*command, "[[0, 3]]", keep, str(trace_of(run, rank))],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | environment,
    )


def test_the_process_of_the_lowest_rank_that_is_seen_removes(run: Path) -> None:
    (run / "steps" / "rank0.jsonl").unlink()  # on another node
    trace_of(run, 0).unlink()
    for rank in (3, 2, 1):
        assert len(traces(run)) == 3
        done = _reduce(run, rank)
        assert (done.stdout, done.returncode) == ("", 0)
    assert traces(run) == []
    assert json.loads((run / "views" / "step5" / "rank1.removed.json").read_text())["run"] == "r"


def test_the_process_says_why_a_trace_stays(run: Path, tmp_path: Path) -> None:
    trace_of(run, 1).write_bytes(b"no trace")
    done = _reduce(run, 1)
    assert done.returncode == 1
    assert done.stdout.startswith(f"{trace_of(run, 1)}: ")
    (tmp_path / "msgspec.py").write_text("raise ModuleNotFoundError('gone', name='msgspec')")
    done = _reduce(run, 2, PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert done.stdout == (
        f'{trace_of(run, 2)}: views need msgspec, which is not installed here; pip install "stepscope[analyze]"\n'
    )
    assert len(traces(run)) == 4


def test_one_process_a_node_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    from stepscope.workflow import reduction_process

    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000 + os.getpid())  # a turn of this test's own
    monkeypatch.setattr(reduction_process, "_TURN_SECONDS", 0.0)
    with reduction_process._turn(), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        assert not reduction_process._is_taken(other)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        assert reduction_process._is_taken(other)


def test_the_record_is_the_documented_one(run: Path) -> None:
    reduced(run)
    record = json.loads((run / "views" / "step5" / "rank0.removed.json").read_text())
    assert record["schema"] == "stepscope.removed-traces/1"
    assert record["version"] == stepscope.__version__
    assert sorted(record["removed"]) == [f"rank{rank}.json.gz" for rank in RANKS]
    assert {*record["removed"]["rank0.json.gz"]} == {"bytes", "digest"}


def test_views_of_a_run_in_a_store_stand_for_its_traces(run: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    reduced(run, KeepTraces.OUTLIERS)
    first = analysis_of(run)
    store = fsspec.filesystem("memory")
    try:
        for path in filter(Path.is_file, run.rglob("*")):
            store.pipe(f"/reduced/r/{path.relative_to(run)}", path.read_bytes())
        analysis = analyze(["memory://reduced/r"]).analysis
    finally:
        store.rm("/reduced", recursive=True)
    assert analysis.job.ranks == list(RANKS)
    assert (analysis.root_causes, analysis.verdict) == (first.root_causes, first.verdict)
