"""`stepscope goodput`: a job, a folder of jobs, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli import main
from stepscope.core.vocabulary import GoodputClass

_SECOND = 10**9
_START = 1_790_000_000 * _SECOND


def _write(
    folder: Path,
    *attempts: tuple[int, int, int, int | None],
    name: str = "gpt",
    labels: dict[str, str] | None = None,
    **more: Any,
) -> Path:
    """A run of 2 ranks with steps of 1 s; of each attempt its start in s, first step, number of steps, and end."""
    run = folder / name
    (run / "steps").mkdir(parents=True)
    lines = []
    for number, (start, first, num, _) in enumerate(attempts, 1):
        for step in range(num):
            begin = _START + (start + 2 + step) * _SECOND
            phases = {"checkpoint": _SECOND // 10} if step % 10 == 9 else {}
            line = {"index": first + step, "start_ns": begin, "end_ns": begin + _SECOND, "attempt": number}
            lines.append(json.dumps(line | {"phases": phases} | more))
    for rank in (0, 1):
        (run / "steps" / f"rank{rank}.jsonl").write_text("".join(line + "\n" for line in lines))
    manifest = {
        "schema": "stepscope.run/1",
        "run": name,
        "host": "h",
        "world_size": 2,
        "mesh": {},
        "num_cpus": 1,
        "versions": {},
        "environment": {},
        "labels": labels or {},
        "attempts": [
            {
                "start_ns": _START + start * _SECOND,
                "end_ns": None if end is None else _START + end * _SECOND,
                "ended": None if end is None else "finished" if number == len(attempts) else "exception",
                "world_size": 2,
                "first_step": first,
            }
            for number, (start, first, _, end) in enumerate(attempts, 1)
        ],
    }
    (run / "run.json").write_text(json.dumps(manifest))
    return run


def _call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["goodput", *arguments])
    return int(left.value.code or 0), *capsys.readouterr()


def test_a_job_that_was_restarted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = _write(tmp_path, (0, 0, 25, 30), (40, 20, 30, 74))
    code, out, errors = _call(capsys, str(run))
    assert (code, errors) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("GOODPUT  66.9% of 2.5 rank-minutes are productive training (gpt: 2 ranks, 2 attempts,")
    assert lines[1].startswith("  Lost      no attempt running 13.5%, ")
    assert "lost steps 6.8%" in lines[1]
    assert lines[2] == "  Steps     50 steps kept; 5 lost, 5 repeated"
    assert lines[3].startswith(
        "  Saving    5 checkpoints, training waits 100.0\u202fms for each; one every 10 steps (10.0 s)"
    )
    assert lines[4].startswith("  Advice    one every ")
    first, second = (line.split() for line in lines if line.strip().startswith(("1  ", "2  ")))
    assert first[-4:] == ["exception", "0–24", "5", "0"]
    assert second[-8:] == ["finished", "20–49", "0", "5", "15.0", "s", "5.0", "s"]


def test_the_document_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = _write(tmp_path, (0, 0, 25, 30), (40, 20, 30, 74), checkpoint_bytes=5e8)
    document = json.loads(_call(capsys, str(run), "--json")[1])
    assert document["schema"] == "stepscope.goodput/1"
    (job,) = document["jobs"]
    assert set(job["time"]) == {kind.value for kind in GoodputClass}
    assert sum(job["time"].values()) == pytest.approx(1)
    assert job["rank_seconds"] == pytest.approx(2 * 74)
    assert job["goodput"] == job["time"]["productive_training"]
    assert (job["checkpoints"]["bytes"], job["checkpoints"]["gb_per_second"]) == (10**9, pytest.approx(10))
    assert document["total"]["rank_seconds"] == job["rank_seconds"]
    assert document["warnings"] == []


def test_runs_of_a_folder_are_jobs_by_label_and_a_total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write(tmp_path, (0, 0, 25, 30), name="a", labels={"job": "llama"})
    _write(tmp_path, (100, 20, 30, 140), name="b", labels={"job": "llama"})
    _write(tmp_path, (0, 0, 10, 12), name="other")
    (tmp_path / "notes").mkdir()
    code, out, _ = _call(capsys, str(tmp_path))
    assert code == 0
    assert "(2 jobs, 3 attempts)" in out.splitlines()[0]
    document = json.loads(_call(capsys, str(tmp_path), "--json")[1])
    llama, other = document["jobs"]
    assert (llama["job"], llama["num_lost_steps"], len(llama["runs"])) == ("llama", 5, 2)
    assert (other["job"], other["num_lost_steps"]) == ("other", 0)
    seconds = llama["rank_seconds"] + other["rank_seconds"]
    assert document["total"]["rank_seconds"] == pytest.approx(seconds)
    assert sum(document["total"]["time"].values()) == pytest.approx(1)


def test_runs_at_the_same_time_are_no_attempts_of_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        _write(tmp_path, (0, 0, 25, 30), name=name, labels={"job": "llama"})
    document = json.loads(_call(capsys, str(tmp_path), "--json")[1])
    assert [job["num_lost_steps"] for job in document["jobs"]] == [0, 0]
    assert [notice["code"] for notice in document["warnings"]] == ["overlapping_runs"]


def test_what_cannot_be_used_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = _write(tmp_path, (0, 0, 25, 30))
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "run.json").write_text("{")
    code, _, errors = _call(capsys, str(tmp_path))
    assert code == 0
    assert errors.startswith(f"warning: {damaged / 'run.json'}")
    code, _, errors = _call(capsys, str(damaged))
    assert code == 3
    assert errors.count("\n") == 1
    (run / "run.json").write_text("{")
    code, _, errors = _call(capsys, str(run))
    assert code == 0
    assert "attempts are by the steps alone" in errors
    assert _call(capsys, str(tmp_path / "absent"))[0] == 3
    empty = tmp_path / "empty"
    empty.mkdir()
    code, _, errors = _call(capsys, str(empty))
    assert (code, errors.count("\n")) == (3, 1)
    assert "holds no run" in errors
