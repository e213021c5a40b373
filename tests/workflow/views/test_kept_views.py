"""A second analysis reads no trace that is unchanged, and believes no view of another one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.documents.analysis import Analysis
from stepscope.workflow.analyze import analyze
from stepscope.workflow.inputs import trace_stamps
from stepscope.workflow.inputs.trace_files import open_stamped
from stepscope.workflow.views import view_files, view_format
from stepscope.workflow.views.view_files import cache_directory
from stepscope.workflow.what_if import what_if
from tests.workflow.written_traces import trace_document, write_trace


@pytest.fixture(autouse=True)
def _views_are_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STEPSCOPE_VIEWS", "on")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(trace_stamps, "SETTLED_NS", 0)  # the traces of a test are younger than any real ones


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the traces that are read."""
    names: list[str] = []

    def reading(path: str) -> Any:
        names.append(Path(path).name)
        return open_stamped(path)

    monkeypatch.setattr("stepscope.workflow.fan_out.tasks.open_stamped", reading)
    monkeypatch.setattr("stepscope.workflow.light_steps.open_stamped", reading)
    return names


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


def write_run(folder: Path, compute_us: int = 75) -> Path:
    """A run of two ranks, of which the second computes longer."""
    for rank in (0, 1):
        path = folder / "traces" / "step5" / f"rank{rank}.json.gz"
        write_trace(path, rank, compute_us=compute_us if rank else 30)
    attempt = {"start_ns": 0, "end_ns": None, "ended": None, "world_size": 2}
    manifest = {"run": "r", "host": "h", "world_size": 2, "mesh": {"dp": 2}, "num_cpus": 4, "versions": {}}
    (folder / "run.json").write_text(
        json.dumps({"schema": "stepscope.run/1", "environment": {}, "attempts": [attempt], **manifest})
    )
    return folder


def trace_of(run: Path, rank: int = 1) -> Path:
    return run / "traces" / "step5" / f"rank{rank}.json.gz"


def view_of(run: Path, rank: int = 1) -> Path:
    return run / "views" / "step5" / f"rank{rank}.view"


def analysis_of(path: Path) -> Analysis:
    return analyze([str(path)]).analysis


def without(analysis: Analysis, code: str) -> Analysis:
    return replace(analysis, warnings=[notice for notice in analysis.warnings if notice.code != code])


_HOOK = """
import os, sys
opened = []
def note(event, arguments):
    if event == "open" and isinstance(arguments[0], str | bytes):
        opened.append(os.fsdecode(arguments[0]))
sys.addaudithook(note)
from stepscope.cli import main
for command in sys.argv[2:]:
    try:
        main(command.split())
    except SystemExit as ended:
        assert not ended.code, ended.code
    sys.stdout.flush()
print([path for path in opened if "/traces/" in path or "/light/" in path], file=sys.stderr)
"""


def opened_by(*commands: str) -> str:
    """Trace files that commands open, as Python's own audit tells."""
    done = subprocess.run(
        [sys.executable, "-c", _HOOK, "", *commands], capture_output=True, text=True, timeout=100, check=True
    )
    return done.stderr.splitlines()[-1]


