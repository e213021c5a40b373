"""A node with GPUs and processes, made of readings and a tree of /proc."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from stepscope.agent.config.settings import JobSettings
from stepscope.agent.jobs.job_collector import JobCollector
from stepscope.agent.polling import SourceState
from stepscope.collectors.jobs.kubernetes.pod_resources import PodDevice
from stepscope.collectors.jobs.kubernetes.pods import PodDirectory
from stepscope.collectors.jobs.slurm import SlurmNamesCollector
from stepscope.core.documents.jobs import Assignment, Job, JobKind, JobSource, Share, UseState
from stepscope.core.hardware.devices import Device, device_in
from stepscope.core.metrics.agent import JOB, JOB_FACTS
from stepscope.core.metrics.readings import GPU, Collection, Labels, MissingReason, Reading, labels_of

SLURM_V2 = "0::/system.slice/slurmstepd.scope/job_{job}/step_{step}/user/task_0\n"
SLURM_V1 = "11:devices:/slurm/uid_1000/job_{job}/step_{step}/task_0\n1:name=systemd:/system.slice/slurmd.service\n"
POD = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice/cri-containerd-{id}.scope\n"
_ID = "ab" * 32


def pod_cgroup(uid: str) -> str:
    """Of a container of a pod, as systemd has it."""
    return POD.format(uid=uid.replace("-", "_"), id=_ID)


class Node:
    """One node. Time goes on with `collect`."""

    def __init__(self, root: Path, *, minors: Sequence[int] = (0, 1)) -> None:
        self.root = root
        self.now = 1000.0
        self.utilization: dict[int, float] = {}
        self.memory: dict[int, float] = {}
        self.processes: dict[tuple[int, str], dict[int, tuple[float, str]]] = {}
        self.sm: dict[tuple[int, int], float] = {}
        self.workloads: list[Labels] = []
        self.instances: dict[tuple[int, str], tuple[str, str]] = {}
        self.minors = list(minors)
        self.silent: set[int] = set()
        self.reason: MissingReason | None = None
        self.kubelet_devices: list[PodDevice] = []
        self._inode = 100

    def watch(
        self,
        settings: JobSettings | None = None,
        pods: PodDirectory | None = None,
        slurm: SlurmNamesCollector | None = None,
    ) -> JobCollector:
        """A collector of this node."""
        return JobCollector(
            lambda: (SourceState("nvml", self.gpus(), reason=self.reason),),
            settings,
            kubelet_devices=lambda: self.kubelet_devices,
            pods=pods,
            slurm=slurm,
            root=self.root,
            clock=lambda: self.now,
            wall_clock_ns=lambda: int(self.now * 1e9),
        )

    def process(
        self,
        pid: int,
        cgroup: str = "0::/user.slice/user-1000.slice/session-3.scope\n",
        variables: Mapping[str, str] | None = None,
        *,
        parent: int = 1,
        group: int | None = None,
        command: str = "python",
        arguments: Sequence[str] = ("python", "train.py"),
        uid: int = 1000,
        start: int = 5000,
    ) -> int:
        """A process; None as variables: they may not be read."""
        folder = self.root / f"proc/{pid}"
        folder.mkdir(parents=True, exist_ok=True)
        numbers = f"S {parent} {group or pid} {pid} 0 -1 4194304 1 0 7 0 250 50 0 0 20 0 9 0 {start} 1000 20"
        (folder / "stat").write_text(f"{pid} ({command}) {numbers} 0\n")
        (folder / "status").write_text(f"Name:\t{command}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (folder / "cgroup").write_text(cgroup)
        (folder / "cmdline").write_text("".join(f"{word}\0" for word in arguments))
        if variables is not None:
            (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in variables.items()))
        return pid

    def end(self, pid: int) -> None:
        """A process ends; the GPU collector may tell of it for some seconds yet."""
        for file in (self.root / f"proc/{pid}").iterdir():
            file.unlink()
        (self.root / f"proc/{pid}").rmdir()

    def hold(
        self,
        gpu: int,
        pid: int,
        *,
        memory: float = 1e9,
        kind: str = "compute",
        instance: str = "",
        sm: float | None = None,
    ) -> None:
        """A process holds memory of a GPU."""
        self.processes.setdefault((gpu, instance), {})[pid] = memory, kind
        self.sm.pop((gpu, pid), None)
        if sm is not None:
            self.sm[gpu, pid] = sm

    def release(self, gpu: int, pid: int, instance: str = "") -> None:
        """It holds it no more."""
        self.processes.get((gpu, instance), {}).pop(pid, None)

    def split(self, gpu: int, *instances: tuple[str, str, str]) -> None:
        """MIG: id, UUID and profile of each instance."""
        for instance, uuid, profile in instances:
            self.instances[gpu, instance] = uuid, profile

    def gpus(self) -> Collection:
        """What a collector of GPUs says now."""
        if self.reason is not None:
            return Collection()
        found = []
        time_ns = int(self.now * 1e9)

        def add(metric: str, value: float, labels: Labels, **further: str | int) -> None:
            found.append(Reading(GPU + metric, value, tuple(sorted((*labels, *labels_of(**further)))), time_ns))

        for gpu, minor in enumerate(self.minors):
            labels = device(gpu)
            add("info", 1, labels, minor_number=minor, pci_bus_id=f"00000000:{gpu:02X}:00.0")
            add("up", float(gpu not in self.silent), labels)
            if gpu in self.silent:
                continue
            here = {instance: who for (of, instance), who in self.instances.items() if of == gpu}
            add("mig_enabled", float(bool(here)), labels)
            if not here:
                add("utilization_ratio", self.utilization.get(gpu, 0.0), labels)
                add("memory_used_bytes", self.memory.get(gpu, 0.0), labels)
                add("memory_total_bytes", 80e9, labels)
            for instance, (uuid, profile) in here.items():
                of_instance = labels_of(
                    gpu=gpu, uuid=uuid, gpu_instance=instance, compute_instance=0, mig_profile=profile
                )
                add("graphics_engine_active_ratio", self.utilization.get(gpu, 0.0), of_instance)
                add("memory_used_bytes", 0, of_instance)
                add("memory_total_bytes", 10e9, of_instance)
            for (of, instance), held in self.processes.items():
                for pid, (memory, kind) in held.items() if of == gpu else ():
                    further = {"gpu_instance": instance} if instance else {}
                    add("process_memory_bytes", memory, labels, pid=pid, kind=kind, **further)
            for (of, pid), ratio in self.sm.items():
                if of == gpu:
                    add("process_sm_utilization_ratio", ratio, labels, pid=pid)
        found += [Reading(GPU + "workload_info", 1.0, labels, time_ns) for labels in self.workloads]
        return Collection(tuple(found))


def device(gpu: int) -> Labels:
    """Labels of a whole GPU."""
    return labels_of(gpu=gpu, uuid=f"GPU-{gpu:08x}-0000-4000-8000-000000000000")


def uuid(gpu: int) -> str:
    """Of a whole GPU."""
    return dict(device(gpu))["uuid"]


def who(collection: Collection) -> dict[tuple[str, str], Assignment]:
    """Assignments by the GPU's index (or instance's UUID) and job id."""
    return {(_short(one.device), one.job.id): one for one in assignments_in(collection)}


def assignments_in(collection: Collection) -> tuple[Assignment, ...]:
    """Assignments as whoever joins the series of the metrics page finds them, in the order of the series."""
    facts = {label.removeprefix("job_"): label for label in JOB_FACTS}
    jobs: dict[tuple[str, str], Job] = {}
    pids: dict[tuple[Device, str, str], list[int]] = {}
    for one in collection.readings:
        labels = dict(one.labels)
        key = labels.get("job_kind", ""), labels.get("job_id", "")
        if one.metric == JOB + "info":
            texts = {field: labels.get(label, "") for field, label in facts.items()}
            jobs[key] = Job(JobKind(key[0]), key[1], **texts)
        elif one.metric == JOB + "process_info":
            pids.setdefault((device_in(labels), *key), []).append(int(labels["pid"]))
    found = [dict(one.labels) for one in collection.readings if one.metric == GPU + "job_info"]
    return tuple(
        Assignment(
            jobs[labels["job_kind"], labels["job_id"]],
            device_in(labels),
            Share(labels["share"]),
            tuple(JobSource(word) for word in labels["source"].split("+") if word),
            tuple(sorted(pids.get((device_in(labels), labels["job_kind"], labels["job_id"]), ()))),
            tuple(word for word in labels.get("step", "").split("+") if word),
        )
        for labels in found
    )


def states(collection: Collection) -> dict[str, UseState]:
    """States by the GPU's index or the instance's UUID."""
    found = [dict(one.labels) for one in collection.readings if one.metric == GPU + "use_state"]
    return {_short(device_in(labels)): UseState(labels["state"]) for labels in found}


def value(collection: Collection, metric: str, **labels: str) -> float | None:
    """The one value of a metric with these labels; None without."""
    found = [
        one.value for one in collection.readings if one.metric == metric and labels.items() <= dict(one.labels).items()
    ]
    assert len(found) < 2, found
    return found[0] if found else None


def _short(device: Device) -> str:
    return device.uuid if device.uuid.startswith("MIG-") else device.index
