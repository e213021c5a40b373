"""/proc is parsed as Linux writes it, rarely, and only for what is needed."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stepscope.collectors.host.cgroups import parse_membership
from stepscope.collectors.host.files import Files
from stepscope.collectors.host.processes import parse_process_stat
from stepscope.collectors.jobs.kubernetes.pods import pod_uid_of, pods_with_logs
from stepscope.collectors.jobs.processes import (
    Process,
    Processes,
    UserNames,
    container_id_of,
    job_leader_of,
    program_name_of,
)

_UID = "0f3b7c1e-1111-4222-8333-444455556666"
_SLICE = _UID.replace("-", "_")
_ID = "0123456789abcdef" * 4
_SCOPE = f"cri-containerd-{_ID}.scope"


def _process(cgroup: str = "/", *arguments: str) -> Process:
    return Process(7, 1, 1, 7, "python3.11", arguments, 1000, (cgroup,), {})


def test_a_real_process_and_its_child() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    environment = {**os.environ, "SLURM_JOB_ID": "77", "WANDB_API_KEY": "secret", "TEAM": "core"}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        (child,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        processes = Processes(Files(), ("TEAM",))
        found = processes.read(int(child))
        assert found is not None
        assert (found.pid, found.parent, found.group, found.uid) == (int(child), parent.pid, parent.pid, os.getuid())
        assert found.variable("SLURM_JOB_ID") == "77"
        assert found.variables is not None
        assert "secret" not in found.variables.values()
        assert set(found.variables) <= {"SLURM_JOB_ID", "TEAM", "HOSTNAME", "CUDA_VISIBLE_DEVICES", "LOCAL_RANK"}
        assert processes.read(int(child)) is found
        assert job_leader_of(found, processes).pid == parent.pid
        parent.communicate(b"\n")
    assert processes.read(int(child)) is None


def test_a_command_may_hold_blanks_and_brackets() -> None:
    stat = parse_process_stat("7 (a) b (c) S 3 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 555 0\n")
    assert stat is not None
    assert (stat.command, stat.parent, stat.group, stat.start_ticks) == ("a) b (c", 3, 7, 555)
    assert parse_process_stat("") is None
    assert parse_process_stat("7 (a) S 3 7") is None
    assert parse_process_stat("7 (a) S x 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 555 0") is None


def test_cgroups_of_both_versions() -> None:
    text = "12:devices:/slurm/x\n3:cpu,cpuacct:/slurm/x\n0::/y (deleted)\nnothing\n"
    assert list(parse_membership(text).values()) == ["/slurm/x", "/slurm/x", "/y"]


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_SLICE}.slice/{_SCOPE}",
        f"/kubepods.slice/kubepods-pod{_SLICE}.slice/crio-{_ID}.scope/container",
        f"/kubepods/besteffort/pod{_UID}/{_ID}",
        f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{_SLICE}.slice/{_SCOPE}",
        f"/../../kubepods-besteffort.slice/kubepods-besteffort-pod{_SLICE}.slice/{_SCOPE}",
    ],
)
def test_the_pod_of_a_cgroup(path: str) -> None:
    assert pod_uid_of(_process(path)) == _UID


def test_a_static_pods_uid_is_a_hash_and_others_are_in_no_pod() -> None:
    assert pod_uid_of(_process(f"/kubepods/burstable/pod{_ID[:32]}/{_ID}")) == _ID[:32]
    assert pod_uid_of(_process("/system.slice/podman.service")) == ""


@pytest.mark.parametrize(
    "path",
    [
        f"/docker/{_ID}",
        f"/system.slice/docker-{_ID}.scope",
        f"/machine.slice/libpod-{_ID}.scope/container",
        f"/system.slice/nerdctl-{_ID}.scope",
    ],
)
def test_the_container_of_a_cgroup(path: str) -> None:
    assert container_id_of(_process(path)) == _ID


def test_no_container() -> None:
    assert container_id_of(_process("/user.slice/user-1000.slice/session-3.scope")) == ""


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("python", "-u", "/home/eve/train.py", "--config", "x.py"), "train.py"),
        (("python", "-m", "trl.train", "--x"), "trl.train"),
        (("python", "-m"), "python3.11"),
        (("/opt/app/server",), "python3.11"),
        ((), "python3.11"),
    ],
)
def test_what_a_process_runs(arguments: tuple[str, ...], name: str) -> None:
    assert program_name_of(_process("/", *arguments)) == name


def test_folders_of_logs_name_pods(tmp_path: Path) -> None:
    (tmp_path / f"var/log/pods/ml_llama-0_{_UID}").mkdir(parents=True)
    (tmp_path / "var/log/pods/other").mkdir()
    assert pods_with_logs(Files(tmp_path)) == {_UID: ("ml", "llama-0")}


def test_users_by_the_machines_own_file_else_by_number(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\neve:x:1000:1000::/:/bin/sh\nbroken\n")
    users = UserNames(Files(tmp_path))
    assert [users.name(uid) for uid in (0, 1000, 1001, None)] == ["root", "eve", "1001", ""]


def test_a_directory_of_users_that_hangs_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    hold = threading.Event()
    asked: list[int] = []

    def hanging(uid: int) -> pwd.struct_passwd:
        asked.append(uid)
        hold.wait(30)
        return pwd.struct_passwd(("eve", "x", uid, uid, "", "/", "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwuid", hanging)
    users = UserNames(Files())
    assert [users.name(4_000_001), users.name(4_000_001), users.name(4_000_002)] == ["4000001", "4000001", "4000002"]
    assert len(asked) == 1  # one question at a time
    hold.set()
    for thread in threading.enumerate():
        if thread.name == "stepscope-users":
            thread.join()
    assert users.name(4_000_001) == "eve"
