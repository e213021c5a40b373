"""Job assignments: each job has a device once, and no process has two jobs, whichever source reports them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from stepscope.agent.jobs.job_assignments import SourceAssignment, merged_assignments
from stepscope.core.documents.jobs import Job, JobKind, JobSource, Share
from stepscope.core.hardware.devices import Device

_DEVICES = [Device(f"GPU-{number}", str(number)) for number in range(2)]
_JOBS = [
    Job(JobKind.SLURM, "1"),
    Job(JobKind.SLURM, "2"),
    Job(JobKind.KUBERNETES, "ml/a"),
    Job(JobKind.PROCESSES, "9-1"),
]
_JOB_OF_PID = {pid: _JOBS[pid % len(_JOBS)] for pid in range(8)}
_ASSIGNMENT = st.builds(
    lambda device, source, pid, job, share: SourceAssignment(
        _JOB_OF_PID[pid] if source is JobSource.PROCESS else job,
        device,
        source,
        pid if source is JobSource.PROCESS else None,
        share=share,
    ),
    st.sampled_from(_DEVICES),
    st.sampled_from(JobSource),
    st.sampled_from(sorted(_JOB_OF_PID)),
    st.sampled_from(_JOBS),
    st.sampled_from([None, None, *Share]),
)


@given(st.lists(_ASSIGNMENT, max_size=20))
def test_a_job_has_a_device_once_and_no_process_is_lost_or_doubled(assignments: Sequence[SourceAssignment]) -> None:
    found = merged_assignments(assignments)
    assert len({(one.job.key, one.device) for one in found}) == len(found)
    assigned = sorted({(assignment.device, assignment.pid) for assignment in assignments if assignment.pid is not None})
    assert sorted((one.device, pid) for one in found for pid in one.pids) == assigned
    assert {one.device for one in found} == {assignment.device for assignment in assignments}
    assert all(one.sources for one in found)
    for device in _DEVICES:
        here = [one for one in found if one.device == device]
        assert len({one.share for one in here}) <= 1
        assert len(here) < 2 or here[0].share is not Share.EXCLUSIVE


def test_facts_are_joined_and_the_first_to_tell_counts() -> None:
    job = Job(JobKind.SLURM, "1", user="eve")
    other = replace(job, user="bob", account="nlp")
    found = merged_assignments(
        [
            SourceAssignment(job, _DEVICES[0], JobSource.PROCESS, 5, "0"),
            SourceAssignment(other, _DEVICES[1], JobSource.SLURM_ENVIRONMENT, step="batch"),
            SourceAssignment(other, _DEVICES[0], JobSource.SLURM_ENVIRONMENT, step="batch"),
        ]
    )
    assert [one.job for one in found] == [Job(JobKind.SLURM, "1", user="eve", account="nlp")] * 2
    assert found[0].steps == ("0", "batch")


def test_a_pod_around_a_job_is_the_job_in_other_words_but_not_one_with_processes() -> None:
    slurm = SourceAssignment(_JOBS[0], _DEVICES[0], JobSource.PROCESS, 5, inside="ml/a")
    around = SourceAssignment(_JOBS[2], _DEVICES[0], JobSource.KUBELET)
    assert [one.job.id for one in merged_assignments([slurm, around])] == ["1"]
    own = SourceAssignment(_JOBS[2], _DEVICES[0], JobSource.PROCESS, 6)
    assert [one.job.id for one in merged_assignments([slurm, around, own])] == ["1", "ml/a"]
