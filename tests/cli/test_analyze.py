"""`stepscope analyze`: data on stdout, warnings on stderr, documented exit codes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.cli import main
from tests.workflow.written_traces import write_straggling_job, write_trace


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stepscope", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment}
    )


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_straggling_job(tmp_path / "job")


def test_json_is_the_whole_document_and_nothing_else_on_stdout(job: Path) -> None:
    done = run("analyze", "--json", str(job))
    document = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert document["schema"] == "stepscope.analysis/1"
    assert document["warnings"] == []
    for key in ("job", "trace_quality", "ledger", "ranks", "root_causes", "verdict", "what_if", "collectives"):
        assert key in document
    assert document["pipeline"] is None
    assert sum(document["ledger"].values()) == pytest.approx(1.0)
    assert document["verdict"]["cause"] == "straggler"
    assert document["collectives"][0]["kind"] == "all_reduce"


def test_piped_text_is_plain_and_gives_the_verdict_before_the_breakdown_before_the_ranks(job: Path) -> None:
    text = run("analyze", str(job)).stdout
    assert "\x1b" not in text
    parts = (
        "BOTTLENECK  Straggler on rank 1: ",
        "Fix  ",
        "Confidence ",
        "by category",
        "Time of each rank",
        "Trace quality",
    )
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert "rank 1" in text


def test_warnings_go_to_stderr_and_the_exit_code_stays_0(job: Path) -> None:
    (job / "rank2.json").write_text("nothing")
    done = run("analyze", str(job))
    assert done.returncode == 0
    assert done.stderr.startswith("warning: ")
    assert "rank2.json" in done.stderr


def test_the_window_option_books_whole_files(job: Path) -> None:
    document = json.loads(run("analyze", "--json", "--window", "file", str(job)).stdout)
    assert "index" in document["ranks"][0]["steps"][0]
    assert len(document["ranks"][0]["steps"]) == 1


@pytest.mark.parametrize("content", ["", "nothing", '{"traceEvents": []}'])
def test_an_unusable_file_is_one_line_and_exit_code_3(content: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(content)
    done = run("analyze", str(path))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert done.stderr.startswith(f"stepscope: {path}: ")


def test_duplicate_ranks_are_one_line_and_exit_code_3(job: Path) -> None:
    write_trace(job / "again.json", 0, later_us=500.0)
    done = run("analyze", str(job))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)


def test_debug_shows_the_traceback_of_an_expected_error(tmp_path: Path) -> None:
    assert "Traceback" in run("--debug", "analyze", str(tmp_path / "absent")).stderr


@pytest.mark.parametrize("arguments", [[], ["--nonsense", "x"], ["--window", "hour", "x"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert run("analyze", *arguments).returncode == 2


def test_a_name_with_square_brackets_is_printed_as_it_is(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank0.json", 0, world_size=1)
    path.write_text(path.read_text().replace("NVIDIA H100 80GB HBM3", "GPU [red]H100[/x] :smile:"))
    done = run("analyze", str(path))
    assert done.returncode == 0
    assert "GPU [red]H100[/x] :smile:" in done.stdout


def _shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    whole = command.replace("stepscope", f"{shlex.quote(sys.executable)} -m stepscope")
    return subprocess.run(["bash", "-c", whole], capture_output=True, text=True, cwd=cwd)


def test_a_reader_that_goes_away_is_no_finding(job: Path) -> None:
    done = _shell("stepscope analyze . | head -1 >/dev/null; exit ${PIPESTATUS[0]}", job)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_under_the_output_is_one_line(job: Path) -> None:
    done = _shell("stepscope analyze . >/dev/full", job)
    told = "stepscope: output: cannot be written (No space left on device); free some space\n"
    assert (done.returncode, done.stderr) == (3, told)


def test_a_closed_output_is_no_traceback(job: Path) -> None:
    done = _shell("stepscope analyze . >&-", job)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_path_that_is_not_utf8_is_one_line(job: Path) -> None:
    done = _shell("mkdir $'d\\xff'; stepscope analyze . $'d\\xff' --json | cat", job)
    assert (done.returncode, done.stderr) == (0, "")
    assert "holds no trace" in done.stdout


def test_debug_is_accepted_after_the_verb(tmp_path: Path) -> None:
    assert "Traceback" in run("analyze", str(tmp_path / "absent"), "--debug").stderr


def test_a_device_that_is_no_file_is_said() -> None:
    assert "is neither a file nor a folder" in run("analyze", "/dev/null").stderr


@pytest.mark.parametrize("arguments", [("--workers", "0", "x"), ("--no-such-option",), ()])
def test_a_wrong_option_is_one_line_with_exit_code_two(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["analyze", *arguments])
    output, errors = capsys.readouterr()
    assert (stop.value.code, output, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("stepscope: ")
