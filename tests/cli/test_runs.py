"""`stepscope runs`: the table, the questions before a deletion, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.cli import main
from tests.workflow.stored_runs.kept_runs import write_run


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["runs", *arguments])
    return int(stop.value.code or 0)


def test_the_list_shows_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "old", trace_bytes=2048)
    write_run(tmp_path / "young", days=0.0)
    assert _run("list", str(tmp_path)) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0][:3] == ["run", "state", "last"]
    assert (lines[2][0], lines[3][0]) == ("old", "young")
    assert (lines[2][1], lines[3][1]) == ("ended", "running")
    assert "2.0 KiB" in " ".join(lines[2])
    assert " ".join(lines[-1]).startswith("2 runs")


def test_the_list_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "old", trace_bytes=2048)
    assert _run("list", str(tmp_path), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "stepscope.run-list/1"
    assert document["runs"][0]["bytes"]["traces"] == 2048
    assert document["total_bytes"] == document["runs"][0]["total_bytes"] == sum(document["bytes"].values())


def test_an_empty_folder_has_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("list", str(tmp_path)) == 0
    assert capsys.readouterr().out == f"{tmp_path}: no runs\n"


def test_nobody_to_ask_deletes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "old")
    assert _run("prune", str(tmp_path), "--older-than", "30d") == 2
    assert "would delete 1 run" in capsys.readouterr().err
    assert (tmp_path / "old").is_dir()


def test_a_dry_run_says_what_a_prune_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "old")
    write_run(tmp_path / "mine", more={"model.pt": b"x"})
    assert _run("prune", str(tmp_path), "--older-than", "30d", "--dry-run", "--json") == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["schema"], planned["is_dry_run"]) == ("stepscope.prune/1", True)
    assert (tmp_path / "old").is_dir()
    assert _run("prune", str(tmp_path), "--older-than", "30d", "--yes", "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert done == {**planned, "is_dry_run": False}
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_lines_name_what_went_and_what_was_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "old")
    write_run(tmp_path / "running", days=0.1, ended=False)
    assert _run("prune", str(tmp_path), "--run", "*", "--yes") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("deleted 1 run, ")
    assert lines[1].startswith("  deleted  old  ")
    assert lines[2].startswith("  kept  running: still written: no end is recorded")


def test_a_run_that_cannot_be_deleted_exits_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "old")

    def refused(*_: object) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refused)
    assert _run("prune", str(tmp_path), "--run", "old", "--yes") == 3
    assert "1 run could not be deleted" in capsys.readouterr().err
