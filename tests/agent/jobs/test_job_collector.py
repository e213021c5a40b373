"""Job collector: owner, state and duration of each GPU. Tests are named after the rows of the bug log they prevent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.agent.config.settings import JobSettings
from stepscope.collectors.jobs.kubernetes.pod_resources import PodDevice
from stepscope.collectors.jobs.slurm import SlurmNames, SlurmNamesCollector
from stepscope.core.documents.jobs import JobKind, JobSource, Share, UseState
from stepscope.core.metrics.agent import JOB
from stepscope.core.metrics.readings import GPU, Missing, MissingReason, labels_of
from tests.agent.jobs.node import SLURM_V1, SLURM_V2, Node, assignments_in, device, pod_cgroup, states, uuid, value, who

_UID = "0f3b7c1e-1111-4222-8333-444455556666"
_SLURM = {
    "SLURM_JOB_ID": "123",
    "SLURM_JOB_NAME": "llama",
    "SLURM_JOB_USER": "eve",
    "SLURM_JOB_ACCOUNT": "nlp",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_ARRAY_JOB_ID": "120",
    "SLURM_ARRAY_TASK_ID": "3",
    "WANDB_PROJECT": "llm",
    "TEAM": "core",
}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize("cgroup", [SLURM_V1, SLURM_V2])
def test_a_slurm_job_by_its_cgroup_with_all_that_its_environment_tells(node: Node, cgroup: str) -> None:
    node.hold(1, node.process(7, cgroup.format(job=123, step=0), _SLURM))
    (one,) = who(node.watch().collect()).values()
    assert one.device.labels() == device(1)
    assert one.job.kind is JobKind.SLURM
    assert (one.job.id, one.job.name, one.job.user, one.job.account) == ("123", "llama", "eve", "nlp")
    assert (one.job.queue, one.job.array, one.job.team, one.job.project) == ("gpu", "120_3", "core", "llm")
    assert (one.pids, one.steps, one.sources, one.share) == ((7,), ("0",), (JobSource.PROCESS,), Share.EXCLUSIVE)


def test_who_pays_is_not_the_users_choice(node: Node) -> None:
    node.hold(0, node.process(7, SLURM_V2.format(job=123, step=0), _SLURM | {"SLURM_JOB_ID": "999"}))
    assert ("0", "123") in who(node.watch().collect())


def test_a_variable_that_a_user_changed_later_changes_no_account(node: Node) -> None:
    _allocated(node, "123", 7, _SLURM | {"SLURM_JOB_GPUS": "0"})
    changed = _SLURM | {"SLURM_JOB_ACCOUNT": "others", "SLURM_JOB_USER": "bob"}
    node.hold(0, node.process(8, SLURM_V2.format(job=123, step="batch"), changed, start=9000))
    assert who(node.watch().collect())["0", "123"].job.account == "nlp"


def test_without_cgroups_of_slurm_the_environment_tells_the_job(node: Node) -> None:
    node.hold(0, node.process(7, variables=_SLURM))
    assert who(node.watch().collect())["0", "123"].job.kind is JobKind.SLURM


@pytest.mark.parametrize(
    ("claimed", "uid", "is_believed"), [("123", 1000, True), ("123", 1001, False), ("999", 1000, False)]
)
def test_a_process_outside_of_slurms_cgroups_is_in_a_job_of_its_own_user_here_alone(
    node: Node, claimed: str, uid: int, is_believed: bool
) -> None:
    """As one of a container that a job has started; or of a user who lets another's job pay."""
    _allocated(node, "123", 7, _SLURM | {"SLURM_JOB_GPUS": "0"})
    node.hold(1, node.process(8, variables=_SLURM | {"SLURM_JOB_ID": claimed}, uid=uid))
    collection = node.watch().collect()
    (kind,) = (one.job.kind for (gpu, _), one in who(collection).items() if gpu == "1")
    assert kind is (JobKind.SLURM if is_believed else JobKind.PROCESSES)


