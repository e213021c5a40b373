"""The command line of the labelled suite."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from stepscope.cli.workload.suite import command


def test_cases_are_listed_with_their_controls() -> None:
    result = CliRunner().invoke(command, ["--preset", "two-gpu", "--list"])
    assert result.exit_code == 0
    assert "ddp-straggler  (control: ddp-healthy)" in result.stdout


def test_a_folder_is_needed_to_run() -> None:
    result = CliRunner().invoke(command, ["--preset", "tiny"])
    assert result.exit_code == 2
    assert "-o" in result.output


def test_an_accuracy_that_no_case_reached_is_missed(tmp_path: Path) -> None:
    arguments = ["--preset", "tiny", "--budget-minutes", "0.001", "-o", str(tmp_path / "suite")]
    assert CliRunner().invoke(command, arguments).exit_code == 0
    assert CliRunner().invoke(command, [*arguments, "--require-accuracy", "0.9"]).exit_code == 1
    assert "not run" in (tmp_path / "suite" / "confusion.md").read_text()
