"""Doctor on permissions, limits, variables, clock, container and agent, with what to do."""

from __future__ import annotations

import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.documents.machine_checks import DoctorState
from stepscope.workflow.doctor.communication import (
    chosen_interfaces,
    look_at_agent,
    look_at_communication,
    look_at_kineto,
)
from stepscope.workflow.doctor.machine import (
    UNLIMITED,
    ClockState,
    Machine,
    container_kind,
    judge_clock,
    judge_cpus,
    judge_locked_memory,
    judge_shared_memory,
    look_at_container,
    look_at_limits,
    look_at_rights,
    read_clock,
)
from tests.workflow.doctor.machines import by_topic, machine

_OK, _WARN, _FAIL = DoctorState.OK, DoctorState.WARN, DoctorState.FAIL
_GIB = 1024**3


@pytest.mark.parametrize(
    ("parameters", "may_profile", "state"),
    [
        ("RmProfilingAdminOnly: 1\n", False, "warn"),
        ("RmProfilingAdminOnly: 1\n", True, "ok"),
        ("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 0\n", False, "ok"),
    ],
)
def test_profiling_permission(parameters: str, may_profile: bool, state: str, tmp_path: Path) -> None:
    files = {"proc/driver/nvidia/params": parameters, "dev/kmsg": ""}
    found = by_topic(list(look_at_rights(machine(tmp_path, files, may_profile=may_profile))))
    assert found["profiling permission"][0] == state
    assert found["kernel log"][0] == "ok"


def test_without_a_driver_nothing_is_said_of_profiling_and_a_log_that_is_not_there_is(tmp_path: Path) -> None:
    found = by_topic(list(look_at_rights(machine(tmp_path))))
    assert set(found) == {"kernel log"}
    assert found["kernel log"][0] == "warn"


def test_limits() -> None:
    assert judge_shared_memory(64 * 1024**2, 64 * 1024**2).state is _FAIL
    assert judge_shared_memory(_GIB // 2, _GIB // 2).state is _WARN
    assert judge_shared_memory(64 * _GIB, 0).state is _WARN
    assert judge_shared_memory(64 * _GIB, 60 * _GIB).state is _OK
    assert judge_locked_memory(65536, has_rdma=True).state is _FAIL
    assert judge_locked_memory(65536, has_rdma=False).state is _OK
    assert judge_locked_memory(UNLIMITED, has_rdma=True).state is _OK
    assert judge_cpus(64, 4.0).what_next.startswith("start at most 4 loader workers")
    assert judge_cpus(64, 0.5).what_next.startswith("start at most 1 ")
    assert judge_cpus(64, 64.0).state is _OK
    assert judge_cpus(64, None).state is _OK


def test_limits_of_a_machine(tmp_path: Path) -> None:
    files = {
        "dev/shm/x": "",
        "sys/class/infiniband/mlx5_0/node_type": "",
        "sys/fs/cgroup/cgroup.controllers": "cpu memory",
        f"proc/{os.getpid()}/cgroup": "0::/pod/main\n",
        "sys/fs/cgroup/pod/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/pod/cpu.stat": "usage_usec 1\n",
        "sys/fs/cgroup/pod/main/cpu.max": "max 100000\n",
        "sys/fs/cgroup/pod/main/cpu.stat": "usage_usec 1\n",
    }
    found = by_topic(list(look_at_limits(machine(tmp_path, files, limits={"memlock": 8192, "nofile": 1024}))))
    assert found["open files"] == ("warn", "1024 at most")
    assert found["locked memory"][0] == "fail"
    assert found["CPU"] == ("warn", "2 CPUs by the cgroup, 8 cores in sight")


def test_variables_that_cost_are_named_wherever_they_are_set(tmp_path: Path) -> None:
    files = {
        "etc/nccl.conf": "# all nodes\nNCCL_IB_DISABLE=1\nNCCL_DEBUG = WARN\n",
        "sys/class/net/eth0/mtu": "",
        "sys/class/net/lo/mtu": "",
    }
    environment = {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_ALGO": "Ring",
        "NCCL_NVLS_ENABLE": "1",
        "NCCL_SOCKET_IFNAME": "ib0",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1",
        "NCCL_TOPO_FILE": "/etc/topo.xml",
        "CUDA_VISIBLE_DEVICES": "",
    }
    found = by_topic(list(look_at_communication(machine(tmp_path, files, environment=environment))))
    assert {topic: state for topic, (state, _) in found.items()} == {
        "NCCL_P2P_DISABLE": "warn",
        "NCCL_IB_DISABLE": "warn",
        "NCCL_ALGO": "warn",
        "NCCL_SOCKET_IFNAME": "fail",
        "GLOO_SOCKET_IFNAME": "warn",
        "NCCL_IB_HCA": "fail",
        "NCCL_TOPO_FILE": "fail",
        "CUDA_VISIBLE_DEVICES": "fail",
    }
    assert "in /etc/nccl.conf" in found["NCCL_IB_DISABLE"][1]
    assert "there are eth0, lo" in found["NCCL_SOCKET_IFNAME"][1]


def test_harmless_variables_are_no_trap(tmp_path: Path) -> None:
    environment = {"NCCL_DEBUG": "WARN", "NCCL_P2P_DISABLE": "0", "CUDA_VISIBLE_DEVICES": "0,1"}
    (line,) = look_at_communication(machine(tmp_path, environment=environment))
    assert (line.state, line.found) == (_OK, "2 are set, none of them known to cost")


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ("eth", ["eth0", "eth1"]),
        ("=eth", []),
        ("=eth1,ib0", ["eth1", "ib0"]),
        ("^docker,lo", ["eth0", "eth1", "ib0"]),
        ("^=eth0", ["docker0", "eth1", "ib0", "lo"]),
        ("wlan", []),
    ],
)
def test_interfaces_are_chosen_as_nccl_does(value: str, chosen: list[str]) -> None:
    assert chosen_interfaces(value, ["docker0", "eth0", "eth1", "ib0", "lo"]) == chosen


