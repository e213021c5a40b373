"""`stepscope compare`: data on stdout, warnings on stderr, documented exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from tests.workflow.test_compare import write_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "a", step_ms=10.0)
    write_run(root / "b", step_ms=12.0)
    return root


def run(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stepscope", "compare", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=cwd)


def test_the_report_starts_with_what_is_compared_and_the_line_to_read(runs: Path) -> None:
    done = run(runs, "a", "b")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("a: a (a): median 10.0 ms")
    assert lines[3].startswith("b is slower: 10.0 -> 12.0 ms a step (+2.0 ms, +20.0%, ")


def test_a_failed_gate_is_exit_code_1_and_in_the_junit_file(runs: Path, tmp_path: Path) -> None:
    junit = tmp_path / "gate.xml"
    done = run(runs, "a", "b", "--fail-on", "step_time:+3%", "--fail-on", "mfu:-5%", "--junit", str(junit))
    assert done.returncode == 1
    assert "gate step_time 10" in done.stdout
    suite = Xml.parse(junit).getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "1")


@pytest.mark.parametrize(("choice", "code", "failures"), [("pass", 0, "0"), ("fail", 1, "2")])
def test_a_gate_that_is_not_decided_does_what_the_option_says_and_says_so(
    runs: Path, tmp_path: Path, choice: str, code: int, failures: str
) -> None:
    junit = tmp_path / "gate.xml"
    gates = ("--fail-on", "step_time:+20%,mfu:-5%", "--inconclusive", choice, "--junit", str(junit))
    done = run(runs, "a", "b", *gates)
    assert done.returncode == code
    [line] = [line for line in done.stderr.splitlines() if "not decided by these runs" in line]
    assert "step_time:+20%" in line
    assert ("--inconclusive fail" in line) is (choice == "pass")
    assert Xml.parse(junit).getroot()[0].get("failures") == failures


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize(("limit", "code"), [("3", 1), ("50", 0)])
def test_a_reader_that_goes_away_does_not_hide_a_failed_gate(
    runs: Path, options: tuple[str, ...], limit: str, code: int
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "stepscope", "compare", "a", "b", "--fail-on", f"step_time:+{limit}%", *options]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False, cwd=runs)
    os.close(writing)
    assert (done.returncode, done.stderr) == (code, "")


def test_gates_that_hold_are_exit_code_0(runs: Path) -> None:
    assert run(runs, "a", "b", "--fail-on", "step_time:+50%").returncode == 0


def test_json_is_the_whole_document(runs: Path) -> None:
    done = run(runs, "a", "b", "--json", "--fail-on", "step_time:+3%")
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert next(iter(document)) == "schema"
    assert document["schema"] == "stepscope.compare/1"
    assert document["gates"][0]["outcome"] == "failed"
    assert document["step_time"]["state"] == "slower"
    assert document["warnings"] == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["a"], 2),
        (["a", "b", "--fail-on", "nonsense:+3%"], 2),
        (["a", "absent"], 3),
        (["a", "b", "--junit", "no/x"], 3),
    ],
)
def test_errors_are_one_line_and_their_exit_code(arguments: list[str], code: int, runs: Path) -> None:
    done = run(runs, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    if code == 3 or "--fail-on" in arguments:
        assert done.stderr.count("\n") == 1
