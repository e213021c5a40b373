"""`stepscope steps`: every step of a run, or one line where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.core.documents.run_directory import RunManifest
from stepscope.store.runs import save_analysis
from stepscope.training.run.run_files import write_manifest
from tests.collectors.training_logs.frameworks import megatron
from tests.dashboard import example_run as example


def _run(tmp_path: Path) -> Path:
    folder = tmp_path / "r" / "steps"
    folder.mkdir(parents=True)
    lines = [
        {"index": i, "start_ns": i * 10**9, "end_ns": i * 10**9 + 50 * 10**6, "data_wait_ns": 10**7, "loss": 2.0 - i}
        for i in range(3)
    ]
    for rank in (0, 1):
        (folder / f"rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "{}\n")
    return tmp_path / "r"


def _call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["steps", *arguments])
    return int(left.value.code or 0), *capsys.readouterr()


def test_the_table_has_a_line_a_step_and_the_headline_says_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, errors = _call(capsys, str(_run(tmp_path)), "--last", "2")
    assert code == 0
    headline, *table = out.splitlines()
    assert headline.startswith(
        "3 steps of 2 ranks; of the 2 without the first and profiled ones: median 50.0 ms, p95 50.0 ms, "
    )
    assert "waiting for data 20.0%" in headline
    assert [line.split()[:2] for line in table if line.split() and line.split()[0].isdigit()] == [
        ["1", "50.0"],
        ["2", "50.0"],
    ]
    assert "1 line is not a step" in errors


def test_the_verdict_that_is_kept_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = _run(tmp_path)
    save_analysis(run, example.with_job_time(example.make_analysis(example.make_timelines())))
    first, fix, *_, headline = _call(capsys, str(run))[1].splitlines()[:4]
    assert first.startswith("BOTTLENECK  Data loading on rank 3: 78.4% of training time")
    assert fix.startswith("  Fix       num_workers=10")
    assert headline.startswith("3 steps of 2 ranks")
    (run / "analysis.json").write_text("{")
    assert _call(capsys, str(run))[1].startswith("3 steps of 2 ranks")


def test_the_document_has_all_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(_call(capsys, str(_run(tmp_path)), "--json")[1])
    assert document["schema"] == "stepscope.steps/1"
    assert [row["index"] for row in document["steps"]] == [0, 1, 2]
    assert document["steps"][2]["figures"] == {"loss": 0.0}


def test_the_profilers_times_after_a_step_are_not_among_the_users_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = tmp_path / "steps"
    steps.mkdir()
    line = {"index": 0, "start_ns": 0, "end_ns": 9, "export_ns": 5, "prepare_ns": 7, "loss": 2.0}
    (steps / "rank0.jsonl").write_text(json.dumps(line) + "\n")
    (row,) = json.loads(_call(capsys, str(tmp_path), "--json")[1])["steps"]
    assert row["figures"] == {"loss": 2.0}


def test_a_folder_without_steps_is_one_line_and_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        code, _, errors = _call(capsys, str(path))
        assert code == 3
        assert len(errors.strip().splitlines()) == 1


def test_a_rank_whose_gradients_differ_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = tmp_path / "r" / "steps"
    steps.mkdir(parents=True)
    for rank in range(4):
        norm = 9.0 if rank == 2 else 1.0
        lines = [{"index": i, "start_ns": i, "end_ns": i + 1, "local_grad_norm": norm} for i in range(3)]
        (steps / f"rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "rank 2" not in _call(capsys, str(tmp_path / "r"))[2]  # nothing says that all hold the same parameters
    mesh = {"tp": 1, "pp": 1, "dp": 4}
    write_manifest(tmp_path / "r", RunManifest("r", "node", 4, mesh, 8, versions={}, environment={}, attempts=[]))
    errors = _call(capsys, str(tmp_path / "r"))[2]
    assert "rank 2: the gradients that it computed are 9 times the other ranks' in 3 of 3" in errors


def test_long_waits_are_said_with_rank_and_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = tmp_path / "r" / "steps"
    steps.mkdir(parents=True)
    for rank in range(4):
        lines = []
        for index in range(20):
            length, wait = (10, 9) if index == 12 else (1, 0)
            own = wait if rank == 3 else 0
            line = {"index": index, "start_ns": 0, "end_ns": length * 10**9, "data_wait_ns": own * 10**9 + 10**6}
            lines.append(json.dumps(line) + "\n")
        (steps / f"rank{rank}.jsonl").write_text("".join(lines))
    code, out, errors = _call(capsys, str(tmp_path / "r"))
    assert (code, errors) == (0, "")
    said = "step 12: rank 3 waited for data for 9,001.0 ms (usually 1.0); the step took 10,000.0 ms (usually 1,000.0)"
    assert said in out
    (row,) = (line.split() for line in out.splitlines() if line.split()[:1] == ["12"])
    assert row == ["12", "10,000.0", "9,001.0", "3", "long", "wait:", "data"]
    document = json.loads(_call(capsys, str(tmp_path / "r"), "--json")[1])
    assert [(wait["step"], wait["name"], wait["ranks"]) for wait in document["long_waits"]] == [(12, "data", [3])]


def test_a_framework_s_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.out").write_text("\n".join(megatron(number, 900.0 + number) for number in (10, 20, 30)))
    code, out, errors = _call(capsys, str(tmp_path / "job.out"))
    assert (code, errors) == (0, "")
    assert out.startswith("30 steps in a log of Megatron-LM; of the ")
    assert ["30", "10", "930.0", "2.022", "6.895"] in [line.split() for line in out.splitlines()]
