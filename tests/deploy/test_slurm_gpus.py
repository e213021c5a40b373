"""Slurm prolog and epilog check the GPUs of the job. With the real command, on fake nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml
from tests.collectors.fake_nvml.profiles import h100, mig_instance

_ROOT = Path(__file__).resolve().parents[2]
_NUM_GPUS = 8
"""No machine that runs the tests has more on its bus."""

Scripts = Callable[..., tuple[int, str, str]]


def instance(gpu: int, slot: int) -> str:
    """UUID of a MIG instance, as the fake NVML has it."""
    return f"MIG-{gpu:04x}{slot:04x}-0000-4000-8000-000000000000"


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> FakeNvml:
    """Eight H100s, of which minor number and index count in opposite directions."""
    fake = FakeNvml(build_fake_nvml(tmp_path_factory.getbasetemp() / "fake_nvml"), tmp_path / "nvml.conf")
    for index in range(_NUM_GPUS):
        fake.add(h100(index))
    fake.write()
    return fake


@pytest.fixture(params=["prolog", "epilog"])
def run(request: pytest.FixtureRequest, node: FakeNvml, tmp_path: Path) -> Scripts:
    """Runs a script for a job: its exit code, what it asked of others, the report."""
    calls = tmp_path / "calls"
    (tmp_path / "faults.json").write_text("{}")
    command = f'exec {sys.executable} {Path(__file__).with_name("fake_node.py")} "$@"'
    programs = {name: f'echo "{name} $*" >>{calls}' for name in ("logger", "scontrol")} | {"stepscope": command}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    no_torch = tmp_path / "no_torch" / "torch"
    no_torch.mkdir(parents=True)
    (no_torch / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")

    def run_script(
        gpus: str, *, visible: str | None = None, expected: str = "", has_torch: bool = True
    ) -> tuple[int, str, str]:
        calls.write_text("")
        if not has_torch:
            (tmp_path / "stepscope").write_text(f'#!/bin/sh\nexec {sys.executable} -m stepscope "$@"\n')
        environment = {
            **node.environment(),
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(_ROOT) if has_torch else f"{no_torch.parent}:{_ROOT}",
            "FAKE_GPUS": str(tmp_path / "faults.json"),
            "FAKE_GPU_COUNT": node.values["gpus"],
            "SLURM_JOB_ID": "17",
            "SLURMD_NODENAME": "n1",
            "STEPSCOPE_PREFLIGHT_LOGS": str(tmp_path / "logs"),
            "STEPSCOPE_EXPECTED_GPUS": expected,
            "SLURM_JOB_GPUS": gpus,
            "CUDA_VISIBLE_DEVICES": gpus if visible is None else visible,  # as Slurm sets it for them
        }
        ended = subprocess.run([str(_ROOT / f"deploy/slurm/{request.param}.sh")], env=environment, timeout=120)
        (report,) = (tmp_path / "logs").glob("*-17.txt")
        return ended.returncode, calls.read_text(), report.read_text()

    return run_script


def split(node: FakeNvml) -> None:
    """Two GPUs of seven instances each."""
    node.values["gpus"] = "2"
    for gpu in range(2):
        node.set(gpu, mig_mode=1)
        for slot in range(7):
            node.set(gpu, **mig_instance(gpu, slot, gpu_instance=7 + slot))
    node.write()


def drained_for(told: tuple[int, str, str]) -> str:
    """The reason; empty where the job goes on and the node stays."""
    code, calls, _ = told
    if "scontrol" not in calls:
        assert code == 0
        return ""
    reason = calls.splitlines()[-1].partition(": ")[2]
    assert code == (1 if "Reason=stepscope preflight: " in calls else 0)
    return reason


def test_the_broken_gpu_drains_the_node_for_its_own_job_alone(run: Scripts, node: FakeNvml) -> None:
    """The one of index 0 is /dev/nvidia7, and Slurm's 7."""
    node.set(0, ecc__1__0=1)
    node.write()
    assert drained_for(run("7")).startswith("FAIL  gpu 0  ecc: ")
    told = run("0")
    assert drained_for(told) == ""
    assert told[1] == ""
    assert "preflight passed: 1 of 1" in told[2]


