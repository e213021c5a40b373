"""`stepscope workload bench`: measures real runs, and exits by its gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli import main
from stepscope.core.errors import DataError
from stepscope.reference_workloads.bench import baseline, measurement
from stepscope.reference_workloads.launch import run_workload
from stepscope.reference_workloads.processes import RankFailedError

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _not_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(variable, raising=False)


def _exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as stop:
        main(["workload", "bench", *arguments])
    return stop.value.code or 0


def test_scales_are_measured_and_a_slower_bench_fails_its_gate(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before, now = tmp_path / "before.json", tmp_path / "now.json"
    options = ("--scales", "1,2", "--device", "cpu", "--steps", "5", "--warmup", "3", "--simulate-compute", "10")
    assert _exit_code("gpt", *options, "-o", str(before), "--json") == 0
    output, progress = capfd.readouterr()
    document = json.loads(output)
    assert json.loads(before.read_text()) == document
    assert document["schema"] == "stepscope.bench/1"
    assert [(scale["dp"], scale["batch_size"]) for scale in document["scales"]] == [(1, 8), (2, 16)]
    for scale in document["scales"]:
        assert [len(run["step_ms"]) for run in scale["runs"]] == [5]
        assert scale["step_p50_ms"] > 4 * 3 * 10 * 0.9  # four layers, 10 + 20 ms each
        assert scale["items_per_second"] == pytest.approx(scale["num_items"] / scale["step_p50_ms"] * 1e3)
        assert scale["mfu"] is None  # no GPU
    assert document["environment"]["versions"]["torch"]
    assert document["fit"]["law"] == "gustafson"
    assert "dp 2, run 1 of 1" in progress

    # Measured steps of a busy machine settle no gate; these do.
    for file, step_ms in ((before, 100.0), (now, 50.0)):
        for scale in document["scales"]:
            scale["runs"][0]["step_ms"] = [step_ms] * 5
        file.write_text(json.dumps(document))
    gate = ("--gate", "step_time:+3%")
    assert _exit_code("--result", str(now), "--baseline", str(before), *gate) == 0
    assert _exit_code("--result", str(before), "--baseline", str(now), *gate) == 1
    output, _ = capfd.readouterr()
    assert "dp 2 (2 ranks)" in output
    gates = [line for line in output.splitlines() if "gate step_time" in line]
    assert [line.count("failed") for line in gates] == [0, 0, 1, 1]  # of both scales, each outcome told once


def test_what_makes_no_sense_is_told_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("gpt", "--gate", "step_time:+3%") == 2
    assert _exit_code("gpt", "--scales", "1,x") == 2
    assert _exit_code("gpt", "--batch-size", "0") == 2
    assert _exit_code("gpt", "--warmup", "2") == 2
    assert _exit_code("gpt", "--steps", "1") == 2
    assert _exit_code("gpt", "--repeat", "0") == 2
    assert _exit_code("gpt", "--baseline", str(tmp_path / "none.json")) == 3
    errors = capfd.readouterr().err
    assert len(errors.splitlines()) == 7
    assert "--warmup: 2 is too small for a bench; give 3 or more" in errors
    assert "--steps: 1 is too small for a bench; give 2 or more" in errors
    assert "--repeat: 0 is too small for a bench; give 1 or more" in errors


@pytest.mark.parametrize("options", [("nonsense",), ("gpt",), ("--scales", "1,2"), ("--no-overlap",), ("--strong",)])
def test_what_says_what_to_run_is_refused_beside_an_earlier_result(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    assert _exit_code(*options, "--result", str(tmp_path / "b.json")) == 2
    assert "--result runs nothing" in capfd.readouterr().err


_SMALL = ("--device", "cpu", "--steps", "3", "--warmup", "3", "--simulate-compute", "1")


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A quick bench of one scale."""
    file = tmp_path / "earlier.json"
    assert _exit_code("gpt", *_SMALL, "-o", str(file)) == 0
    return file


def test_a_baseline_that_does_not_fit_is_refused_before_anything_is_measured(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    monkeypatch.setattr(measurement, "run_workload", lambda *_, **__: pytest.fail("it was measured"))
    arguments = ("--baseline", str(earlier), "-o", str(tmp_path / "lost.json"))
    assert _exit_code("gpt", *_SMALL, *arguments, "--batch-size", "16") == 3
    assert _exit_code("gpt", *_SMALL, *arguments, "--scales", "2") == 3
    other, scale = capfd.readouterr().err.splitlines()
    assert "measured other work at dp 1: batch_size 8 instead of 16" in other
    assert "shares no scale" in scale


def test_what_was_measured_is_shown_though_it_compares_with_nothing(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def no_comparison(*_: object, **__: object) -> None:
        raise DataError("does not compare", where="earlier.json")

    monkeypatch.setattr(baseline, "compare_with_baseline", no_comparison)
    file = tmp_path / "kept.json"
    assert _exit_code("gpt", *_SMALL, "--baseline", str(earlier), "-o", str(file)) == 3
    assert "dp 1 (1 rank)" in capfd.readouterr().out
    assert json.loads(file.read_text())["warnings"][-1] == {
        "code": "not_compared",
        "message": "earlier.json: does not compare",
    }


@pytest.mark.parametrize(
    ("error", "code"), [(RankFailedError("rank 0 was killed by SIGKILL"), 4), (KeyboardInterrupt(), 130)], ids=str
)
def test_runs_before_the_one_that_failed_are_written_and_shown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
) -> None:
    num_runs = iter(range(9))

    def fail_in_the_second(*arguments: Any, **options: Any) -> Any:
        if next(num_runs) == 1:
            raise error
        return run_workload(*arguments, **options)

    monkeypatch.setattr(measurement, "run_workload", fail_in_the_second)
    file = tmp_path / "kept.json"
    assert _exit_code("gpt", *_SMALL, "--repeat", "3", "-o", str(file)) == code
    document = json.loads(file.read_text())
    assert [len(scale["runs"]) for scale in document["scales"]] == [1]
    assert "incomplete" in [warning["code"] for warning in document["warnings"]]
    output, errors = capfd.readouterr()
    assert "dp 1 (1 rank)" in output
    assert "1 of 3 runs came to the end" in errors


def test_a_rank_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "x")
    assert _exit_code("gpt") == 2
    assert "stepscope: RANK: is not a rank or size: 'x'" in capfd.readouterr().err
