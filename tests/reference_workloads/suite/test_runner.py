"""Real runs of a small suite: two cases and a failing one, stopped in between and gone on with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest

import stepscope
from stepscope.core.documents.what_if import Fix
from stepscope.core.errors import UsageError
from stepscope.core.vocabulary import Cause
from stepscope.reference_workloads.job import FaultSite, Injection
from stepscope.reference_workloads.suite import provenance as suite_provenance
from stepscope.reference_workloads.suite import runner as suite_run
from stepscope.reference_workloads.suite.cases import SuiteCase, SuiteRun, find_cases
from stepscope.reference_workloads.suite.results import SuiteFolder, SuiteRunResult
from stepscope.reference_workloads.suite.runner import KEEP_TRACES, SuiteOptions, run_suite, smallest_changes, tidy_up
from stepscope.reference_workloads.suite.score import CaseOutcome, score_case
from stepscope.training import Schedule
from stepscope.workflow.analyze import analyze

pytest.importorskip("torch")


@dataclass(frozen=True, slots=True)
class Breaks(Injection):
    """Training fails with an error of no kind that is expected."""

    name: ClassVar[str] = "breaks"
    cause: ClassVar[Cause] = Cause.HOST_BOUND
    shows: ClassVar[str] = "nothing"

    def prepare(self, site: FaultSite) -> None:
        raise RuntimeError(f"broken on purpose on rank {site.rank}")


def short(run: SuiteRun) -> SuiteRun:
    schedule = Schedule(first=4, warmup=1, active=2, repeat=1)
    return SuiteRun(run.name, replace(run.job, num_steps=8, schedule=schedule, simulate_ms=8.0))


@pytest.fixture
def cases() -> list[SuiteCase]:
    chosen = find_cases("tiny", only=["one-healthy", "one-slow_loader"])
    small = [replace(case, run=short(case.run), control=short(case.control)) for case in chosen]
    broken = SuiteRun("one-breaks", replace(small[0].run.job, injections=(Breaks(),)))
    return [small[0], SuiteCase("one-breaks", "one", Breaks(), broken, small[0].control), small[1]]


class StoppedError(Exception):
    """Stands for whatever ends the suite between two runs."""


def test_a_stopped_suite_goes_on_and_a_failing_case_stops_nothing(cases: list[SuiteCase], tmp_path: Path) -> None:
    folder = SuiteFolder(tmp_path / "suite")

    def stop_after_the_first(line: str) -> None:
        raise StoppedError(line)

    options = SuiteOptions(keep_traces="trimmed")
    with pytest.raises(StoppedError):
        run_suite(cases, folder, options, stop_after_the_first)
    kept = {path.name: path.stat().st_mtime_ns for path in folder.results.iterdir()}
    assert list(kept) == ["one-healthy.json"]
    (folder.runs / "one-slow_loader").mkdir()  # of a run that was killed
    (folder.runs / "one-slow_loader" / "run.json").write_text("{}")

    lines: list[str] = []
    runs = run_suite(cases, SuiteFolder(tmp_path / "suite"), options, lines.append)
    assert runs.is_complete
    assert (folder.results / "one-healthy.json").stat().st_mtime_ns == kept["one-healthy.json"]
    assert set(runs.by_name) == {"one-healthy", "one-breaks", "one-slow_loader"}
    rows = [score_case(case, runs.by_name[case.run.name], runs.by_name[case.control.name]) for case in cases]
    assert "broken on purpose" in rows[1].why
    assert rows[1].outcome is CaseOutcome.FAILED
    assert rows[2].outcome is CaseOutcome.RIGHT, rows[2]
    assert rows[2].severity is not None
    assert rows[2].severity > 1.1, "640 ms of loading beside 50 ms of layers, on a machine with other work"
    _check_fixture(tmp_path / "suite" / "fixtures" / "one-slow_loader")
    assert not list(folder.runs.rglob("*.json.gz")), "the traces are in the fixture"

    again = run_suite(cases, folder, replace(options, budget_seconds=1e-3), lines.append)
    assert again.is_complete, "nothing is left to run"
    changed = [replace(case, run=SuiteRun(case.run.name, replace(case.run.job, seed=1))) for case in cases[1:]]
    told: list[tuple[int, int, str]] = []
    cut = run_suite(
        [cases[0], *changed], folder, replace(options, budget_seconds=1e-3), lines.append, lambda *at: told.append(at)
    )
    assert not cut.is_complete
    assert set(cut.by_name) == {"one-healthy", "one-breaks"}, "of changed cases one is run, however short the time"
    assert told == [(1, 3, "one-breaks")]
    assert "goes on from here" in lines[-1]


def _check_fixture(folder: Path) -> None:
    truth = json.loads((folder / "truth.json").read_text())
    assert truth["same_verdict"]
    assert truth["expected"] == ["data_loading"]
    assert analyze([str(folder)], keep=False).analysis.verdict.cause is Cause.DATA_LOADING
    (trace,) = folder.glob("traces/step*/rank0.json.gz")
    assert trace.stat().st_size < 10_000
    assert json.loads((folder / "run.json").read_text())["environment"] == {}


def test_of_a_fix_in_several_degrees_the_control_has_made_the_least() -> None:
    fixes = [
        Fix(Cause.PIPELINE_BUBBLE, 407.0, 1.31, "the same batch in 8 micro-batches instead of 2"),
        Fix(Cause.PIPELINE_BUBBLE, 450.0, 1.18, "the same batch in 4 micro-batches instead of 2"),
        Fix(Cause.HOST_BOUND, 530.0, 1.0, "without CPU launch delays"),
    ]
    for order in (fixes, fixes[::-1]):
        steps = {cause: fix.step_ms for cause, fix in smallest_changes(order).items()}
        assert steps == {Cause.PIPELINE_BUBBLE: 450.0, Cause.HOST_BOUND: 530.0}


@pytest.mark.parametrize("keeps_traces", [True, False])
def test_checkpoints_are_deleted_and_traces_as_asked(tmp_path: Path, keeps_traces: bool) -> None:
    for file in ("run.json", "checkpoints/step3/.metadata", "traces/step5/rank0.json.gz", "steps/rank0.jsonl"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    tidy_up(tmp_path, keeps_traces=keeps_traces)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"run.json", "steps"} | ({"traces"} if keeps_traces else set())


def _made(cause: Cause | None, error: str | None) -> Callable[[SuiteRun, SuiteFolder, str], SuiteRunResult]:
    """Stands for a run that left traces and was called, or failed."""

    def make(run: SuiteRun, folder: SuiteFolder, fingerprint: str) -> SuiteRunResult:
        trace = folder.runs / run.name / "traces" / "step5" / "rank0.json.gz"
        trace.parent.mkdir(parents=True)
        trace.write_bytes(b"trace")
        return SuiteRunResult(run.name, fingerprint, 1.0, cause=cause, error=error)

    return make


def test_traces_stay_where_no_fixture_can_be_written(
    cases: list[SuiteCase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SuiteFolder(tmp_path / "suite")
    with folder.held():
        (folder.path / "fixtures").write_text("a file in its place")
    monkeypatch.setattr(suite_run, "_make", _made(Cause.COMPUTE_BOUND, None))
    lines: list[str] = []
    run_suite(cases[:1], folder, SuiteOptions(keep_traces="trimmed"), lines.append)
    assert list(folder.runs.rglob("*.json.gz"))
    assert "no fixture of one-healthy, whose traces stay" in lines[0]


def test_traces_of_a_control_that_is_no_case_go_without_a_fixture(
    cases: list[SuiteCase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SuiteFolder(tmp_path / "suite")
    monkeypatch.setattr(suite_run, "_make", _made(Cause.COMPUTE_BOUND, None))
    monkeypatch.setattr(suite_run, "write_fixture", lambda *_: None)
    run_suite(cases[2:], folder, SuiteOptions(keep_traces="trimmed"), print)
    assert len(list(folder.results.iterdir())) == 2
    assert not list(folder.runs.rglob("*.json.gz"))


@pytest.mark.parametrize("keep_traces", KEEP_TRACES)
def test_a_failed_run_keeps_its_traces_and_tells_what_is_left_of_it(
    cases: list[SuiteCase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_traces: str
) -> None:
    folder = SuiteFolder(tmp_path / "suite")
    monkeypatch.setattr(suite_run, "_make", _made(None, "it failed"))
    result = run_suite(cases[:1], folder, SuiteOptions(keep_traces=keep_traces), print).by_name["one-healthy"]
    assert result.artefacts == ([] if keep_traces == "none" else ["traces/step5/rank0.json.gz"])
    assert all((folder.runs / "one-healthy" / path).is_file() for path in result.artefacts)
    assert len(list(folder.runs.rglob("*.json.gz"))) == len(result.artefacts)


def test_a_suite_whose_devices_are_not_here_is_refused_before_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = SuiteFolder(tmp_path / "suite")
    with pytest.raises(UsageError, match="no CUDA device"):
        run_suite(find_cases("one-gpu", only=["one-healthy"]), folder, SuiteOptions(), print)
    assert not folder.path.exists()


def test_a_launchers_rank_starts_no_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UsageError, match="RANK: is set by a launcher, and a suite starts its own ranks"):
        run_suite([], SuiteFolder(tmp_path / "suite"), SuiteOptions(), print)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["code_digest", "device_name", "torch_version"])
def test_results_of_other_code_or_of_another_device_or_torch_are_made_again(
    cases: list[SuiteCase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    folder = SuiteFolder(tmp_path / "suite")
    made: list[str] = []

    def make(run: SuiteRun, _folder: SuiteFolder, fingerprint: str) -> SuiteRunResult:
        made.append(run.name)
        return SuiteRunResult(run.name, fingerprint, 1.0)

    monkeypatch.setattr(suite_run, "_make", make)
    for _ in range(2):
        run_suite(cases[:1], folder, SuiteOptions(), print)
    assert made == ["one-healthy"]
    monkeypatch.setattr(suite_provenance, what, lambda *_: "another")
    run_suite(cases[:1], folder, SuiteOptions(), print)
    assert made == ["one-healthy"] * 2


def test_code_that_a_run_goes_through_is_in_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ("__init__.py", "analyzer/verdict.py", "cli/suite.py", "reference_workloads/suite/score.py", "py.typed")
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("1")
    monkeypatch.setattr(stepscope, "__file__", str(tmp_path / "__init__.py"))
    digest = suite_provenance.code_digest.__wrapped__
    digests = []
    for file in files:
        (tmp_path / file).write_text("2")
        digests.append(digest())
    assert [a == b for a, b in pairwise(digests)] == [False, True, True, True]
