"""Which GPUs of many machines does somebody want to see?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stepscope.core.analysis import Notice
from stepscope.core.health import HealthState
from stepscope.core.jobs import Job, JobKind
from stepscope.core.node import NodeDevice, NodeJob
from stepscope.workflow.nodes import NodeAnswer

_KINDS = frozenset(JobKind)
_SICK = frozenset({HealthState.DEGRADED.value, HealthState.FAILED.value})


def chosen(answers: Iterable[NodeAnswer], *, job: str = "", sick: bool = False) -> tuple[NodeAnswer, ...]:
    """Their answers with the devices that are wanted alone; machines without any are left out.

    Args:
        answers: of the agents.
        job: name or id of a job that has the device; empty: any or none.
        sick: those that do not answer or are not well, and agents that do not answer.
    """
    answers = tuple(answers)
    if not job and not sick:
        return answers
    found = []
    for answer in answers:
        devices = answer.node.devices if answer.node else ()
        wanted = tuple(one for one in devices if (not job or _has(one, job)) and (not sick or _is_sick(one)))
        if wanted or (sick and answer.error and not job):
            found.append(replace(answer, node=replace(answer.node, devices=wanted) if answer.node else None))
    return tuple(found)


def unknown_job(answers: Iterable[NodeAnswer], job: str) -> tuple[Notice, ...]:
    """A warning where a job is asked for that no device has, on none of the machines that answer."""
    answers = tuple(answers)
    answering = any(answer.node for answer in answers)
    if not job or not answering or any(answer.node for answer in chosen(answers, job=job)):
        return ()
    return (
        Notice("job_unknown", f"no GPU of a job called {job!r} is known to these agents; --job takes a name or id"),
    )


def _has(device: NodeDevice, text: str) -> bool:
    return any(_job(job).is_called(text) for job in device.jobs if job.kind in _KINDS)


def _job(job: NodeJob) -> Job:
    return Job(JobKind(job.kind), job.id, job.name, workload=job.workload)


def _is_sick(device: NodeDevice) -> bool:
    return device.is_up is False or (device.health is not None and device.health.state in _SICK)