def test_no_trace_is_opened_a_second_time(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", 80)
    for path in (run, other):
        assert "rank1.json.gz" in opened_by(f"analyze {path} --json")
        (path / "analysis.json").unlink()
    os.sync()
    settle(run, other)
    second = opened_by(
        f"analyze {run} --json",
        f"whatif {run} --json",
        f"compare {run} {other} --json",
        f"report {run} -o {tmp_path}/report.html",
    )
    assert second == "[]"


def settle(*runs: Path) -> None:
    """As if the traces had been written long before they were read."""
    for run in runs:
        for view in run.glob("views/*/*.view"):
            content = view.read_bytes()
            header, _ = view_format.split(content, where="")
            view.write_bytes(view_format.with_header(content, made_ns=header.made_ns + 10 * 10**9))


def test_the_second_analysis_is_the_first(run: Path, read: list[str]) -> None:
    first, predicted = analysis_of(run), what_if([str(run)])
    assert sorted(read) == ["rank0.json.gz", "rank1.json.gz"]
    assert (analysis_of(run), what_if([str(run)])) == (first, predicted)
    assert len(read) == 2
    whole = analyze([str(run)], whole_file=True).analysis
    assert len(read) == 4
    assert analyze([str(run)], whole_file=True).analysis == whole
    assert len(read) == 4


def test_views_can_be_turned_off(run: Path, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_VIEWS", "off")
    assert analysis_of(run) == analysis_of(run)
    assert len(read) == 4
    assert not (run / "views").exists()


def test_a_moved_and_a_copied_run_keep_their_views(run: Path, read: list[str], tmp_path: Path) -> None:
    first = analysis_of(run)
    moved = run.rename(tmp_path / "moved")
    assert analysis_of(moved).root_causes == first.root_causes
    assert [rank.file for rank in analysis_of(moved).ranks] == [rank.file for rank in first.ranks]
    copied = tmp_path / "copied"
    shutil.copytree(moved, copied, copy_function=shutil.copyfile)  # other times and inodes, equal content
    assert analysis_of(copied).root_causes == first.root_causes
    assert len(read) == 2
    header, _ = view_format.split(view_of(copied).read_bytes(), where="")
    assert header.traces[0][1].inode == trace_of(copied).stat().st_ino  # the next time it need not be hashed


def test_a_changed_trace_is_read_again(run: Path, read: list[str]) -> None:
    first = analysis_of(run)
    write_trace(trace_of(run), 1, compute_us=30)
    again = analysis_of(run)
    assert read[2:] == ["rank1.json.gz"]
    assert first.verdict != again.verdict
    assert not [notice for notice in again.warnings if notice.code == "view_not_used"]


def test_a_change_that_keeps_size_and_times_is_seen(run: Path, read: list[str]) -> None:
    path = trace_of(run).with_name("rank1.json")
    trace_of(run).unlink()
    write_trace(path, 1, compute_us=75)
    state = path.stat()
    first = analysis_of(run)
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"dur": 75', b'"dur": 30'))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert path.stat().st_size == state.st_size
    assert analysis_of(run).root_causes != first.root_causes
    assert read.count("rank1.json") == 2


def test_a_trace_as_young_as_its_view_is_hashed_once_more(
    run: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_stamps, "SETTLED_NS", 10**18)
    hashed: list[str] = []
    digest_of = trace_stamps.digest_of

    def hashing(path: str) -> str | None:
        hashed.append(path)
        return digest_of(path)

    monkeypatch.setattr("stepscope.workflow.views.kept_views.digest_of", hashing)
    analysis_of(run)
    analysis_of(run)
    assert (len(read), len(hashed)) == (2, 2)


@pytest.mark.parametrize(
    "damage", ["truncated", "flipped", "empty", "text", "newer", "fifo", "link", "folder", "large"]
)
def test_a_damaged_view_is_made_again_with_a_warning(
    damage: str, run: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = analysis_of(run)
    view = view_of(run)
    content = view.read_bytes()
    view.unlink()
    if damage == "fifo":
        os.mkfifo(view)
    elif damage == "link":
        view.symlink_to(view_of(run, 0))
    elif damage == "folder":
        view.mkdir()
    elif damage == "newer":
        view.write_bytes(view_format.with_header(content, schema="stepscope.view/2"))
    else:
        flipped = content[:500] + bytes([content[500] ^ 1]) + content[501:]
        large = content + bytes(100_000)
        damaged = {"truncated": content[:-1], "flipped": flipped, "empty": b"", "text": b"{}" * 99, "large": large}
        view.write_bytes(damaged[damage])
        monkeypatch.setattr(view_files, "MAX_FILE_BYTES", 100_000)
    again = analysis_of(run)
    assert read[2:] == ["rank1.json.gz"]
    assert without(again, "view_not_used") == first
    (notice,) = [notice for notice in again.warnings if notice.code == "view_not_used"]
    assert f"{view}" in notice.message
    assert notice.message.endswith("; the trace is read again")


def test_another_ranks_or_runs_view_is_not_believed(run: Path, read: list[str], tmp_path: Path) -> None:
    first = analysis_of(run)
    other = write_run(tmp_path / "other", 30)
    analysis_of(other)
    shutil.copyfile(view_of(other), view_of(run))
    shutil.copyfile(view_of(run, 0), view_of(other))
    del read[:]
    assert analysis_of(run) == first
    assert read == ["rank1.json.gz"]
    analysis_of(other)
    assert read == ["rank1.json.gz"] * 2


def test_another_codes_views_are_made_again(run: Path, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = analysis_of(run)
    for module in ("kept_views", "view_format"):
        monkeypatch.setattr(f"stepscope.workflow.views.{module}.maker", lambda: "another")
    assert analysis_of(run) == first
    assert len(read) == 4


def test_views_of_a_run_that_cannot_be_written_are_kept_in_the_users_cache(run: Path, read: list[str]) -> None:
    (run / "views").write_text("in the way, as a read-only file system is")
    first = analysis_of(run)
    assert analysis_of(run) == first
    assert len(read) == 2
    cache = cache_directory()
    assert cache is not None
    assert len(list(cache.iterdir())) == 2
    assert cache.stat().st_mode & 0o777 == 0o700
    cache.chmod(0o777)
    write_trace(trace_of(run), 1, compute_us=30)
    analysis_of(run)
    analysis_of(run)
    assert len(read) == 4  # nothing new is kept where others may write


def test_the_cache_is_bounded_and_loses_the_least_recently_used(
    tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write_trace(tmp_path / f"{name}.json") for name in "abc"]
    for path in paths[:2]:
        analysis_of(path)
    cache = cache_directory()
    assert cache is not None
    for age, view in enumerate(cache.iterdir()):
        os.utime(view, ns=(1, 10**9 * age))
    analysis_of(paths[0])  # uses it
    size = max(view.stat().st_size for view in cache.iterdir())
    monkeypatch.setattr(view_files, "CACHE_BYTES", int(2.5 * size))
    analysis_of(paths[2])
    del read[:]
    for path in (paths[0], paths[2], paths[1]):
        analysis_of(path)
    assert read == ["b.json"]


def test_ranks_by_order_and_profilers_apart_are_viewed_from_kept_views(tmp_path: Path, read: list[str]) -> None:
    for rank in (0, 1):
        document = trace_document(None)
        mark, call, _, kernel = document["traceEvents"][:4]
        document["traceEvents"] = []
        for step in range(3 * rank, 8):
            begin, ids = step * 500_000, {"correlation": step + 1}
            document["traceEvents"] += [
                mark | {"name": f"ProfilerStep#{step}", "ts": begin, "dur": 500_000},
                call | {"ts": begin + 10, "args": ids},
                kernel | {"ts": begin + 20, "dur": 450_000, "args": ids},
            ]
        (tmp_path / f"job_{'ab'[rank]}.json").write_text(json.dumps(document))
    first = analysis_of(tmp_path)
    assert {notice.code for notice in first.warnings} >= {"profilers_apart", "rank_assumed"}
    assert [rank.rank_source for rank in first.ranks] == ["order"] * 2
    count = len(read)
    assert analysis_of(tmp_path) == first
    assert len(read) == count


def test_an_object_in_a_store_is_read_once_until_the_store_says_it_changed(read: list[str], tmp_path: Path) -> None:
    import fsspec

    store = fsspec.filesystem("memory")
    content = write_trace(tmp_path / "rank0.json.gz").read_bytes()
    store.pipe("/views/rank0.json.gz", content)
    url = "memory://views/rank0.json.gz"
    try:
        first = analyze([url]).analysis
        analyze([url])
        assert len(read) == (1 if trace_stamps.stamp_of(url) else 2)
        store.pipe("/views/rank0.json.gz", write_trace(tmp_path / "rank0.json.gz", compute_us=40).read_bytes())
        assert analyze([url]).analysis.ledger != first.ledger
    finally:
        store.rm("/views", recursive=True)
