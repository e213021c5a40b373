"""`stepscope workload run`: the output of the contract, and errors in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.cli import main


@pytest.fixture(autouse=True)
def _not_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(variable, raising=False)


def _exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as stop:
        main(["workload", *arguments])
    return stop.value.code or 0


def test_json_document_and_nothing_else_on_stdout(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    options = (
        "--pp",
        "2",
        "--layers",
        "1,2",
        "--steps",
        "3",
        "--device",
        "cpu",
        "--out",
        str(tmp_path),
        "--run-name",
        "r",
        "--json",
    )
    assert _exit_code("run", "gpt", *options) == 0
    output, progress = capfd.readouterr()
    document = json.loads(output)
    assert document["schema"] == "stepscope.workload/1"
    assert document["warnings"] == []
    assert document["plan"]["schedule"] == "1f1b"
    assert document["plan"]["stage_layers"] == [1, 2]
    assert document["run_dir"] == str(tmp_path / "r")
    assert len(document["losses"]) == 3
    assert [(rank["rank"], len(rank["step_ms"])) for rank in document["ranks"]] == [(0, 3), (1, 3)]
    assert document["tokens_per_second"] == pytest.approx(8 * 16 / document["step_ms"] * 1e3)
    assert document["last_loss"] < document["first_loss"]
    assert [line.split()[1] for line in progress.splitlines() if line.startswith("step")] == ["0", "1", "2"]


def test_a_run_whose_steps_all_overflow_is_json_and_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    options = ("--dtype", "float16", "--initial-loss-scale", "1e30", "--steps", "2", "--device", "cpu", "--no-profile")
    assert _exit_code("run", "gpt", *options, "--json") == 0

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    document = json.loads(capfd.readouterr().out, parse_constant=refuse)
    assert document["gradient_norms"] == [None, None]
    assert document["skipped_steps"] == 2
    (warning,) = (warning for warning in document["warnings"] if warning["code"] == "all_steps_skipped")
    assert "overflowed in all 2 steps" in warning["message"]
    assert "is still 2.5e+29;" in warning["message"]


def test_plain_output_is_the_directory_and_the_losses(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert _exit_code("run", "gpt", "--steps", "2", "--device", "cpu", "--out", str(tmp_path), "--run-name", "r") == 0
    directory, loss = capfd.readouterr().out.splitlines()
    assert directory == str(tmp_path / "r")
    assert loss.startswith("loss 3.")
    assert loss.endswith("in 2 steps")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("resnet",), 'unknown workload "resnet"; did you mean "resnet50"? Known: gpt, llama, resnet50'),
        (("gpt", "--preset", "huge"), 'unknown preset "huge"; known: cluster, node'),
        (("gpt", "--pp", "2", "--dp", "2", "--zero", "0", "--schedule", "interleaved"), "internal assertion"),
        (("gpt", "--pp", "4", "--schedule", "interleaved"), "needs 8 layers"),
        (("gpt", "--layers", "1,x"), "--layers: a number of layers"),
        (("gpt", "--layers", "4,0"), "--layers: a number of layers"),
        (("gpt", "--pp", "4", "--layers", "1,1,2"), "4 pipeline stages cannot hold"),
        (("gpt", "--run-name", "../evil"), "folder's name"),
        (("gpt", "--simulate-compute", "nan"), "finite"),
        (("gpt", "--seed", "-1"), "a seed is"),
        (("gpt", "--device", "cpu", "--control"), "a control is the job of a fault"),
    ],
)
def test_refusals_are_one_line_with_exit_code_two(
    options: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code("run", *options) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.count("\n") == 1
    assert reason in errors


def test_an_out_folder_that_cannot_be_written_is_one_line_with_exit_code_three(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "file").write_text("no folder")
    assert _exit_code("run", "gpt", "--device", "cpu", "--out", str(tmp_path / "file" / "runs")) == 3
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.count("\n") == 1


def test_a_refusal_needs_no_torch() -> None:
    code = (
        "import sys; from stepscope.cli import main\n"
        "try: main(['workload', 'run', 'gpt', '--pp', '3'])\n"
        "except SystemExit as stop: print(stop.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2 False"
