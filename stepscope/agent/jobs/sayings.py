"""What do all sources say of who has which device?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from stepscope.agent.jobs.claims import Claim
from stepscope.agent.jobs.finder import Found, JobFinder
from stepscope.collectors.jobs.designations import by_minor, of_device_plugin, of_dra
from stepscope.collectors.jobs.devices import Device
from stepscope.collectors.jobs.kubernetes.pod_resources import GivenDevice
from stepscope.collectors.jobs.processes import Process, Processes
from stepscope.collectors.jobs.slurm import given_by_slurm
from stepscope.collectors.jobs.slurm_cgroups import SlurmJobHere
from stepscope.core.jobs import Job, JobKind, JobSource, Share
from stepscope.core.readings import Labels


def of_processes(
    devices: Iterable[Device], running: Mapping[int, Process], given: Sequence[Claim], finder: JobFinder
) -> Iterator[Claim]:
    """Processes that hold devices.

    Args:
        devices: of the machine.
        running: processes by id.
        given: what the kubelet says: a pod whose name is not known is the only one that the device was given to.
        finder: names their jobs.
    """
    pods: dict[Labels, set[Job]] = {}
    for claim in given:
        pods.setdefault(claim.device, set()).add(claim.job)
    found: dict[int, Found] = {}
    for device in devices:
        for pid, holder in device.holders.items():
            process = running.get(pid)
            if process is None:
                continue
            if pid not in found:
                found[pid] = finder.of_process(process)
            one = found[pid]
            only = pods.get(device.labels, set())
            if one.is_nameless_pod and len(only) == 1:
                one = Found(next(iter(only)))
            is_mps = holder.is_mps or bool(process.variable("CUDA_MPS_PIPE_DIRECTORY"))
            share = Share.MPS if is_mps else None
            yield Claim(one.job, device.labels, JobSource.PROCESS, pid, one.step, share, one.inside)


def of_slurm(
    jobs: Mapping[str, SlurmJobHere], devices: Sequence[Device], processes: Processes, finder: JobFinder
) -> Iterator[Claim]:
    """Slurm jobs that are on this node: what each may open, or what it was given."""
    for job_id, here in jobs.items():
        read = {
            step: [one for pid in pids if (one := processes.read(pid)) is not None] for step, pids in here.pids.items()
        }
        everyone = [process for step in read.values() for process in step]
        job = finder.of_slurm(job_id, min(everyone, key=_age) if everyone else None)
        if here.minors is not None:
            for minor in here.minors:
                device = by_minor(devices, minor)
                if device is not None:
                    yield Claim(job, device.labels, JobSource.DEVICE_CGROUP)
            continue
        for step, of_step in read.items():
            if of_step:  # the first one was started by Slurm, others by the user
                for device, source in given_by_slurm(min(of_step, key=_age), devices):
                    yield Claim(job, device.labels, source, None, step)


def of_kubelet(given: Iterable[GivenDevice], devices: Sequence[Device], finder: JobFinder) -> Iterator[Claim]:
    """What the kubelet gave."""
    for one in given:
        device, is_share = (of_dra(devices, one.name), False) if one.is_claim else of_device_plugin(devices, one.name)
        if device is not None:
            share = Share.TIME_SLICED if is_share else None
            job = finder.of_pod(one.namespace, one.pod)
            yield Claim(job, device.labels, JobSource.KUBELET, None, one.container, share)


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


def _age(process: Process) -> int:
    return process.start