@given(st.text(max_size=30))
def test_any_value_names_interfaces_or_none(value: str) -> None:
    assert set(chosen_interfaces(value, ["eth0", "lo"])) <= {"eth0", "lo"}


def test_kineto(tmp_path: Path) -> None:
    def look(torch: str | None, **environment: str) -> DoctorState:
        (line,) = look_at_kineto(machine(tmp_path, environment=environment), torch)
        return line.state

    assert look("2.9.0") is _OK
    assert look("2.9.0", KINETO_USE_DAEMON="1") is _OK
    assert look("2.5.1+cu124", KINETO_USE_DAEMON="1") is _WARN
    assert look("2.2.0", KINETO_USE_DAEMON="1") is _OK
    assert look(None, KINETO_USE_DAEMON="1", KINETO_IPC_SOCKET_DIR="/run/kineto") is _FAIL


def test_the_clock() -> None:
    assert judge_clock(ClockState(True, 0.002)).found == "kept in step within 2 ms"
    assert judge_clock(ClockState(True, 0.5)).state is _WARN
    assert judge_clock(ClockState(False, 16.0)).state is _WARN
    assert judge_clock(None).state is _OK
    state = read_clock()
    assert state is None or state.error_seconds >= 0


def test_containers(tmp_path: Path) -> None:
    assert container_kind(machine(tmp_path)) is None
    assert container_kind(machine(tmp_path, environment={"container": "lxc"})) == "lxc"
    assert container_kind(machine(tmp_path, environment={"APPTAINER_CONTAINER": "x.sif"})) == "Apptainer"
    docker = machine(tmp_path, {".dockerenv": "", "proc/1/comm": "python\n"})
    (line,) = look_at_container(docker)
    assert "out of sight" in line.found
    inside = machine(tmp_path, {"proc/1/comm": "systemd\n"}, environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    (line,) = look_at_container(inside)
    assert line.found == "Kubernetes, with the machine's processes in sight"


class _Well(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_an_agent_that_answers_and_one_that_does_not(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.sock")
    assert [line.state for line in look_at_agent("127.0.0.1:9", path)] == [_WARN, _WARN]
    with HTTPServer(("127.0.0.1", 0), _Well) as server, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            found = list(look_at_agent(f"0.0.0.0:{server.server_port}", path))
        finally:
            server.shutdown()
            thread.join()
    assert [line.state for line in found] == [_OK, _OK]
    (line,) = look_at_agent("127.0.0.1:0", "")
    assert line.state is _OK


def test_this_machine_is_one() -> None:
    this = Machine()
    assert this.num_cpus >= 1
    assert set(this.limits) == {"memlock", "nofile"}
    assert this.text("proc/self/status") is not None
    assert this.text("no/such/file") is None
    assert this.names("no/such/folder") == []
