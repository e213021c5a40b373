"""Slurm jobs are found in all cgroup layouts of Slurm, and squeue is called rarely."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.collectors.host.files import Files
from stepscope.collectors.jobs.processes import Process
from stepscope.collectors.jobs.slurm import (
    SlurmNames,
    SlurmNamesCollector,
    SlurmPlace,
    parse_squeue,
    slurm_array_task_of,
    slurm_jobs_on_node,
    slurm_place_in_cgroup,
    slurm_place_of,
)
from stepscope.core.metrics.readings import MissingReason


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/slurm/uid_1000/job_123/step_0/task_1", SlurmPlace("123", "0")),
        ("/slurm_node7/uid_1000/job_123/step_batch", SlurmPlace("123", "batch")),
        ("/slurm/uid_1000/job_123", SlurmPlace("123")),
        ("/system.slice/slurmstepd.scope/job_123/step_extern/user/task_special", SlurmPlace("123", "extern")),
        ("/system.slice/node7_slurmstepd.scope/job_123/step_0/user/task_0", SlurmPlace("123", "0")),
        ("/kubepods.slice/kubepods-pod1.slice/crio-1.scope/slurm/uid_0/job_9/step_2", SlurmPlace("9", "2")),
        ("/system.slice/slurmstepd.scope/system", None),
        ("/system.slice/slurmd.service", None),
        ("/user.slice/job_123", None),
        ("/", None),
    ],
)
def test_the_job_of_a_cgroup(path: str, place: SlurmPlace | None) -> None:
    assert slurm_place_in_cgroup(path) == place


@pytest.mark.parametrize("job_id", ["٣", "12\n3", "9" * 11, "abc", "1,2", "-1", ""])
def test_a_number_that_no_job_has_is_no_job(job_id: str) -> None:
    process = Process(7, 1, 1, 7, "sh", ("sh",), 1000, (), {"SLURM_JOB_ID": job_id})
    assert slurm_place_of(process) is None
    in_array = replace(process, variables={"SLURM_ARRAY_JOB_ID": job_id, "SLURM_ARRAY_TASK_ID": "1"})
    assert slurm_array_task_of(in_array) == ""
    in_job = replace(process, variables={"SLURM_JOB_ID": "42", "SLURM_STEP_ID": job_id})
    assert slurm_place_of(in_job) == SlurmPlace("42")


def _procs(root: Path, folder: str, *pids: int) -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


def test_jobs_of_version_2_without_the_daemons_that_keep_them(tmp_path: Path) -> None:
    scope = "sys/fs/cgroup/system.slice/node7_slurmstepd.scope"
    _procs(tmp_path, "sys/fs/cgroup")
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory\n")
    _procs(tmp_path, f"{scope}/job_5/step_batch/slurm", 10)
    _procs(tmp_path, f"{scope}/job_5/step_batch/user/task_special", 12, 11)
    _procs(tmp_path, f"{scope}/job_5/step_0/user/task_0", 20)
    _procs(tmp_path, f"{scope}/job_5/step_0/user/task_1", 21)
    _procs(tmp_path, f"{scope}/job_6/step_extern/user/task_special", 30)
    _procs(tmp_path, f"{scope}/system", 1)
    found = slurm_jobs_on_node(Files(tmp_path))
    assert {job: one.pids for job, one in found.items()} == {
        "5": {"batch": [11, 12], "0": [20, 21]},
        "6": {"extern": [30]},
    }
    assert all(one.minors is None for one in found.values())


def test_jobs_of_version_1_and_the_devices_they_may_open(tmp_path: Path) -> None:
    lines = [
        f"3{n} 1 0:3{n} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}"
        for n, name in enumerate(("memory", "devices"))
    ]
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/mountinfo").write_text("\n".join(lines) + "\n")
    _procs(tmp_path, "sys/fs/cgroup/memory/slurm/uid_7/job_5/step_0/task_0", 20)
    _procs(tmp_path, "sys/fs/cgroup/devices/slurm/uid_7/job_5/step_0", 20)
    allowed = "c 1:5 rwm\nc 195:2 rwm\nc 195:5 rw\nc 195:254 rw\nc 195:255 rwm\nb 8:0 r\n"
    (tmp_path / "sys/fs/cgroup/devices/slurm/uid_7/job_5/devices.list").write_text(allowed)
    (found,) = slurm_jobs_on_node(Files(tmp_path)).values()
    assert found.pids == {"0": [20]}
    assert found.minors == ["2", "5"]


def test_a_machine_without_slurm_has_no_jobs(tmp_path: Path) -> None:
    assert slurm_jobs_on_node(Files(tmp_path)) == {}


def test_lines_of_squeue() -> None:
    text = "123|120|3|eve|nlp|gpu|llama | of a|b\n124|124|N/A|bob|ops|debug|x\nslurm_load_jobs error\n|||||| \n"
    assert parse_squeue(text) == {
        "123": SlurmNames("eve", "nlp", "gpu", "llama | of a|b", "120_3"),
        "124": SlurmNames("bob", "ops", "debug", "x", ""),
    }


class Squeue:
    """A squeue that knows one job and writes down what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.command = folder / "squeue"
        self.asked = folder / "asked"
        self.asked.write_text("")
        self.now = 1000.0
        self.says("echo '123|123|N/A|eve|nlp|gpu|llama'")
        self.names = SlurmNamesCollector(str(self.command), clock=lambda: self.now)

    def says(self, line: str) -> None:
        self.command.write_text(f'#!/bin/sh\necho "$*" >> {self.asked}\n{line}\n')
        self.command.chmod(0o755)

    @property
    def questions(self) -> list[str]:
        return self.asked.read_text().splitlines()


@pytest.fixture
def squeue(tmp_path: Path) -> Squeue:
    return Squeue(tmp_path)


def test_bug_24_squeue_is_asked_once_for_all_new_jobs_and_misses_are_remembered(squeue: Squeue) -> None:
    squeue.names.collect()
    assert squeue.questions == []
    squeue.names.want({"123", "9"})
    for _ in range(20):
        assert not squeue.names.collect().missing
        squeue.now += 10
    assert squeue.names.names("123") == SlurmNames("eve", "nlp", "gpu", "llama", "")
    assert squeue.names.names("9") is None
    (question,) = squeue.questions
    assert question.endswith("--jobs 123,9")
    squeue.names.want({"10"})
    squeue.names.collect()
    assert len(squeue.questions) == 2
    assert squeue.names.names("123") is None  # it is over


def test_a_controller_that_is_away_is_said_and_asked_less_often(squeue: Squeue) -> None:
    squeue.says("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    squeue.names.want({"123"})
    for _ in range(30):
        (missing,) = squeue.names.collect().missing
        squeue.now += 10
    assert missing.reason is MissingReason.UNREACHABLE
    assert missing.detail == "squeue: slurm_load_jobs error: Unable to contact slurm controller"
    assert len(squeue.questions) == 2


def test_jobs_that_are_over_are_no_error(squeue: Squeue) -> None:
    squeue.says("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    squeue.names.want({"123"})
    assert not squeue.names.collect().missing


def test_a_command_that_cannot_be_run(tmp_path: Path) -> None:
    names = SlurmNamesCollector(str(tmp_path / "none"))
    names.want({"1"})
    (missing,) = names.collect().missing
    assert missing.reason is MissingReason.FAILED