def test_numbers_of_instances_have_all_gpus_checked_and_drain_no_node_that_is_well(
    run: Scripts, node: FakeNvml
) -> None:
    split(node)
    told = run("9")
    assert drained_for(told) == ""
    assert told[1] == ""
    assert "preflight passed: 2 of 2" in told[2]
    assert "warning: Slurm's 9 identifies no GPU on a machine with MIG" in told[2]


def test_an_instance_is_checked_by_its_gpu(run: Scripts, node: FakeNvml) -> None:
    split(node)
    node.set(0, ecc__1__0=1)
    node.write()
    for told in (run(instance(1, 3)), run("9", visible=instance(1, 3))):
        assert drained_for(told) == ""
        assert "preflight passed: 1 of 1" in told[2]
    assert drained_for(run(instance(0, 3))).startswith("FAIL  gpu 0  ecc: ")


def test_an_instance_that_there_is_not_lets_the_job_start(run: Scripts, node: FakeNvml) -> None:
    split(node)
    told = run(instance(5, 5))
    assert drained_for(told) == ""
    assert "exit code 2" in told[1]
    assert f"Slurm's {instance(5, 5)} is no GPU here" in told[2]


@pytest.mark.parametrize("names", ["0,1,2,3,4,5,6,7", "0", "GPU-00000007-0000-4000-8000-000000000000"])
def test_a_gpu_that_is_gone_from_driver_and_bus_drains_the_node(run: Scripts, node: FakeNvml, names: str) -> None:
    """The one of index 7 was /dev/nvidia0."""
    node.values["gpus"] = "7"
    node.write()
    gone = names[names.find("G") :] if "G" in names else "0"
    assert drained_for(run(names)).startswith(f"FAIL  driver: Slurm names GPU {gone}, which the driver does not know")
    assert drained_for(run("7")) == ""


def test_a_node_with_fewer_gpus_than_expected_is_drained_by_any_job(run: Scripts, node: FakeNvml) -> None:
    assert drained_for(run("7", expected="8")) == ""
    node.values["gpus"] = "7"
    node.write()
    assert drained_for(run("7", expected="8")).startswith("FAIL  driver: the driver knows 7 of 8 GPUs")
    split(node)
    assert drained_for(run(instance(5, 5), expected="8")).startswith("FAIL  driver: the driver knows 2 of 8 GPUs")


def test_a_lost_gpu_is_the_one_whose_number_no_other_has(run: Scripts, node: FakeNvml) -> None:
    node.set(2, lost=1)
    node.write()
    assert drained_for(run("5")).startswith("FAIL  gpu 2  driver: ")
    assert drained_for(run("4")) == ""


def test_a_number_of_gpus_that_is_none_is_said_and_passed_over(run: Scripts) -> None:
    code, calls, _ = run("0", expected="eight")
    assert code == 0
    assert "STEPSCOPE_EXPECTED_GPUS is not a number: eight" in calls
    assert "scontrol" not in calls


def test_with_the_agents_extra_alone_a_lost_gpu_drains_the_node(run: Scripts, node: FakeNvml) -> None:
    code, calls, report = run("5", has_torch=False)
    assert code == 0
    assert "scontrol" not in calls
    assert "preflight passed: 1 of 1" in report
    if "preflight of job" in calls:  # the prolog, which would measure
        assert "nothing was measured (exit code 2: stepscope: torch is not installed;" in calls
        assert "the driver reports no fault" in calls
    node.set(2, lost=1)
    node.write()
    assert drained_for(run("5", has_torch=False)).startswith("FAIL  gpu 2  driver: ")
    assert drained_for(run("4", has_torch=False)) == ""