def test_without_cgroups_another_users_job_is_not_believed(node: Node) -> None:
    (node.root / "etc").mkdir()
    (node.root / "etc/passwd").write_text("eve:x:1000:1000::/home/eve:/bin/sh\nbob:x:1001:1001::/home/bob:/bin/sh\n")
    slurm = SlurmNamesCollector("squeue")
    slurm._known["123"] = SlurmNames("eve", "nlp", "gpu", "llama", "")
    node.hold(0, node.process(7, variables=_SLURM, uid=1000))
    node.hold(1, node.process(8, variables=_SLURM, uid=1001))
    kinds = {gpu: one.job.kind for (gpu, _), one in who(node.watch(slurm=slurm).collect()).items()}
    assert kinds == {"0": JobKind.SLURM, "1": JobKind.PROCESSES}


def test_an_environment_that_may_not_be_read_is_said_and_the_job_known_all_the_same(node: Node) -> None:
    node.hold(0, node.process(7, SLURM_V2.format(job=123, step=0)))
    collection = node.watch().collect()
    assert who(collection)["0", "123"].job.user == "1000"
    (missing,) = collection.missing
    assert (missing.metric, missing.reason) == (JOB + "info", MissingReason.NO_PERMISSION)


def _allocated(node: Node, job: str, pid: int, variables: dict[str, str], step: str = "batch") -> None:
    """A job without a process on a GPU."""
    node.process(pid, SLURM_V2.format(job=job, step=step), variables, command="bash", arguments=("bash", "job.sh"))
    folder = node.root / f"sys/fs/cgroup/system.slice/slurmstepd.scope/job_{job}/step_{step}/user/task_0"
    folder.mkdir(parents=True)
    (node.root / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory\n")
    (folder / "cgroup.procs").write_text(f"{pid}\n")


def test_bug_40_an_allocated_gpu_without_a_process_is_held_and_becomes_idle(node: Node) -> None:
    """guilbaults/slurm-job-exporter#65: it was invisible, and nobody paid for it."""
    _allocated(node, "123", 7, _SLURM | {"SLURM_JOB_GPUS": "1"})
    watch = node.watch()
    collection = watch.collect()
    one = who(collection)["1", "123"]
    assert (one.pids, one.sources) == ((), (JobSource.SLURM_ENVIRONMENT,))
    assert states(collection) == {"0": UseState.FREE, "1": UseState.UNKNOWN}  # it may be starting
    for _ in range(60):
        node.now += 5
        collection = watch.collect()
    assert states(collection) == {"0": UseState.FREE, "1": UseState.HELD_BUT_IDLE}
    assert value(collection, JOB + "gpu_seconds_total", job_id="123", state="held_but_idle") == 300
    assert value(collection, JOB + "gpu_seconds_total", job_id="123", state="busy") is None


def test_bug_38_slurms_numbers_are_minor_numbers(tmp_path: Path) -> None:
    """PrincetonUniversity/jobstats#34: /dev/nvidia0 was NVML's GPU 6, and another GPU was billed."""
    node = Node(tmp_path, minors=(1, 0))
    _allocated(node, "123", 7, _SLURM | {"SLURM_JOB_GPUS": "0"})
    assert list(who(node.watch().collect())) == [("1", "123")]


def test_bug_39_slurm_25_11_names_uuids(node: Node) -> None:
    """SlinkyProject/slurm-operator#112."""
    node.split(1, ("7", "MIG-7", "1g.10gb"))
    _allocated(node, "123", 7, _SLURM | {"SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": f"{uuid(0)},MIG-7"})
    assert set(who(node.watch().collect())) == {("0", "123"), ("MIG-7", "123")}


def test_who_sets_cuda_visible_devices_has_no_gpu_by_that(node: Node) -> None:
    _allocated(node, "123", 7, _SLURM | {"CUDA_VISIBLE_DEVICES": uuid(0)})
    assert not who(node.watch().collect())


def test_slurms_numbers_bill_nobody_where_they_count_instances(node: Node) -> None:
    node.split(0, ("7", "MIG-7", "1g.10gb"), ("8", "MIG-8", "1g.10gb"))
    _allocated(node, "123", 7, _SLURM | {"SLURM_JOB_GPUS": "1"})  # the second instance, and no GPU's minor number
    collection = node.watch().collect()
    assert not who(collection)
    (missing,) = collection.missing
    assert missing.detail == "no GPU or MIG instance is known by these names alone: 1 of Slurm job 123"


def test_what_was_known_of_a_job_stays_when_the_process_that_told_it_ends(node: Node) -> None:
    node.hold(0, node.process(7, SLURM_V2.format(job=123, step=0), _SLURM))
    node.hold(0, node.process(8, SLURM_V2.format(job=123, step=0)))
    watch = node.watch()
    watch.collect()
    node.end(7)
    assert who(watch.collect())["0", "123"].job.team == "core"


def test_numbers_in_cuda_visible_devices_are_the_processs_own_and_bill_nobody(node: Node) -> None:
    _allocated(node, "123", 7, _SLURM | {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "1"}, step="0")
    assert list(who(node.watch().collect())) == [("1", "123")]


def test_job_gpus_that_a_step_inherited_from_another_node_do_not_count(node: Node) -> None:
    _allocated(node, "123", 7, _SLURM | {"SLURM_JOB_GPUS": "0"}, step="0")
    assert not who(node.watch().collect())


def test_the_device_cgroup_counts_more_than_the_environment(node: Node) -> None:
    node.process(7, SLURM_V1.format(job=123, step="batch"), _SLURM | {"SLURM_JOB_GPUS": "1"})
    folder = node.root / "sys/fs/cgroup/devices/slurm/uid_1000/job_123"
    (folder / "step_batch").mkdir(parents=True)
    (folder / "step_batch/cgroup.procs").write_text("7\n")
    (folder / "devices.list").write_text("c 1:3 rwm\nc 195:0 rwm\nc 195:255 rwm\n")
    mounts = "30 20 0:26 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n"
    (node.root / "proc/1").mkdir()
    (node.root / "proc/1/mountinfo").write_text(mounts)
    one = who(node.watch().collect())["0", "123"]
    assert one.sources == (JobSource.DEVICE_CGROUP,)
    (folder / "devices.list").write_text("a *:* rwm\n")  # what was taken from it is not shown
    assert list(who(node.watch().collect())) == [("1", "123")]


def test_files_of_job_prologs_until_the_job_is_over(node: Node) -> None:
    folder = node.root / "run/jobs"
    folder.mkdir(parents=True)
    (folder / "0").write_text("123\n\n")
    (folder / "notes").write_text("x\n")
    settings = JobSettings(hpc_job_folder="/run/jobs")
    assert who(node.watch(settings).collect())["0", "123"].sources == (JobSource.HPC_JOB_FILE,)
    _allocated(node, "124", 7, _SLURM)  # Slurm's cgroups know of another job alone: an epilog failed
    assert not who(node.watch(settings).collect())


def test_a_file_whose_number_may_mean_two_gpus_bills_none(tmp_path: Path) -> None:
    node = Node(tmp_path, minors=(1, 0))
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/0").write_text("123\n")
    collection = node.watch(JobSettings(hpc_job_folder="jobs")).collect()
    assert not who(collection)
    assert [one.reason for one in collection.missing] == [MissingReason.UNREADABLE]


def test_a_pod_that_holds_a_gpu_without_a_process(node: Node) -> None:
    node.kubelet_devices = [PodDevice("ml", "notebook-0", "main", uuid(0))]
    one = who(node.watch().collect())["0", "ml/notebook-0"]
    assert (one.sources, one.steps, one.job.account) == ((JobSource.KUBELET,), ("main",), "ml")


@pytest.mark.parametrize("how", ["logs", "host name", "the only pod of the device"])
def test_a_process_finds_its_pods_name_without_the_api(node: Node, how: str) -> None:
    if how == "logs":
        (node.root / f"var/log/pods/ml_llama-0_{_UID}").mkdir(parents=True)
    node.kubelet_devices = [PodDevice("ml", "llama-0", "main", f"{uuid(0)}::1")]
    if how != "the only pod of the device":
        node.kubelet_devices.append(PodDevice("ml", "llama-1", "main", f"{uuid(0)}::2"))
    node.hold(0, node.process(7, pod_cgroup(_UID), {"HOSTNAME": "llama-0"} if how == "host name" else {}))
    one = who(node.watch().collect())["0", "ml/llama-0"]
    assert one.pids == (7,)
    assert one.sources == (JobSource.PROCESS, JobSource.KUBELET)


def test_a_host_name_that_its_user_chose_makes_no_pod_of_another_gpu_pay(node: Node) -> None:
    node.kubelet_devices = [PodDevice("ml", "victim", "main", uuid(1))]
    node.hold(0, node.process(7, pod_cgroup(_UID), {"HOSTNAME": "victim"}))
    assert set(who(node.watch().collect())) == {("0", _UID), ("1", "ml/victim")}


def test_a_host_name_that_two_namespaces_have_names_no_pod(node: Node) -> None:
    node.kubelet_devices = [PodDevice(space, "llama-0", "main", f"{uuid(0)}::{n}") for n, space in enumerate("ab")]
    node.hold(0, node.process(7, pod_cgroup(_UID), {"HOSTNAME": "llama-0"}))
    assert ("0", _UID) in who(node.watch().collect())


def test_bug_26_each_name_that_a_device_plugin_has_is_understood(tmp_path: Path) -> None:
    """NVIDIA/dcgm-exporter#342, #411, #477: pods on MIG instances and shared GPUs were not found."""
    node = Node(tmp_path, minors=(0, 1, 2, 3))
    node.split(2, ("7", "MIG-7", "1g.10gb"), ("8", "MIG-8", "2g.20gb"))
    names = [uuid(0), f"{uuid(1)}::2", "MIG-7", "nvidia2/gi8", "nvidia3/vgpu1"]
    node.kubelet_devices = [PodDevice("ml", f"pod-{n}", "main", name) for n, name in enumerate(names)]
    node.kubelet_devices += [PodDevice("ml", "claimed", "main", "gpu-2-mig-2g20gb-14-0", is_claim=True)]
    node.kubelet_devices += [PodDevice("ml", "network", "main", name) for name in ("0", "mlx5_0", "eth0")]
    node.kubelet_devices += [
        PodDevice("ml", "lost", "main", "MIG-gone"),
        PodDevice("ml", "lost", "main", "gpu-9", is_claim=True),
    ]
    collection = node.watch().collect()
    found = who(collection)
    assert set(found) == {
        ("0", "ml/pod-0"),
        ("1", "ml/pod-1"),
        ("MIG-7", "ml/pod-2"),
        ("MIG-8", "ml/pod-3"),
        ("3", "ml/pod-4"),
        ("MIG-8", "ml/claimed"),
    }
    assert {missing.detail for missing in collection.missing} == {
        "no GPU or MIG instance is known by these names alone: MIG-gone of pod ml/lost, gpu-9 of pod ml/lost"
    }
    assert found["1", "ml/pod-1"].share is Share.TIME_SLICED
    assert found["0", "ml/pod-0"].share is Share.EXCLUSIVE


def test_bug_26_a_gpu_of_which_nobody_is_known_is_unattributed(node: Node) -> None:
    node.hold(0, 4711)  # of another PID namespace
    node.utilization[0] = 0.9
    watch = node.watch()
    assert states(watch.collect()) == {"0": UseState.UNKNOWN, "1": UseState.FREE}  # one look does not prove it
    node.now += 5
    collection = watch.collect()
    assert states(collection) == {"0": UseState.UNATTRIBUTED, "1": UseState.FREE}
    (missing,) = collection.missing
    assert "process 4711 is not in this PID namespace" in missing.detail


def test_no_time_before_a_stranger_is_sure_is_booked_as_free(node: Node) -> None:
    node.silent = {0, 1}  # the agent starts before the GPUs have answered
    watch = node.watch()
    watch.collect()
    node.silent = set()
    node.hold(0, 4711)
    node.utilization[0] = 0.9
    for _ in range(2):
        node.now += 5
        collection = watch.collect()
    booked = {state: value(collection, GPU + "use_seconds_total", gpu="0", state=state) for state in UseState}
    assert not booked[UseState.FREE]
    assert (booked[UseState.UNKNOWN] or 0.0) >= 5.0
    assert booked[UseState.UNATTRIBUTED] == 5.0


def test_the_last_values_of_a_job_that_ended_are_no_strangers(node: Node) -> None:
    node.hold(0, node.process(7, SLURM_V2.format(job=1, step=0), {}))
    node.utilization[0] = 0.9
    watch = node.watch()
    assert states(watch.collect())["0"] is UseState.BUSY
    node.end(7)
    node.processes.clear()  # the utilisation is of a second ago
    node.now += 5
    assert states(watch.collect())["0"] is UseState.FREE


def test_bug_29_time_sliced_pods_share_the_gpu_and_its_time(node: Node) -> None:
    """NVIDIA/dcgm-exporter#642: each pod had the whole GPU's value, and their sum was over 100 %."""
    for n, (pid, sm) in enumerate(((7, 0.6), (8, 0.3))):
        uid = _UID[:-1] + str(n)
        (node.root / f"var/log/pods/ml_infer-{n}_{uid}").mkdir(parents=True)
        node.hold(0, node.process(pid, pod_cgroup(uid), {}), sm=sm, memory=1e9 * (n + 1))
    node.kubelet_devices = [PodDevice("ml", f"infer-{n}", "main", f"{uuid(0)}::{n}") for n in range(3)]
    node.utilization[0] = 0.9
    watch = node.watch()
    watch.collect()
    node.now += 30
    collection = watch.collect()
    found = who(collection)
    assert {one.share for one in found.values()} == {Share.TIME_SLICED}
    ratios = [value(collection, JOB + "sm_utilization_ratio", job_id=f"ml/infer-{n}") for n in range(3)]
    assert ratios == [0.6, 0.3, None]
    assert value(collection, JOB + "gpu_memory_bytes", job_id="ml/infer-1") == 2e9
    assert value(collection, JOB + "gpu_seconds_total", job_id="ml/infer-0", state="busy") == 10
    assert value(collection, JOB + "gpu_seconds_total", job_id="ml/infer-2", state="busy") is None  # it never ran
    assert value(collection, GPU + "use_seconds_total", gpu="0", state="busy") == 20


def test_bug_29_mps_clients_are_told_apart_and_their_server_is_no_job(node: Node) -> None:
    node.hold(0, node.process(5, command="nvidia-cuda-mps", arguments=("nvidia-cuda-mps-server",), uid=0))
    node.hold(0, node.process(7, SLURM_V2.format(job=1, step=0), {}), kind="compute+mps", sm=0.5)
    node.hold(0, node.process(8, SLURM_V2.format(job=2, step=0), {}), kind="compute+mps", sm=0.0)
    node.utilization[0] = 0.5
    found = who(node.watch().collect())
    assert {key[1]: one.share for key, one in found.items()} == {"1": Share.MPS, "2": Share.MPS}


def test_mig_instances_are_devices_of_their_own_and_their_gpu_is_none(node: Node) -> None:
    node.split(0, ("7", "MIG-7", "1g.10gb"), ("9", "MIG-9", "3g.40gb"))
    node.hold(0, node.process(7, SLURM_V2.format(job=1, step=0), {}), instance="9")
    node.utilization[0] = 0.4
    watch = node.watch()
    watch.collect()
    node.now += 10
    collection = watch.collect()
    assert states(collection) == {"MIG-7": UseState.UNATTRIBUTED, "MIG-9": UseState.BUSY, "1": UseState.FREE}
    labels = {"job_id": "1", "state": "busy", "mig_profile": "3g.40gb"}
    assert value(collection, JOB + "gpu_seconds_total", **labels) == 10
    told = [dict(one.labels) for one in collection.readings if one.metric == GPU + "use_seconds_total"]
    assert {one["uuid"] for one in told} == {"MIG-7", "MIG-9", uuid(1)}


def test_bug_44_ranks_of_a_launcher_are_one_job(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.process(50, command="torchrun", arguments=("python", "/usr/bin/torchrun", "--nproc-per-node=2", "train.py"))
    for rank in range(2):
        variables = {"LOCAL_RANK": str(rank), "TORCHELASTIC_RUN_ID": "none"}
        arguments = ("python", "-u", "/home/eve/train.py", "--lr=1")
        node.hold(rank, node.process(60 + rank, variables=variables, parent=50, arguments=arguments, start=6000))
    found = who(node.watch().collect())
    assert set(found) == {("0", "50-5000"), ("1", "50-5000")}
    assert {(one.job.name, one.job.kind) for one in found.values()} == {("train.py", JobKind.PROCESSES)}


def test_a_container_without_a_scheduler_is_one_job_and_users_have_names(node: Node) -> None:
    (node.root / "etc").mkdir()
    (node.root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\neve:x:1000:1000::/home/eve:/bin/sh\n")
    cgroup = f"0::/system.slice/docker-{'c0ffee' * 10}beef.scope\n"
    node.hold(0, node.process(7, cgroup, {}, arguments=("python", "-m", "trl.train")))
    node.hold(1, node.process(8, cgroup, {}))
    found = who(node.watch().collect())
    assert set(found) == {("0", "c0ffeec0ffee"), ("1", "c0ffeec0ffee")}
    assert found["0", "c0ffeec0ffee"].job.user == "eve"
    assert found["0", "c0ffeec0ffee"].job.name == "trl.train"


def test_who_draws_on_a_gpu_has_no_job(node: Node) -> None:
    node.hold(0, node.process(7, command="Xorg"), kind="graphics")
    collection = node.watch().collect()
    assert not who(collection)
    assert states(collection)["0"] is UseState.FREE


@pytest.mark.parametrize("is_named", [True, False])
def test_slurm_in_a_pod_is_the_job_and_the_pod_around_it_none(node: Node, is_named: bool) -> None:
    if is_named:
        (node.root / f"var/log/pods/slurm_slurmd-0_{_UID}").mkdir(parents=True)
    node.kubelet_devices = [PodDevice("slurm", "slurmd-0", "slurmd", uuid(gpu)) for gpu in range(2)]
    inner = pod_cgroup(_UID).strip() + "/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n"
    node.hold(0, node.process(7, inner, {}))
    found = who(node.watch().collect())
    assert set(found) == {("0", "123"), ("1", "slurm/slurmd-0")}


def test_a_page_of_dcgm_exporter_names_jobs_where_nothing_else_does(node: Node) -> None:
    node.workloads = [
        (*device(0), ("job", "123")),
        (*device(1), ("job", "9")),
        (*device(1), ("namespace", "ml"), ("pod", "a")),
    ]
    node.hold(1, node.process(7, SLURM_V2.format(job=5, step=0), {}))
    found = who(node.watch().collect())
    assert set(found) == {("0", "123"), ("1", "5")}
    assert found["0", "123"].sources == (JobSource.DCGM_EXPORTER,)


def test_bug_27_an_ended_job_is_gone_at_once_and_its_time_soon(node: Node) -> None:
    """NVIDIA/dcgm-exporter#140: a pod was named for half an hour after its end."""
    node.hold(0, node.process(7, SLURM_V2.format(job=1, step=0), {}))
    node.utilization[0] = 1.0
    watch = node.watch()
    watch.collect()
    node.now += 10
    watch.collect()
    node.end(7)  # NVML's list is up to 10 s old
    node.now += 5
    collection = watch.collect()
    assert not who(collection)
    assert not collection.missing
    assert value(collection, GPU + "job_info", job_id="1") is None
    assert value(collection, JOB + "gpu_seconds_total", job_id="1", state="busy") == 10
    assert value(collection, JOB + "info", job_id="1") == 1  # for who joins the two
    assert states(collection)["0"] is UseState.FREE  # the last value of its activity proves nothing
    node.release(0, 7)
    node.utilization[0] = 0.0
    for _ in range(60):
        node.now += 5
        collection = watch.collect()
    assert value(collection, JOB + "gpu_seconds_total", job_id="1", state="busy") is None
    assert value(collection, JOB + "info", job_id="1") is None


def test_a_process_id_that_came_back_is_another_job(node: Node) -> None:
    node.hold(0, node.process(7, SLURM_V2.format(job=1, step=0), {}))
    watch = node.watch()
    assert ("0", "1") in who(watch.collect())
    node.process(7, SLURM_V2.format(job=2, step=0), {}, start=9000)
    assert set(who(watch.collect())) == {("0", "2")}


def test_bug_43_time_is_wall_time_whatever_the_utilization(node: Node) -> None:
    """koku-metrics-operator#938: GPU-hours summed up from utilisation were half of what they are."""
    node.hold(0, node.process(7, SLURM_V2.format(job=1, step=0), {}))
    node.utilization[0] = 0.3
    watch = node.watch()
    watch.collect()
    for _ in range(20):
        node.now += 5
        collection = watch.collect()
    assert value(collection, JOB + "gpu_seconds_total", job_id="1", state="busy") == 100


def test_a_gpu_that_does_not_answer_is_in_no_known_state_but_still_held(node: Node) -> None:
    node.hold(0, node.process(7, SLURM_V2.format(job=1, step=0), {}))
    node.utilization[0] = 0.9
    watch = node.watch()
    watch.collect()
    node.now += 5
    watch.collect()
    node.reason = MissingReason.TIMED_OUT  # the whole driver hangs
    node.now += 5
    collection = watch.collect()
    assert states(collection) == {"0": UseState.UNKNOWN, "1": UseState.UNKNOWN}
    assert value(collection, JOB + "gpu_seconds_total", job_id="1", state="unknown") == 5
    assert ("0", "1") in who(collection)
    node.reason = None
    node.silent = {1}
    node.now += 5
    assert states(watch.collect()) == {"0": UseState.BUSY, "1": UseState.UNKNOWN}


def test_bug_25_labels_are_bounded_and_job_facts_on_info_metrics_alone(node: Node) -> None:
    """NVIDIA/dcgm-exporter#574, soperator#2923: labels of jobs on every series."""
    variables = _SLURM | {"SLURM_JOB_NAME": "x\n" * 5000, "TEAM": "t" * 101}
    node.hold(0, node.process(7, SLURM_V2.format(job=123, step=0), variables))
    collection = node.watch().collect()
    (one,) = who(collection).values()
    assert len(one.job.name) == 100
    assert "\n" not in one.job.name
    assert one.job.team == "t" * 99 + "…"
    facts = {"user", "team", "project", "job_name", "account"}
    with_facts = {reading.metric for reading in collection.readings if facts & dict(reading.labels).keys()}
    assert with_facts == {JOB + "info"}


def test_the_number_of_jobs_is_bounded_and_said(node: Node) -> None:
    for pid in range(1000, 1600):
        node.hold(0, node.process(pid, SLURM_V2.format(job=pid, step=0), {}))
    collection = node.watch().collect()
    assert len(who(collection)) == 512
    assert [finding.code for finding in collection.findings] == ["jobs_left_out"]


def test_labels_of_readings_are_sorted_and_unique(node: Node) -> None:
    node.hold(0, node.process(7, SLURM_V2.format(job=123, step=0), _SLURM), sm=0.5)
    collection = node.watch().collect()
    keys = [(one.metric, one.labels) for one in collection.readings]
    assert len(set(keys)) == len(keys)
    assert all(list(labels) == sorted(labels) for _, labels in keys)


def test_facts_from_any_process_of_the_job_are_the_jobs(node: Node) -> None:
    node.hold(0, node.process(7, SLURM_V2.format(job=123, step=0)))
    node.hold(1, node.process(8, SLURM_V2.format(job=123, step=0), _SLURM))
    jobs = {one.job for one in who(node.watch().collect()).values()}
    assert len(jobs) == 1
    assert jobs.pop().name == "llama"


def test_a_process_without_memory_figure_holds_its_gpu_too(node: Node) -> None:
    node.process(7, SLURM_V2.format(job=1, step=0), {})
    hidden = labels_of(gpu=0, uuid=uuid(0), pid=7, kind="compute")
    told = node.gpus()
    missing = Missing(GPU + "process_memory_bytes", hidden, MissingReason.NOT_SUPPORTED)
    node.gpus = lambda: replace(told, missing=(missing,))  # type: ignore[method-assign]
    collection = node.watch().collect()
    assert ("0", "1") in who(collection)
    assert value(collection, JOB + "gpu_memory_bytes", job_id="1") is None


def test_assignments_are_handed_over_as_the_metrics_page_has_them(node: Node) -> None:
    node.split(1, ("7", "MIG-7", "1g.10gb"))
    node.hold(0, node.process(7, SLURM_V2.format(job=123, step=0), _SLURM))
    node.hold(0, node.process(8))
    node.hold(1, node.process(9, SLURM_V2.format(job=123, step=1), _SLURM), instance="7")
    watch = node.watch()
    collection = watch.collect()
    assert len(watch.assignments()) == 3
    assert watch.assignments() == assignments_in(collection)
