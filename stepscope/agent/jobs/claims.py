"""Who has which device, when several sources tell of it?

What is sure comes first: a process that holds the device belongs to one job, by its innermost cgroup. What is only
said of a device (by the environment, the kubelet, a file, a page) adds a job that holds it without a process, unless it
is the same job in other words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace

from stepscope.core.jobs import Assignment, Job, JobKind, JobSource, Share
from stepscope.core.readings import Labels

_LAST_RESORT = frozenset({JobSource.DCGM_EXPORTER})


@dataclass(frozen=True, slots=True)
class Claim:
    """One source says that a job has a device.

    Attributes:
        job, device: which; the device by its labels.
        source: which source.
        pid: the process, where it is one that holds the device.
        step: of Slurm, or the container.
        share: how, where the source tells.
        inside: the pod in which the job's process runs, as namespace and name, where that is not the job itself.
    """

    job: Job
    device: Labels
    source: JobSource
    pid: int | None = None
    step: str = ""
    share: Share | None = None
    inside: str = ""


@dataclass(slots=True)
class _Merged:
    job: Job
    sources: list[JobSource] = field(default_factory=list)
    pids: set[int] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)
    shares: set[Share] = field(default_factory=set)
    pods: set[str] = field(default_factory=set)


def assignments(claims: Iterable[Claim]) -> list[Assignment]:
    """The claims as assignments, one for each job and device, in the order of the claims.

    A job has all facts that any claim tells of it; of two that differ the first counts.
    """
    by_device: dict[Labels, dict[tuple[JobKind, str], _Merged]] = {}
    facts: dict[tuple[JobKind, str], Job] = {}
    for claim in claims:
        jobs = by_device.setdefault(claim.device, {})
        facts[claim.job.key] = filled(facts.get(claim.job.key, claim.job), claim.job)
        merged = jobs.setdefault(claim.job.key, _Merged(claim.job))
        if claim.source not in merged.sources:
            merged.sources.append(claim.source)
        if claim.pid is not None:
            merged.pids.add(claim.pid)
        if claim.step and claim.step not in merged.steps:
            merged.steps.append(claim.step)
        if claim.share is not None:
            merged.shares.add(claim.share)
        if claim.inside:
            merged.pods.add(claim.inside)
    found = []
    for device, jobs in by_device.items():
        kept = _kept(list(jobs.values()))
        shares = set[Share]().union(*(one.shares for one in kept))
        for one in kept:
            found.append(
                Assignment(
                    facts[one.job.key],
                    device,
                    _share_of(shares, len(kept)),
                    tuple(one.sources),
                    tuple(sorted(one.pids)),
                    tuple(one.steps),
                )
            )
    return found


def _kept(merged: Sequence[_Merged]) -> list[_Merged]:
    """Without those that are others in other words: the pod in which Slurm's daemon runs its jobs, a page's copy."""
    around = set[str]().union(*(one.pods for one in merged))
    kept = [one for one in merged if one.pids or one.job.kind is not JobKind.KUBERNETES or one.job.id not in around]
    sure = [one for one in kept if not _LAST_RESORT.issuperset(one.sources)]
    return sure or kept


def filled(job: Job, other: Job) -> Job:
    """The job with what is known of it from elsewhere."""
    unknown = {one.name: getattr(other, one.name) for one in fields(Job) if not getattr(job, one.name)}
    return replace(job, **unknown) if any(unknown.values()) else job


def _share_of(told: set[Share], num_jobs: int) -> Share:
    for share in (Share.MPS, Share.TIME_SLICED):
        if share in told:
            return share
    return Share.TIME_SLICED if num_jobs > 1 else Share.EXCLUSIVE
