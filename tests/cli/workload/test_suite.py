"""The command line of the labelled suite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stepscope.cli.terminal.console import run_progress
from stepscope.cli.workload.suite import suite_command
from stepscope.core.errors import UsageError
from stepscope.core.vocabulary import Cause
from stepscope.reference_workloads.suite import runner as suite_run
from stepscope.reference_workloads.suite.cases import SuiteRun
from stepscope.reference_workloads.suite.results import SuiteFolder, SuiteRunResult


def test_cases_are_listed_with_their_controls() -> None:
    result = CliRunner().invoke(suite_command, ["--preset", "two-gpu", "--list"])
    assert result.exit_code == 0
    assert "ddp-straggler  (control: ddp-healthy)" in result.stdout


def test_a_folder_is_needed_to_run() -> None:
    result = CliRunner().invoke(suite_command, ["--preset", "tiny"])
    assert result.exit_code == 2
    assert "-o" in result.output


def test_a_list_is_a_document_too() -> None:
    result = CliRunner().invoke(suite_command, ["--preset", "two-gpu", "--cases", "ddp-straggler", "--list", "--json"])
    assert json.loads(result.stdout) == {
        "schema": "stepscope.suite-cases/1",
        "preset": "two-gpu",
        "cases": [{"case": "ddp-straggler", "layout": "ddp", "control": "ddp-healthy"}],
        "warnings": [],
    }


def _suite(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(suite_command, ["--preset", "tiny", "-o", str(folder), *arguments])


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, Cause]:
    """What runs are called that are not made, by their name; others fail."""
    causes: dict[str, Cause] = {}

    def make(run: SuiteRun, _folder: SuiteFolder, fingerprint: str) -> SuiteRunResult:
        cause = causes.get(run.name)
        return SuiteRunResult(run.name, fingerprint, 1.0, cause=cause, error=None if cause else "no")

    monkeypatch.setattr(suite_run, "_make", make)
    return causes


def test_an_accuracy_that_no_case_reached_is_missed(tmp_path: Path, called: dict[str, Cause]) -> None:
    del called
    only = ("--cases", "one-healthy,one-slow_loader")
    assert _suite(tmp_path / "suite", *only).exit_code == 0
    result = _suite(tmp_path / "suite", *only, "--require-accuracy", "0.9")
    assert result.exit_code == 1
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("stepscope:"))
    assert line.startswith("stepscope: --require-accuracy: 0 of 2 labelled runs called right, not 0.9 of them; see")


def test_an_accuracy_of_an_unfinished_suite_is_not_passed(tmp_path: Path, called: dict[str, Cause]) -> None:
    called["ddp-healthy"] = Cause.COMPUTE_BOUND
    arguments = ("--budget-minutes", "0.001", "--require-accuracy", "0.9")
    result = _suite(tmp_path / "suite", *arguments)
    assert result.exit_code == 1
    assert "--require-accuracy: not passed, as not all cases have been run; the same command goes on" in result.stderr
    assert "not run" in (tmp_path / "suite" / "confusion.md").read_text()
    assert _suite(tmp_path / "suite", *arguments, "--cases", "ddp-healthy").exit_code == 0


def test_a_call_for_one_case_keeps_what_is_known_of_the_others(tmp_path: Path, called: dict[str, Cause]) -> None:
    called |= {"one-slow_loader": Cause.DATA_LOADING, "one-healthy": Cause.DATA_LOADING}
    folder = tmp_path / "suite"
    assert _suite(folder, "--cases", "one-*").exit_code == 0
    # The gate is of the asked case alone: the healthy one was called wrongly.
    assert _suite(folder, "--cases", "one-slow_loader", "--require-accuracy", "1").exit_code == 0
    report = json.loads((folder / "confusion.json").read_text())
    assert [row["case"] for row in report["cases"]] == ["one-healthy", "one-slow_loader", "one-bursty_loader"]
    assert "one-bursty_loader" in (folder / "confusion.md").read_text()


def test_a_device_that_nobody_knows_is_refused() -> None:
    result = CliRunner().invoke(suite_command, ["--preset", "tiny", "--device", "bogus", "--list"])
    assert isinstance(result.exception, UsageError)


def test_a_bar_is_drawn_on_a_terminal_and_lines_are_told_above_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")  # none is drawn on a dumb one
    with run_progress("suite") as (tell, draw):
        draw(1, 3, "one-healthy")
        tell("  1/3  one-healthy: [fine]")
    shown = capsys.readouterr().err
    assert "suite one-healthy" in shown
    assert "1/3" in shown
    assert "one-healthy: [fine]" in shown
