"""Useless paths are rejected alike by every command, in one line that says what to do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.cli import main
from tests.workflow.written_traces import write_straggling_job, write_trace

_VERBS = (
    ("analyze",),
    ("whatif",),
    ("report", "-o", "{out}"),
    ("steps",),
    ("trace", "info"),
    ("hang",),
    ("nccl",),
    ("memory",),
)


def _refusal(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    told = capfd.readouterr()
    assert told.out == ""
    return stop.value.code, told.err


@pytest.fixture
def verb(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    return [word.format(out=tmp_path / "report.html") for word in request.param]


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A folder that this user may neither list nor enter."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o000)
    yield folder
    folder.chmod(0o700)


@pytest.mark.parametrize("verb", _VERBS, indirect=True, ids=lambda verb: verb[0])
def test_a_folder_of_runs_is_told_from_a_run(
    verb: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    for name in ("loop", "other", "third"):
        (runs / name).mkdir(parents=True)
        (runs / name / "run.json").write_text("{}")
    (runs / "notes").mkdir()
    told = f"stepscope: {runs}: holds 3 runs: loop, other, third; give one of them, such as {runs}/loop\n"
    assert _refusal(capfd, *verb, str(runs)) == (3, told)


@pytest.mark.parametrize("verb", _VERBS, indirect=True, ids=lambda verb: verb[0])
def test_the_only_run_of_a_folder_is_read_and_named(
    verb: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    (runs / "loop").mkdir(parents=True)
    (runs / "loop" / "run.json").write_text("{}")
    (runs / "notes").mkdir()
    code, told = _refusal(capfd, *verb, str(runs))
    first, *others = told.splitlines()
    assert (code, first) == (3, f"stepscope: {runs}: reading the only run in it, {runs}/loop")
    assert any(str(runs / "loop") in line for line in others)  # a run that holds nothing yet


def test_a_folder_of_one_run_is_analysed_and_kept_in_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_straggling_job(tmp_path / "runs" / "loop" / "traces" / "step4")
    with pytest.raises(SystemExit) as stop:
        main(["analyze", str(tmp_path / "runs")])
    assert stop.value.code in (0, None)
    told = capfd.readouterr()
    assert "BOTTLENECK  " in told.out
    assert told.err.startswith(f"stepscope: {tmp_path}/runs: reading the only run in it, {tmp_path}/runs/loop\n")
    assert (tmp_path / "runs" / "loop" / "analysis.json").is_file()


def test_traces_beside_runs_are_a_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    job = write_straggling_job(tmp_path / "job")
    (job / "older").mkdir()
    (job / "older" / "run.json").write_text("{}")
    with pytest.raises(SystemExit) as stop:
        main(["analyze", "--no-keep", str(job)])
    assert stop.value.code in (0, None)
    assert "BOTTLENECK  " in capfd.readouterr().out


@pytest.mark.parametrize("verb", [*_VERBS, ("compare", "/")], indirect=True, ids=lambda verb: verb[0])
def test_a_closed_folder_is_named_as_it_was_given(
    verb: list[str], closed: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if os.access(closed, os.R_OK):
        pytest.skip("nothing is closed to this user")
    verb = ["compare", str(closed)] if verb[0] == "compare" else verb
    told = f"stepscope: {closed}: cannot be read (Permission denied); check its permissions\n"
    assert _refusal(capfd, *verb, str(closed)) == (3, told)


@pytest.mark.parametrize("verb", [*_VERBS, ("compare", "/")], indirect=True, ids=lambda verb: verb[0])
@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (PermissionError(13, "Permission denied"), "cannot be read (Permission denied); check its permissions"),
        (OSError(5, "Input/output error"), "cannot be read (Input/output error); check the path"),
    ],
)
def test_trouble_of_the_system_is_told_alike(
    verb: list[str],
    trouble: OSError,
    told: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()

    def refuse(_path: str) -> None:
        raise trouble

    verb = ["compare", str(folder)] if verb[0] == "compare" else verb
    monkeypatch.setattr("stepscope.workflow.inputs.paths.os.scandir", refuse)
    assert _refusal(capfd, *verb, str(folder)) == (3, f"stepscope: {folder}: {told}\n")


@pytest.mark.parametrize("verb", _VERBS, indirect=True, ids=lambda verb: verb[0])
@pytest.mark.parametrize("name", ["none", "file/below"])
def test_a_path_that_is_not_there_is_told_alike(
    verb: list[str], name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / name
    assert _refusal(capfd, *verb, str(path)) == (3, f"stepscope: {path}: does not exist; check the path\n")


@pytest.mark.parametrize("name", ["none", "text"])
def test_a_list_of_agents_that_cannot_be_read_says_what_next(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_bytes(b"\xff\xfe\x00")
    code, told = _refusal(capfd, "status", "--agents", str(tmp_path / name))
    said = {
        "none": "cannot be read (No such file or directory); check the path",
        "text": "is not a text file; give a file with one agent per line",
    }
    assert (code, told) == (3, f"stepscope: {tmp_path / name}: {said[name]}\n")


def test_each_of_several_paths_may_hold_the_only_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for place, rank in (("first", 0), ("second", 1), ("third", 2)):
        inner = "loop/traces/step4" if place != "third" else ""
        write_trace(tmp_path / place / inner / f"rank{rank}.json.gz", rank, world_size=3)
    paths = [str(tmp_path / place) for place in ("third", "first", "second")]
    for verb in (["analyze", "--json"], ["trace", "info", "--json"]):
        with pytest.raises(SystemExit) as stop:
            main([*verb, *paths])
        assert stop.value.code in (0, None)
        told = capfd.readouterr()
        document = json.loads(told.out)
        ranks = document["job"]["ranks"] if verb == ["analyze", "--json"] else [f["rank"] for f in document["files"]]
        assert sorted(ranks) == [0, 1, 2]
        assert [line for line in told.err.splitlines() if "only run" in line] == [
            f"stepscope: {path}: reading the only run in it, {path}/loop" for path in paths[1:]
        ]


def test_a_dump_beside_a_folder_of_one_run_does_not_hide_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dump = json.dumps({"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": []})
    for path in ("dumps/rank0.json", "runs/loop/flight/rank1.json"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(dump)
    (tmp_path / "runs" / "loop" / "run.json").write_text("{}")
    with pytest.raises(SystemExit):
        main(["hang", str(tmp_path / "dumps"), str(tmp_path / "runs")])
    told = capfd.readouterr().err
    assert f"{tmp_path}/runs: reading the only run in it, {tmp_path}/runs/loop" in told


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--capture", "1"], 0, "analysed capture 1 of 2"),
        (["--capture", "all"], 0, "analysed capture 2 of 2"),
        (["--capture", "3"], 2, "there is no capture 3: captures are numbered 1 to 2; leave --capture out"),
        (["--capture", "0"], 2, "0 is not in the range x>=1"),
        (["--capture", "two"], 2, "'two' is not a valid integer range"),
        (["--capture", "all", "--html", "{out}"], 2, "--html writes one analysis"),
    ],
)
def test_captures_are_chosen_by_their_number(
    arguments: list[str], code: int, says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for step in (5, 20):
        write_trace(tmp_path / "job" / f"rank0_step{step}.json", 0, world_size=1, later_us=1e6 * step)
    with pytest.raises(SystemExit) as stop:
        main(["analyze", str(tmp_path / "job"), *(word.format(out=tmp_path / "a.html") for word in arguments)])
    told = capfd.readouterr()
    assert (stop.value.code or 0, says in told.err) == (code, True), told.err
    assert ("CAPTURE 2" in told.out) is (arguments == ["--capture", "all"])


def test_all_captures_are_one_document(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for step in (5, 20):
        write_trace(tmp_path / f"rank0_step{step}.json", 0, world_size=1, later_us=1e6 * step)
    with pytest.raises(SystemExit):
        main(["analyze", str(tmp_path), "--capture", "all", "--json"])
    document = json.loads(capfd.readouterr().out)
    assert document["schema"] == "stepscope.captures/1"
    assert [one["capture"] for one in document["captures"]] == [1, 2]
    assert document["captures"][1]["analysis"]["ranks"][0]["file"] == "rank0_step20.json"
