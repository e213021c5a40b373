"""Deletion of runs in folders and in a store: by rules, never of a run that is written, never half of one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from stepscope.core.errors import DataError, UsageError
from stepscope.workflow.stored_runs import places
from stepscope.workflow.stored_runs.prune import PruneRules, Pruning, list_runs
from stepscope.workflow.stored_runs.sizes import PRUNED_MARK
from tests.workflow.stored_runs.kept_runs import DAY, write_run

_OLD = PruneRules(older_than_seconds=30 * DAY)


def _names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def _deleted(pruning: Pruning) -> list[str]:
    return [run.name for run in pruning.carry_out().runs if not run.is_kept]


def test_age_names_and_sizes_all_have_to_fit(tmp_path: Path) -> None:
    write_run(tmp_path / "a-old", days=40)
    write_run(tmp_path / "a-large", days=40, trace_bytes=50_000)
    write_run(tmp_path / "a-young", days=20, trace_bytes=50_000)
    write_run(tmp_path / "b-large", days=40, trace_bytes=50_000)
    rules = PruneRules(names=("a-*",), older_than_seconds=30 * DAY, larger_than_bytes=40_000)
    assert _deleted(Pruning(str(tmp_path), rules)) == ["a-large"]
    assert _names(tmp_path) == ["a-old", "a-young", "b-large"]


def test_keep_total_takes_the_oldest_until_it_is_enough(tmp_path: Path) -> None:
    for days in (4, 3, 2, 1.1):
        write_run(tmp_path / f"run{days:g}", days=days, trace_bytes=100_000)
    pruning = Pruning(str(tmp_path), PruneRules(keep_total_bytes=250_000))
    report = pruning.carry_out()
    assert [run.name for run in report.runs] == ["run4", "run3"]
    assert report.left_bytes == list_runs(str(tmp_path)).total_bytes <= 250_000
    assert report.freed_bytes == sum(run.freed_bytes for run in report.runs)


def test_a_total_that_cannot_be_reached_is_a_warning(tmp_path: Path) -> None:
    write_run(tmp_path / "running", days=0.5, ended=False)
    plan = Pruning(str(tmp_path), PruneRules(keep_total_bytes=10)).plan
    assert [(run.name, run.is_kept) for run in plan.runs] == [("running", True)]
    assert [notice.code for notice in plan.warnings] == ["total_too_large"]


def test_without_a_rule_nothing_is_deleted(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    with pytest.raises(UsageError, match="no rule"):
        Pruning(str(tmp_path), PruneRules(traces_only=True))


def test_a_name_that_no_run_has_is_a_warning(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    plan = Pruning(str(tmp_path), PruneRules(names=("b",))).plan
    assert (plan.runs, [notice.code for notice in plan.warnings]) == ([], ["unknown_run"])


def test_traces_alone_can_go(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", more={"light/step2/rank0.json.gz": b"x", "views/step4/rank0.view": b"v"})
    report = Pruning(str(tmp_path), PruneRules(names=("a",), traces_only=True)).carry_out()
    assert report.freed_bytes == 1001
    assert _names(run) == ["run.json", "steps", "views"]
    assert Pruning(str(tmp_path), PruneRules(names=("a",), traces_only=True)).plan.runs == []


@pytest.mark.parametrize("name", ["model.pt", "checkpoints/step9/rank0.pt"])
def test_files_of_others_keep_a_run_unless_said_otherwise(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "a", more={name: b"weights"})
    kept = Pruning(str(tmp_path), _OLD).carry_out().runs[0]
    assert kept.is_kept
    assert name in kept.why
    assert "--with-other-files" in kept.why
    assert _deleted(Pruning(str(tmp_path), PruneRules(names=("a",), with_other_files=True))) == ["a"]


def test_links_are_left_alone(tmp_path: Path) -> None:
    elsewhere = write_run(tmp_path / "elsewhere" / "a")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a").symlink_to(elsewhere)
    assert _deleted(Pruning(str(tmp_path / "runs"), _OLD)) == []
    assert elsewhere.is_dir()


_WRITER = """
import sys
from pathlib import Path
from stepscope.training.run.run_files import WholeLinesFile
file = WholeLinesFile(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_run_whose_files_are_open_is_kept_however_old(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", days=400)
    writer = [sys.executable, "-c", _WRITER, str(run / "steps" / "rank0.jsonl")]
    with subprocess.Popen(writer, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        kept = Pruning(str(tmp_path), _OLD).carry_out().runs[0]
        assert (kept.is_kept, kept.why) == (True, "still written: a process writes steps/rank0.jsonl")
        # it was opened between the look at the run and its deletion
        found = places.open_place(str(tmp_path)).find("a")
        assert found is not None
        with pytest.raises(OSError, match="a process writes"):
            places.FolderPlace(str(tmp_path)).delete(found, traces_only=False)
        assert _names(tmp_path) == ["a"]
        assert process.stdin is not None
        process.stdin.close()
    assert _deleted(Pruning(str(tmp_path), _OLD)) == ["a"]


def test_a_run_that_is_written_since_the_plan_is_kept(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    pruning = Pruning(str(tmp_path), _OLD)
    (run / "metrics").mkdir()
    (run / "metrics" / "rank0.jsonl").write_text("{}\n")
    assert pruning.carry_out().runs[0].why.startswith("still written: written ")


def test_a_killed_prune_is_ended_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", days=1.5)

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(places, "_remove", killed)
        with pytest.raises(KeyboardInterrupt):
            Pruning(str(tmp_path), _OLD).carry_out()
    listed = list_runs(str(tmp_path))
    assert [run.name for run in listed.runs] == ["b"]
    assert [notice.code for notice in listed.warnings] == ["unfinished_prune"]
    assert len(_names(tmp_path)) == 2
    assert Pruning(str(tmp_path), _OLD).carry_out().warnings == []
    assert _names(tmp_path) == ["b"]


def test_a_run_itself_can_be_given(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    assert [run.name for run in list_runs(str(tmp_path / "a")).runs] == ["a"]
    assert _deleted(Pruning(str(tmp_path / "a"), _OLD)) == ["a"]
    assert _names(tmp_path) == ["b"]


def test_a_run_that_cannot_be_deleted_is_kept_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "a")

    def refused(*_: object) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refused)
    assert Pruning(str(tmp_path), _OLD).carry_out().runs[0].why == "it cannot be deleted: Permission denied"


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be listed"):
        list_runs(str(tmp_path / "absent"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    """URL of a store with two runs, one old and one young."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    write_run(tmp_path / "old")
    memory.put(str(tmp_path) + "/", "/bucket/runs/", recursive=True)
    now = time.time()
    for file in memory.store.values():  # an object is as old as its upload
        file.modified = file.created = file.modified.fromtimestamp(now - 40 * DAY, tz=file.modified.tzinfo)
    memory.pipe_file("/bucket/runs/young/run.json", (tmp_path / "old" / "run.json").read_bytes())
    memory.pipe_file("/bucket/runs/young/traces/step4/rank0.json.gz", b"trace")
    yield "memory://bucket/runs"
    memory.store.clear()


def _objects() -> list[str]:
    return sorted(fsspec.filesystem("memory").store)


def test_runs_in_a_store(store: str) -> None:
    listed = list_runs(store)
    assert [(run.name, run.state.is_written) for run in listed.runs] == [("old", False), ("young", True)]
    assert listed.runs[0].path == "memory://bucket/runs/old"
    assert _deleted(Pruning(store, PruneRules(names=("*",)))) == ["old"]
    assert _objects() == ["/bucket/runs/young/run.json", "/bucket/runs/young/traces/step4/rank0.json.gz"]


def test_one_run_of_a_store(store: str) -> None:
    assert [(run.name, run.path) for run in list_runs(f"{store}/old").runs] == [("old", "memory://bucket/runs/old")]
    assert _deleted(Pruning(f"{store}/old", _OLD)) == ["old"]
    assert all("/young/" in path for path in _objects())


def test_traces_alone_in_a_store(store: str) -> None:
    report = Pruning(store, PruneRules(names=("old",), traces_only=True)).carry_out()
    assert report.freed_bytes == 1000
    assert [path for path in _objects() if "/old/" in path] == [
        "/bucket/runs/old/run.json",
        "/bucket/runs/old/steps/rank0.jsonl",
    ]


@pytest.mark.parametrize("rules", [_OLD, PruneRules(names=("old",), traces_only=True)])
def test_a_killed_prune_of_a_store_is_ended_by_the_next(
    store: str, rules: PruneRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = fsspec.filesystem("memory")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(memory), "rm", killed)
        with pytest.raises(KeyboardInterrupt):
            Pruning(store, rules).carry_out()
    listed = list_runs(store)
    assert [notice.code for notice in listed.warnings] == ["unfinished_prune"]
    assert sum(run.bytes.traces for run in listed.runs if run.name == "old") == 0
    Pruning(store, rules).carry_out()
    assert not any(PRUNED_MARK in path for path in _objects())
    assert list_runs(store).warnings == []


def test_a_store_that_is_not_there_is_an_error() -> None:
    with pytest.raises(DataError, match="does not exist"):
        list_runs("memory://nowhere/runs")
