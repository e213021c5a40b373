"""`stepscope preflight`: exit codes of the contract, and one line where nothing can be measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from stepscope.cli import main
from stepscope.core.documents.machine_checks import CheckResult, Outcome, Preflight, PreflightGpu
from stepscope.core.errors import UnreachableError
from stepscope.core.vocabulary import Notice
from stepscope.workflow.preflight.workers import PreflightRequest


def document(outcome: Outcome) -> Preflight:
    checks = [
        CheckResult(
            "memory_bandwidth", (0,), Outcome.PASS, value=2.9e12, unit="bytes/s", expected=2.7e12, fail_below=2e12
        ),
        CheckResult(
            "memory_bandwidth",
            (1,),
            outcome,
            "too slow",
            value=1.1e12,
            unit="bytes/s",
            expected=2.7e12,
            fail_below=2e12,
        ),
        CheckResult("peer_copy", (0, 1), Outcome.PASS, value=380e9, unit="bytes/s"),
        CheckResult("matmul_float8", (0,), Outcome.SKIPPED, "no units"),
        CheckResult("matmul_float8", (1,), Outcome.SKIPPED, "no units"),
    ]
    gpus = [PreflightGpu(i, "NVIDIA H100 80GB HBM3", "", "", o) for i, o in ((0, Outcome.PASS), (1, outcome))]
    warnings = [Notice("cuda_sees_no_gpu", "tried alone")]
    versions = {"torch": "2.9.0"}
    return Preflight("stepscope.preflight/1", "n1", "cuda", 0, 12.3, True, versions, outcome, gpus, checks, warnings)


def run(monkeypatch: pytest.MonkeyPatch, answer: Preflight | Exception, *arguments: str) -> int:
    def run_preflight(*_: Any, **__: Any) -> Preflight:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("stepscope.workflow.preflight.phases.run_preflight", run_preflight)
    with pytest.raises(SystemExit) as ended:
        main(["preflight", *arguments])
    return int(ended.value.code or 0)


def test_a_failure_ends_with_1_and_names_the_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, document(Outcome.FAIL)) == 1
    said = capsys.readouterr()
    assert said.err == "warning: tried alone\n"
    assert said.out.splitlines() == [
        "n1: 2 x NVIDIA H100 80GB HBM3 (torch 2.9.0)",
        "",
        "check             result  measured             expected",
        "memory_bandwidth  fail    1,100 to 2,900 GB/s  2,700 (fails below 2,000)",
        "peer_copy         pass    380 GB/s",
        "",
        "FAIL  gpu 1  memory_bandwidth: 1,100 GB/s, too slow",
        "",
        "skipped  gpu 0-1  matmul_float8: no units",
        "",
        "preflight failed: gpu 1 (12 s)",
    ]


def test_a_warning_passes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    junit = tmp_path / "j.xml"
    assert run(monkeypatch, document(Outcome.WARN), "--json", "--junit", str(junit)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["outcome"] == "warn"
    assert found["checks"][2] | {"gpus": [0, 1], "value": 380e9} == found["checks"][2]
    suite = Xml.parse(junit).find("testsuite")
    assert suite is not None
    assert suite.attrib == {
        "name": "stepscope preflight", "tests": "5", "failures": "0", "errors": "0", "skipped": "2"
    }  # fmt: skip
    assert [case.get("name") for case in suite.findall("testcase")][2] == "peer_copy gpu 0 to 1"
    output = suite.find("system-out")
    assert output is not None
    assert output.text == "memory_bandwidth gpu 1: too slow\ntried alone"


def test_a_driver_that_does_not_answer_ends_with_4(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, UnreachableError("the driver hangs", what_next="reboot")) == 4
    assert capsys.readouterr().err == "stepscope: the driver hangs; reboot\n"


def test_a_gpu_that_told_no_name_leaves_no_gap(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = document(Outcome.FAIL)
    run(monkeypatch, replace(told, gpus=[told.gpus[0], replace(told.gpus[1], name="")]))
    assert capsys.readouterr().out.startswith("n1: 2 x NVIDIA H100 80GB HBM3 (torch")
    run(monkeypatch, replace(told, gpus=[replace(told.gpus[1], name="")]))
    assert capsys.readouterr().out.startswith("n1: 1 x GPU of unknown name (torch")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[PreflightRequest]:
    """What the command asks for; all of it passes."""
    requests: list[PreflightRequest] = []

    def run_preflight(request: PreflightRequest, **_: Any) -> Preflight:
        requests.append(request)
        return document(Outcome.PASS)

    monkeypatch.setattr("stepscope.workflow.preflight.phases.run_preflight", run_preflight)
    return requests


def test_the_driver_too_is_waited_for_no_longer_than_is_asked(asked: list[PreflightRequest]) -> None:
    for timeout in ("5", "60"):
        with pytest.raises(SystemExit):
            main(["preflight", "--timeout", timeout])
    assert [(request.seconds, request.driver_seconds) for request in asked] == [(5.0, 5.0), (60.0, 15.0)]


def test_gpus_may_be_named_as_slurm_does(asked: list[PreflightRequest]) -> None:
    for names in ("7,0-2,0", "MIG-17", "NoDevFiles"):
        with pytest.raises(SystemExit):
            main(["preflight", "--slurm-gpus", names])
    assert [request.slurm_gpus for request in asked] == [("7", "0", "1", "2"), ("MIG-17",), ()]
    assert {request.gpus for request in asked} == {None}


def test_how_many_gpus_there_must_be_is_told_by_option_or_as_to_the_agent(
    asked: list[PreflightRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    for told, arguments in (("", []), ("", ["--expected-gpus", "4"]), ("8", []), ("8", ["--expected-gpus", "4"])):
        monkeypatch.setenv("STEPSCOPE_AGENT__HEALTH__EXPECTED_GPUS", told)
        with pytest.raises(SystemExit):
            main(["preflight", *arguments])
    assert [request.expected_gpus for request in asked] == [0, 4, 8, 4]


def test_a_gpu_that_is_not_here_leaves_no_gap(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = CheckResult("driver", (), Outcome.FAIL, "there is no GPU GPU-17 here")
    alone = CheckResult("all_reduce", (), Outcome.SKIPPED, "needs two working GPUs")
    told = document(Outcome.FAIL)
    run(monkeypatch, replace(told, checks=[absent, *told.checks]))
    said = capsys.readouterr().out
    assert "\nFAIL  driver: there is no GPU GPU-17 here\n" in said
    assert said.endswith("\npreflight failed: gpu 1 and a GPU that is not here (12 s)\n")
    run(monkeypatch, replace(told, checks=[absent, alone]))
    said = capsys.readouterr().out
    assert "\nskipped  all_reduce: needs two working GPUs\n" in said
    assert said.endswith("\npreflight failed: a GPU that is not here (12 s)\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--checks", "memory,speed"],
        ["--timeout", "0"],
        ["--expected-gpus", "-1"],
        ["--device", "tpu"],
        ["--gpus", "0", "--slurm-gpus", "0"],
        ["--slurm-gpus", "0", "--device", "cpu"],
    ],
)
def test_wrong_use_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["preflight", *arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_without_a_gpu_it_ends_with_3_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit) as ended:
        main(["preflight"])
    assert ended.value.code == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_a_junit_file_that_cannot_be_written_hides_no_unfit_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "j.xml").mkdir()
    monkeypatch.setattr("click.Path.convert", lambda _self, value, *_: Path(value))  # it is made meanwhile
    assert run(monkeypatch, document(Outcome.FAIL), "--junit", str(tmp_path / "j.xml")) == 1
    told = capsys.readouterr()
    assert "FAIL  gpu 1" in told.out
    assert "cannot be written" in told.err
    assert run(monkeypatch, document(Outcome.PASS), "--junit", str(tmp_path / "j.xml")) == 3
    assert run(monkeypatch, document(Outcome.PASS), "--junit", str(tmp_path / "missing" / "j.xml")) == 2
