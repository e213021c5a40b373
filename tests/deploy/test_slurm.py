"""Slurm prolog and epilog drain a node with a failed GPU, and no other."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_SCRIPTS = Path(__file__).resolve().parents[2] / "deploy" / "slurm"


def run(
    script: str,
    folder: Path,
    code: int,
    *,
    said: str = "",
    by_state: tuple[int, str] | None = None,
    gpus: str = "0,1",
    seconds: str = "20",
    logs: str = "",
) -> tuple[int, str]:
    """Its exit code, and what it asked of others.

    Args:
        code, said: how stepscope ends, and its output; `by_state`: where it checks the state alone.
    """
    calls = folder / "calls"
    calls.write_text("")
    state_code, state_said = by_state or (code, said)
    of_state = f'case "$*" in *"--checks state"*) echo "{state_said}"; exit {state_code};; esac; ' if by_state else ""
    programs = {
        "stepscope": f'echo "stepscope $*" >>{calls}; {of_state}'
        f'echo "{said}"; {"sleep 30" if code == 124 else f"exit {code}"}',
        "logger": f'echo "logger $*" >>{calls}',
        "scontrol": f'echo "scontrol $*" >>{calls}',
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "17",
        "SLURMD_NODENAME": "n1",
        "STEPSCOPE_PREFLIGHT_LOGS": logs or str(folder / "logs"),
        "STEPSCOPE_PREFLIGHT_SECONDS": seconds,
        **({"SLURM_JOB_GPUS": gpus} if gpus else {}),
    }
    ended = subprocess.run([str(_SCRIPTS / script)], env=environment, timeout=60)
    return ended.returncode, calls.read_text()


@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh"])
def test_a_job_without_gpus_and_a_node_that_is_well_are_left_alone(script: str, tmp_path: Path) -> None:
    assert run(script, tmp_path, 1, gpus="") == (0, "")
    code, calls = run(script, tmp_path, 0)
    assert code == 0
    assert "--slurm-gpus 0,1" in calls
    assert "scontrol" not in calls


@pytest.mark.parametrize(("script", "ends"), [("prolog.sh", 1), ("epilog.sh", 0)])
def test_a_failed_gpu_drains_the_node_with_the_reason(script: str, ends: int, tmp_path: Path) -> None:
    code, calls = run(script, tmp_path, 1, said="FAIL  gpu 3  ecc: 2 uncorrected memory errors")
    assert code == ends
    drained = calls.splitlines()[-1]
    assert drained.startswith("scontrol update NodeName=n1 State=DRAIN Reason=stepscope ")
    assert drained.endswith("FAIL  gpu 3  ecc: 2 uncorrected memory errors")


def test_a_preflight_that_hangs_drains_the_node(tmp_path: Path) -> None:
    code, calls = run("prolog.sh", tmp_path, 124, seconds="1")
    assert code == 1
    assert "no answer within 1 s" in calls


@pytest.mark.parametrize(("script", "ends"), [("prolog.sh", 1), ("epilog.sh", 0)])
def test_the_report_is_kept_and_where_it_cannot_be_the_reason_is_told_all_the_same(
    script: str, ends: int, tmp_path: Path
) -> None:
    run(script, tmp_path, 1, said="FAIL  gpu 3  ecc: 2 errors")
    (kept,) = (tmp_path / "logs").iterdir()
    assert kept.read_text() == "FAIL  gpu 3  ecc: 2 errors\n"
    full = tmp_path / "full"
    full.mkdir()
    for name in ("preflight-17.txt", "epilog-17.txt"):
        (full / name).symlink_to("/dev/full")
    for logs in ("/proc/nope", str(full)):
        code, calls = run(script, tmp_path, 1, said="FAIL  gpu 3  ecc: 2 errors", logs=logs)
        assert code == ends
        assert calls.splitlines()[-1].endswith("FAIL  gpu 3  ecc: 2 errors")


@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh"])
@pytest.mark.parametrize("said", ["", "Traceback (most recent call last):", "stepscope: torch is broken"])
def test_a_command_that_is_broken_drains_nothing(script: str, said: str, tmp_path: Path) -> None:
    for logs in ("", "/proc/nope"):
        code, calls = run(script, tmp_path, 1, said=said, logs=logs)
        assert code == 0
        assert "scontrol" not in calls
        assert "exit code 1" in calls


@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh"])
def test_a_driver_that_does_not_answer_has_a_reason_in_any_case(script: str, tmp_path: Path) -> None:
    assert "Reason=stepscope " in run(script, tmp_path, 4)[1]
    assert run(script, tmp_path, 4)[1].endswith(": the driver does not answer\n")
    assert run(script, tmp_path, 4, said="stepscope: nvml: no answer")[1].endswith(": stepscope: nvml: no answer\n")


@pytest.mark.parametrize(("code", "said"), [(2, "stepscope: torch is not installed"), (3, "stepscope: x"), (1, "boom")])
def test_where_nothing_can_be_measured_the_driver_is_asked(code: int, said: str, tmp_path: Path) -> None:
    lost = 1, "FAIL  gpu 3  driver: the GPU is lost"
    ended, calls = run("prolog.sh", tmp_path, code, said=said, by_state=lost)
    assert ended == 1
    assert calls.splitlines()[-1].endswith("Reason=stepscope preflight: FAIL  gpu 3  driver: the GPU is lost")
    (kept,) = (tmp_path / "logs").iterdir()
    assert kept.read_text() == f"{said}\n{lost[1]}\n"
    ended, calls = run("prolog.sh", tmp_path, code, said=said, by_state=(0, "preflight passed: 2 of 2"))
    assert ended == 0
    line = calls.splitlines()[-1]
    what = said if said.startswith("stepscope:") else ""
    assert f"preflight of job 17: nothing was measured (exit code {code}: {what}), the driver reports no fault" in line
    ended, calls = run("prolog.sh", tmp_path, code, said=said, by_state=(4, "stepscope: nvml: no answer"))
    assert (ended, calls.splitlines()[-1].partition(": ")[2]) == (1, "stepscope: nvml: no answer")


@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh"])
def test_a_check_that_could_not_run_is_named(script: str, tmp_path: Path) -> None:
    (_, calls) = run(script, tmp_path, 3, said="stepscope: no GPU")
    assert "could" in calls.splitlines()[-1]
    assert "(exit code 3: stepscope: no GPU)" in calls.splitlines()[-1]
    (tmp_path / "stepscope").unlink()
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "17", "SLURM_JOB_GPUS": "0"}
    environment["STEPSCOPE"] = "stepscope-is-not-here"
    assert subprocess.run([str(_SCRIPTS / script)], env=environment, timeout=60).returncode == 0
    assert "are not checked: there is no command stepscope-is-not-here" in (tmp_path / "calls").read_text()


@pytest.mark.parametrize("code", [2, 3])
def test_what_is_no_fault_of_the_node_lets_the_job_start(code: int, tmp_path: Path) -> None:
    ended, calls = run("prolog.sh", tmp_path, code, said="stepscope: torch is not installed")
    assert ended == 0
    assert "scontrol" not in calls
    assert "logger" in calls


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck here")
def test_the_scripts_are_clean() -> None:
    subprocess.run(["shellcheck", *map(str, _SCRIPTS.glob("*.sh"))], check=True)
