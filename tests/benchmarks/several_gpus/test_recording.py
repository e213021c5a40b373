"""A recording goes on past cases that fail, and from where an earlier call ended."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.labelled_runs.job import Job
from benchmarks.several_gpus import recording
from benchmarks.several_gpus.cases import JOBS as CASES
from benchmarks.several_gpus.pool import Outcome
from benchmarks.several_gpus.recording import Plan, Recording
from benchmarks.several_gpus.results import BLOCKS, FAILED, FILE, RECORDED, Result, Results, read_results
from tests.benchmarks.several_gpus.jobs import JOBS


def _plan(out: Path, names: Sequence[str], seconds: float = 600.0) -> Plan:
    jobs = [JOBS[name] for name in names]
    table = "tests.benchmarks.several_gpus.jobs:JOBS"
    return Plan(jobs, table, out, 2, "cpu", seconds, 90.0, is_tiny=True, has_agent=False)


def _states(out: Path) -> list[tuple[str, str]]:
    return [(one.name, one.state) for one in read_results(out / FILE)]


@pytest.mark.timeout(300)
def test_cases_are_recorded_and_a_second_call_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    out, said = tmp_path / "out", list[str]()
    assert Recording(_plan(out, ["fails_everywhere", "trains", "by_environment", "dies"]), said.append).record() == 2
    assert sorted(_states(out)) == [
        ("by_environment", BLOCKS),
        ("by_environment", RECORDED),
        ("dies", FAILED),
        ("fails_everywhere", FAILED),
        ("trains", RECORDED),
    ]
    assert any("rank 1 died" in line for line in said)
    with tarfile.open(out / "several-1.tar") as tar:
        names = tar.getnames()
        file = tar.extractfile("several/trains.truth.json")
        assert file is not None
        truth = json.loads(file.read())["trains"]
    assert {"several/trains/run.json", "several/trains/steps", "several/by_environment.truth.json"} <= set(names)
    assert (truth["num_ranks"], truth["blocks_ms"].keys()) == (2, {"sleep", "none"})

    assert Recording(_plan(out, ["trains", "by_environment"]), said.append).record() == 0
    assert said[-2].startswith("0 of 2 cases to record")
    assert len(_states(out)) == 5


class _NoPool:
    is_running, missing = True, ()

    def __init__(self, *_: object) -> None: ...

    def start(self) -> Outcome:
        return Outcome([], None, 0.0)

    def close(self) -> None: ...


def test_no_case_begins_without_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "Pool", _NoPool)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert Recording(_plan(tmp_path / "out", ["trains"], seconds=20.0), lambda _: None).record() == 1
    assert _states(tmp_path / "out") == []


def test_results_of_earlier_calls_count(tmp_path: Path) -> None:
    (earlier := tmp_path / "earlier").mkdir()
    results = Results(earlier)
    results.add(Result("a", RECORDED, 1.0, 2.0))
    results.add(Result("b", FAILED, 1.0, 2.0, trouble="?"))
    with (earlier / FILE).open("a") as file:
        file.write('{"name": "c", "sta')  # the call was killed
    later = Results(tmp_path, [earlier / FILE])
    assert [later.is_recorded(name) for name in "abc"] == [True, False, False]
    again = Results(tmp_path, [earlier / FILE], ["a"])
    assert not again.is_recorded("a")
    again.add(Result("a", RECORDED, 3.0, 2.0))
    assert Results(tmp_path, [earlier / FILE], ["a"]).is_recorded("a")


def test_no_case_begins_whose_run_could_not_be_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "Pool", _NoPool)
    monkeypatch.setattr(recording, "_MOST_TARS", 1)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (out := tmp_path / "out").mkdir()
    (out / "several-1.tar").write_bytes(bytes(13 << 20))
    said = list[str]()
    assert Recording(_plan(out, ["trains"]), said.append).record() == 1
    assert "the tar files are full: the other cases are left to another call" in said
    assert _states(out) == []


def _has_several_causes(jobs: Sequence[Job]) -> bool:
    return len({cause for job in jobs for fault in job.faults for cause in fault.cause}) >= 8


def test_a_first_call_holds_cases_of_many_causes() -> None:
    first = list(CASES.values())[:16]
    assert len(CASES) >= 22
    assert _has_several_causes(first)
    assert all(job.num_ranks == 2 for job in CASES.values())
    assert any(job.is_launched for job in first)
    assert any(job.environment for job in first)
