"""Does `stepscope workload bench` measure real runs, and end by its gate?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.cli import main

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
