"""What do all sources say of who has which device?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from stepscope.agent.jobs.claims import Claim
from stepscope.agent.jobs.finder import Found, JobFinder
from stepscope.collectors.jobs.designations import by_minor, is_gpu_name, of_device_plugin, of_dra
from stepscope.collectors.jobs.devices import Device
from stepscope.collectors.jobs.kubernetes.pod_resources import GivenDevice
from stepscope.collectors.jobs.processes import Process, Processes
from stepscope.collectors.jobs.slurm import given_by_slurm
from stepscope.collectors.jobs.slurm_cgroups import SlurmJobHere
from stepscope.core.jobs import Job, JobKind, JobSource, Share
from stepscope.core.readings import Labels


def of_processes(
    devices: Iterable[Device], running: Mapping[int, Process], given: Iterable[Claim], finder: JobFinder
) -> Iterator[Claim]:
    """Processes that hold devices.

    Args:
        devices: of the machine.
        running: processes by id.
        given: what the kubelet says: a pod whose name is not known is one of those that have the device.
        finder: names their jobs.
    """
    pods: dict[Labels, dict[str, Job]] = {}
    for claim in given:
        pods.setdefault(claim.device, {})[claim.job.id] = claim.job
    found: dict[int, Found] = {}
    for device in devices:
        for pid, holder in device.holders.items():
            process = running.get(pid)
            if process is None:
                continue
            if pid not in found:
                found[pid] = finder.of_process(process)
            one = _named(found[pid], process, pods.get(device.labels, {}))
            is_mps = holder.is_mps or bool(process.variable("CUDA_MPS_PIPE_DIRECTORY"))
            share = Share.MPS if is_mps else None
            yield Claim(one.job, device.labels, JobSource.PROCESS, pid, one.step, share, one.inside)


def _named(found: Found, process: Process, pods: Mapping[str, Job]) -> Found:
    """With the pod's name where its uid alone was known: the device's only pod, or the one of the process's host name.

    A user can change HOSTNAME, but only to that of another pod of the same device.
    """
    is_nameless = found.job.kind is JobKind.KUBERNETES and "/" not in found.job.id
    if not is_nameless and ("/" in found.inside or not found.inside):
        return found
    like = [pod for pod in pods.values() if len(pods) == 1 or pod.name == process.variable("HOSTNAME")]
    if len(like) != 1:
        return found
    return Found(like[0]) if is_nameless else replace(found, inside=like[0].id)


def first_of_slurm(jobs: Mapping[str, SlurmJobHere], processes: Processes) -> dict[str, dict[str, Process]]:
    """Of each Slurm job and step the oldest process: it was started by Slurm, others by the user."""
    found: dict[str, dict[str, Process]] = {}
    for job_id, here in jobs.items():
        for step, pids in here.pids.items():
            read = [process for pid in pids if (process := processes.read(pid)) is not None]
            if read:
                found.setdefault(job_id, {})[step] = min(read, key=attrgetter("start"))
    return found


def of_slurm(
    jobs: Mapping[str, SlurmJobHere],
    first: Mapping[str, Mapping[str, Process]],
    devices: Sequence[Device],
    finder: JobFinder,
    unknown: list[str],
) -> Iterator[Claim]:
    """Slurm jobs that are on this node: what each may open, or what it was given.

    Args:
        jobs: by number.
        first: of each job and step the first process.
        devices: of the machine.
        finder: names them.
        unknown: takes what was given and is no device that is known.
    """
    for job_id, here in jobs.items():
        job = finder.of_slurm(job_id)
        if here.minors is not None:
            for minor in here.minors:
                device = by_minor(devices, minor)
                if device is not None:
                    yield Claim(job, device.labels, JobSource.DEVICE_CGROUP)
            continue
        for step, process in first.get(job_id, {}).items():
            given = given_by_slurm(process, devices)
            unknown += [f"{name} of Slurm job {job_id}" for name in given.unknown]
            for device in given.devices:
                yield Claim(job, device.labels, JobSource.SLURM_ENVIRONMENT, None, step)


def of_kubelet(
    given: Iterable[GivenDevice], devices: Sequence[Device], finder: JobFinder, unknown: list[str]
) -> Iterator[Claim]:
    """What the kubelet gave; `unknown` takes what is no device that is known."""
    for one in given:
        device, is_share = (of_dra(devices, one.name), False) if one.is_claim else of_device_plugin(devices, one.name)
        if device is not None:
            share = Share.TIME_SLICED if is_share else None
            job = finder.of_pod(one.namespace, one.pod)
            yield Claim(job, device.labels, JobSource.KUBELET, None, one.container, share)
        elif one.is_claim or is_gpu_name(one.name):
            unknown.append(f"{one.name} of pod {one.namespace}/{one.pod}")


def of_files(
    told: Iterable[tuple[Device, str]], slurm_jobs: Mapping[str, SlurmJobHere], finder: JobFinder
) -> Iterator[Claim]:
    """What job prologs wrote; files of jobs that are over are left behind where Slurm's cgroups say so."""
    for device, job_id in told:
        if not slurm_jobs or job_id in slurm_jobs:
            yield Claim(finder.of_slurm(job_id), device.labels, JobSource.HPC_JOB_FILE)


def of_page(devices: Iterable[Device], finder: JobFinder) -> Iterator[Claim]:
    """What a dcgm-exporter's page says."""
    for device in devices:
        for workload in device.workloads:
            job: Job | None = None
            if workload.get("job"):
                job = Job(JobKind.SLURM, workload["job"])
            elif workload.get("pod") and workload.get("namespace"):
                job = finder.of_pod(workload["namespace"], workload["pod"])
            if job is not None:
                share = Share.TIME_SLICED if workload.get("vgpu") else None
                yield Claim(job, device.labels, JobSource.DCGM_EXPORTER, None, workload.get("container", ""), share)
