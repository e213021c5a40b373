"""Which runs a suite has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.core.errors import UsageError
from stepscope.core.vocabulary import Cause
from stepscope.reference_workloads.injections.faults import inject_faults
from stepscope.reference_workloads.suite.cases import SUITES, SuiteRun, find_cases


@pytest.mark.parametrize("preset", sorted(SUITES))
def test_no_fault_is_refused_by_its_layout(preset: str) -> None:
    for case in find_cases(preset):
        job = inject_faults(case.run.job)
        job.plan.check_preset(job.preset)


def test_two_gpus_have_eighteen_scored_cases_over_all_layouts() -> None:
    cases = find_cases("two-gpu")
    scored = [case for case in cases if case.injection is None or not case.injection.ends_run]
    assert len(scored) >= 18
    assert {case.layout for case in scored} == {"ddp", "fsdp", "tp", "pp"}
    assert [case.name for case in cases[:4]] == ["ddp-healthy", "tp-healthy", "pp-healthy", "fsdp-healthy"]


def test_names_are_unique_and_equal_controls_are_one_run() -> None:
    cases = find_cases("two-gpu")
    assert len({case.name for case in cases}) == len(cases)
    runs = {run.name: run.fingerprint for case in cases for run in (case.run, case.control)}
    assert len(set(runs.values())) == len(runs)
    by_name = {case.name: case for case in cases}
    assert by_name["ddp-slow_loader"].control.name == "ddp-healthy"
    assert by_name["ddp-no_overlap"].control.name != "ddp-healthy"


def test_a_changed_definition_changes_only_its_own_fingerprint() -> None:
    first, second, *_ = find_cases("tiny")
    changed = SuiteRun(first.run.name, replace(first.run.job, num_steps=first.run.job.num_steps + 1))
    assert changed.fingerprint != first.run.fingerprint
    assert find_cases("tiny")[1].run.fingerprint == second.run.fingerprint
    elsewhere = SuiteRun("other", replace(first.run.job, out="elsewhere", run="other"))
    assert elsewhere.fingerprint == first.run.fingerprint


def test_cases_are_chosen_by_name_or_pattern() -> None:
    assert [case.name for case in find_cases("tiny", only=["pp-healthy"])] == ["pp-healthy"]
    assert {case.layout for case in find_cases("tiny", only=["ddp-*"])} == {"ddp"}
    with pytest.raises(UsageError, match='unknown case "nothing"; known: ddp-healthy'):
        find_cases("tiny", only=["nothing"])
    with pytest.raises(UsageError, match='unknown preset of the suite "cluster"; known: tiny'):
        find_cases("cluster")


def test_hangs_and_memory_faults_end_their_runs() -> None:
    ends = {case.injection.cause for case in find_cases("two-gpu") if case.injection and case.injection.ends_run}
    assert ends == {Cause.HANG, Cause.OUT_OF_MEMORY}
