"""Command line: suggestions for misspelt names, and the meaning of exit codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.core.errors import DataError, UnreachableError, UsageError
from stepscope_reference import PAGES


def _told(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    told = capfd.readouterr()
    return stop.value.code, told.out, told.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["analyse", "x"], 'unknown command "analyse"; did you mean "analyze"? See stepscope --help'),
        (["workload", "sute"], 'unknown command "sute"; did you mean "suite"? See stepscope workload --help'),
        (["trace", "nfo"], 'unknown command "nfo"; did you mean "info"? See stepscope trace --help'),
        (
            ["agent", "config", "chck"],
            'unknown command "chck"; did you mean "check"? See stepscope agent config --help',
        ),
        (["xyz"], 'unknown command "xyz"; see stepscope --help'),
        (["--jsno"], 'unknown option "--jsno"; see stepscope --help'),
        (["analyze", "--jsno", "x"], 'unknown option "--jsno"; did you mean "--json"? See stepscope analyze --help'),
        (["analyze", "--zzz", "x"], 'unknown option "--zzz"; see stepscope analyze --help'),
        (
            ["compare", "a", "b", "--fail-on", "steptime:+3%"],
            '--fail-on: unknown metric "steptime"; did you mean "step_time"? See Gate metrics (documentation)',
        ),
        (
            ["compare", "a", "b", "--fail-on", "cause:data_lodin:+3%"],
            '--fail-on: unknown cause "cause:data_lodin"; did you mean "cause:data_loading"? '
            "See Gate metrics (documentation)",
        ),
        (
            ["compare", "a", "b", "--fail-on", "foo:+3%"],
            '--fail-on: unknown metric "foo"; see Gate metrics (documentation)',
        ),
    ],
)
def test_a_misspelt_name_is_answered_with_the_one_that_was_meant(
    arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _told(capfd, *arguments) == (2, "", f"stepscope: {said}\n")


@pytest.mark.parametrize(
    ("arguments", "path"), [(["analyze"], "analyze"), (["analyze", "--window", "no", "x"], "analyze"), (["run"], "run")]
)
def test_what_click_itself_refuses_is_one_line_that_names_the_help(
    arguments: list[str], path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _told(capfd, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.endswith(f"ee stepscope {path} --help\n")
    assert "?;" not in err


def test_exit_codes_are_told_in_the_help_and_in_their_document(capfd: pytest.CaptureFixture[str]) -> None:
    text = PAGES["exit codes"]()
    expected = {0, 1, 130, *(kind.exit_code for kind in (UsageError, DataError, UnreachableError))}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)} == expected
    code, help_text, _ = _told(capfd, "--help")
    assert code in (0, None)
    told = " ".join(help_text.split()).partition("Exit codes: ")[2]
    assert {int(number) for number in re.findall(r"\b\d+\b", told)} == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ["agent", "config", "check", "{none}"],
        ["agent", "run", "--config", "{none}"],
        ["capture", "--run", "x", "--steps", "1", "--token-file", "{none}"],
    ],
)
def test_a_missing_file_that_says_how_to_run_is_wrong_use(
    arguments: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    none = tmp_path / "none"
    code, _, err = _told(capfd, *(word.format(none=none) for word in arguments))
    assert code == 2
    assert err.startswith(f"stepscope: {none}: ")
    assert err.endswith("cannot be read (No such file or directory); check the path\n")
