"""How do assignments and time stand in readings? Labels are bounded in length, series in number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

from stepscope.agent.jobs.ledger import UseLedger
from stepscope.collectors.jobs.devices import Device
from stepscope.core.gpu_metrics import GPU
from stepscope.core.job_metrics import JOB
from stepscope.core.jobs import Assignment, Job, job_facts, job_labels
from stepscope.core.label_texts import LONGEST_ID, label_text
from stepscope.core.readings import Labels, Reading, labels_of, with_labels

MOST_ASSIGNMENTS = 512
"""16 GPUs of 7 instances with 4 jobs each are 448."""
_MOST_STEPS = 8


def bounded(job: Job) -> Job:
    """The job with texts that can be labels: printable, and not endless."""
    facts = {one.name: label_text(getattr(job, one.name)) for one in fields(Job) if one.name not in ("kind", "id")}
    return Job(job.kind, label_text(job.id, LONGEST_ID), **facts)


def readings_of(
    assignments: Sequence[Assignment],
    jobs: Iterable[Job],
    devices: Iterable[Device],
    ledger: UseLedger,
    time_ns: int,
) -> list[Reading]:
    """All of it.

    Args:
        assignments: with bounded jobs, at most `MOST_ASSIGNMENTS`.
        jobs: all of which there is time to tell: who joins the two finds those that ended, too.
        devices: of the machine.
        ledger: of their time.
        time_ns: now, ns since the epoch.
    """
    by_labels = {device.labels: device for device in devices}
    found: list[Reading] = []

    def add(metric: str, value: float, labels: Labels) -> None:
        found.append(Reading(metric, value, tuple(sorted(labels)), time_ns))

    for job in jobs:
        add(JOB + "info", 1.0, (*job_labels(job), *job_facts(job)))
    for one in assignments:
        key = (*one.device, *job_labels(one.job))
        how = labels_of(share=one.share, source="+".join(one.sources))
        steps = "+".join(map(label_text, one.steps[:_MOST_STEPS]))
        how += labels_of(step=steps) if steps else ()
        add(GPU + "job_info", 1.0, (*key, *how))
        for pid in one.pids:
            add(JOB + "process_info", 1.0, (*key, ("pid", str(pid))))
        device = by_labels.get(one.device)
        if device is not None:
            for metric, value in _use_of(one, device).items():
                add(metric, value, key)
    for labels, state in ledger.states().items():
        add(GPU + "use_state", 1.0, with_labels(labels, state=state))
    for (labels, state), seconds in ledger.device_seconds().items():
        add(GPU + "use_seconds_total", seconds, with_labels(labels, state=state))
    for ((kind, job_id), profile, state), seconds in ledger.job_seconds().items():
        further = labels_of(mig_profile=profile, state=state) if profile else labels_of(state=state)
        add(JOB + "gpu_seconds_total", seconds, (*job_labels(Job(kind, job_id)), *further))
    return found


def _use_of(one: Assignment, device: Device) -> Mapping[str, float]:
    """What a job's own processes use of a device. What is the whole device's stays there: it would count twice."""
    held = [device.holders[pid] for pid in one.pids if pid in device.holders]
    values = {}
    memory = [holder.memory_bytes for holder in held if holder.memory_bytes is not None]
    if held and len(memory) == len(held):
        values[JOB + "gpu_memory_bytes"] = float(sum(memory))
    if held and any(holder.sm_ratio is not None for holder in device.holders.values()):  # none of those that rest
        values[JOB + "sm_utilization_ratio"] = min(1.0, sum(holder.sm_ratio or 0.0 for holder in held))
    return values
