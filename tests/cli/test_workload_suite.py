"""The command line of the labelled suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from stepscope.cli.progress import run_progress
from stepscope.cli.workload.suite import command
from stepscope.core.errors import UsageError
from stepscope.reference_workloads.suite import run as suite_run
from stepscope.reference_workloads.suite.results import RunResult


def test_cases_are_listed_with_their_controls() -> None:
    result = CliRunner().invoke(command, ["--preset", "two-gpu", "--list"])
    assert result.exit_code == 0
    assert "ddp-straggler  (control: ddp-healthy)" in result.stdout


def test_a_folder_is_needed_to_run() -> None:
    result = CliRunner().invoke(command, ["--preset", "tiny"])
    assert result.exit_code == 2
    assert "-o" in result.output


def test_an_accuracy_that_no_case_reached_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = lambda run, _folder, fingerprint: RunResult(run.name, fingerprint, 1.0, error="no")  # noqa: E731
    monkeypatch.setattr(suite_run, "_make", failed)
    arguments = ["--preset", "tiny", "--budget-minutes", "0.001", "-o", str(tmp_path / "suite")]
    assert CliRunner().invoke(command, arguments).exit_code == 0
    assert CliRunner().invoke(command, [*arguments, "--require-accuracy", "0.9"]).exit_code == 1
    assert "not run" in (tmp_path / "suite" / "confusion.md").read_text()


def test_a_device_that_nobody_knows_is_refused() -> None:
    result = CliRunner().invoke(command, ["--preset", "tiny", "--device", "bogus", "--list"])
    assert isinstance(result.exception, UsageError)


def test_a_bar_is_drawn_on_a_terminal_and_lines_are_told_above_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with run_progress("suite") as (tell, draw):
        draw(1, 3, "one-healthy")
        tell("  1/3  one-healthy: [fine]")
    shown = capsys.readouterr().err
    assert "suite one-healthy" in shown
    assert "1/3" in shown
    assert "one-healthy: [fine]" in shown
