"""Checks of variables and files that slow down or break NCCL, Gloo and Kineto, and of the node's agent."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stepscope.core.documents.machine_checks import DoctorLine, DoctorState
from stepscope.workflow.doctor.machine import Machine

_OK, _WARN, _FAIL = DoctorState.OK, DoctorState.WARN, DoctorState.FAIL
_NCCL_FILES = ("etc/nccl.conf",)
_ON = ("1", "true", "yes", "on")
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


@dataclass(frozen=True, slots=True)
class _Trap:
    """A variable with a value that slows jobs down or breaks them.

    Attributes:
        values: in lower case; empty: any.
        found: its effect.
        what_next: the advice; empty: unset it.
    """

    values: tuple[str, ...]
    found: str
    what_next: str = ""


_TRAPS = {
    "NCCL_P2P_DISABLE": _Trap(_ON, "GPUs of a node exchange bytes over host memory, not NVLink"),
    "NCCL_P2P_LEVEL": _Trap(("loc", "0"), "GPUs of a node exchange bytes over host memory, not NVLink"),
    "NCCL_SHM_DISABLE": _Trap(_ON, "processes of a node that cannot reach each other directly use the network"),
    "NCCL_IB_DISABLE": _Trap(_ON, "nodes talk over TCP, not InfiniBand or RoCE"),
    "NCCL_NET": _Trap(("socket",), "nodes talk over TCP, not InfiniBand or RoCE"),
    "NCCL_NET_GDR_LEVEL": _Trap(("loc", "0"), "GPUDirect RDMA is off: bytes to other nodes go through host memory"),
    "NCCL_NVLS_ENABLE": _Trap(("0",), "NVSwitches do not sum up: large all-reduces within a node get less"),
    "NCCL_ALGO": _Trap((), "fixes one algorithm for all sizes of messages and groups"),
    "NCCL_PROTO": _Trap((), "fixes one protocol for all sizes of messages"),
    "NCCL_MAX_NCHANNELS": _Trap(("1", "2", "4"), "too few channels to fill NVLink"),
    "NCCL_DEBUG": _Trap(("trace",), "writes a line a call, which slows jobs down", "use INFO or WARN"),
    "NCCL_BLOCKING_WAIT": _Trap(_ON, "is called TORCH_NCCL_BLOCKING_WAIT now, and makes every collective synchronous"),
    "TORCH_NCCL_BLOCKING_WAIT": _Trap(_ON, "makes every collective synchronous: nothing overlaps"),
    "NCCL_ASYNC_ERROR_HANDLING": _Trap((), "is called TORCH_NCCL_ASYNC_ERROR_HANDLING now", "rename it"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": _Trap(("0",), "a collective that fails hangs its job for ever"),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": _Trap(("0",), "the flight recorder is off: the cause of a hang cannot be found"),
    "TORCH_FR_BUFFER_SIZE": _Trap(("0",), "the flight recorder is off: the cause of a hang cannot be found"),
    "TORCH_DISTRIBUTED_DEBUG": _Trap(("detail",), "checks every collective with one more: for debugging only"),
    "CUDA_LAUNCH_BLOCKING": _Trap(_ON, "every kernel is waited for: for debugging only"),
    "CUDA_DEVICE_MAX_CONNECTIONS": _Trap(
        (), "changes what overlaps; Megatron wants 1 with TP, FSDP wants it unset", "see that it is meant"
    ),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": _Trap(_ON, "every allocation asks the driver: for debugging only"),
    "CUDA_VISIBLE_DEVICES": _Trap(("", "-1", "nodevfiles"), "hides all GPUs"),
}
"""Effects by the documentation of NCCL and torch."""


def look_at_communication(machine: Machine) -> Iterator[DoctorLine]:
    """Doctor's check of variables of NCCL, gloo and torch, in the environment and in NCCL's own file."""
    settings = {name: (value, "") for name, value in machine.environment.items()}
    for path in _NCCL_FILES:
        for name, value in _of_file(machine.text(path) or "").items():
            settings.setdefault(name, (value, f" in /{path}"))
    lines = [*_traps(settings), *_interfaces(machine, settings), *_files(machine, settings)]
    if lines:
        yield from lines
        return
    count = sum(name.startswith(("NCCL_", "TORCH_NCCL_")) for name in settings)
    yield DoctorLine(
        "NCCL's variables", _OK, f"{count} are set, none of them known to cost" if count else "none is set"
    )


def _traps(settings: Mapping[str, tuple[str, str]]) -> Iterator[DoctorLine]:
    for name, trap in _TRAPS.items():
        value, where = settings.get(name, (None, ""))
        if value is not None and (not trap.values or value.strip().lower() in trap.values):
            state = _FAIL if name == "CUDA_VISIBLE_DEVICES" else _WARN
            yield DoctorLine(name, state, f"={value}{where}: {trap.found}", trap.what_next or "unset it")


def _interfaces(machine: Machine, settings: Mapping[str, tuple[str, str]]) -> Iterator[DoctorLine]:
    there = machine.names("sys/class/net")
    for name in _INTERFACES:
        value, where = settings.get(name, ("", ""))
        if not value or not there:
            continue
        chosen = chosen_interfaces(value, there)
        if not chosen:
            found = f"={value}{where}: no such network interface; there are {', '.join(there)}"
            yield DoctorLine(name, _FAIL, found, "name one of them, or unset it")
        elif chosen == ["lo"]:
            yield DoctorLine(
                name, _WARN, f"={value}{where}: reaches this node only", "name one that reaches the others"
            )


def chosen_interfaces(value: str, there: list[str]) -> list[str]:
    """Network interfaces that doctor expects of NCCL_SOCKET_IFNAME: prefixes, "=" names, "^" all but these."""
    is_not, value = value.startswith("^"), value.removeprefix("^")
    is_whole, value = value.startswith("="), value.removeprefix("=")
    words = [word for word in value.split(",") if word]
    named = {name for name in there for word in words if (name == word if is_whole else name.startswith(word))}
    return [name for name in there if (name in named) != is_not]


def _files(machine: Machine, settings: Mapping[str, tuple[str, str]]) -> Iterator[DoctorLine]:
    value, where = settings.get("NCCL_TOPO_FILE", ("", ""))
    if value and not machine.files.exists(value.lstrip("/")):
        yield DoctorLine("NCCL_TOPO_FILE", _FAIL, f"={value}{where}: there is no such file", "unset it")
    wanted = settings.get("NCCL_IB_HCA", ("", ""))[0]
    devices = machine.names("sys/class/infiniband")
    words = [word.partition(":")[0] for word in wanted.lstrip("^=").split(",") if word]
    if words and not wanted.startswith("^") and not any(name.startswith(word) for name in devices for word in words):
        found = f"={wanted}: no such InfiniBand device; there are {', '.join(devices) or 'none'}"
        yield DoctorLine("NCCL_IB_HCA", _FAIL, found, "name one of them, or unset it")


def look_at_kineto(machine: Machine, torch_version: str | None) -> Iterator[DoctorLine]:
    """Doctor's check whether jobs that start in this environment can be profiled on demand."""
    value = machine.environment.get("KINETO_USE_DAEMON")
    if not value:
        advice = "set it to 1 where jobs start: then the agent can profile those without stepscope.profile() as well"
        yield DoctorLine("KINETO_USE_DAEMON", _OK, "not set", advice)
        return
    folder = machine.environment.get("KINETO_IPC_SOCKET_DIR")
    if folder and not machine.files.exists(folder.lstrip("/")):
        found = f"=1, and KINETO_IPC_SOCKET_DIR={folder} is not there: no request reaches the job"
        yield DoctorLine("KINETO_USE_DAEMON", _FAIL, found, "create the folder, the same for agent and jobs")
    elif (number := re.match(r"(\d+)\.(\d+)", torch_version or "")) and (2, 3) <= (int(number[1]), int(number[2])) < (
        2,
        7,
    ):
        found = f"=1, and torch {torch_version} does not always start to listen (fixed in 2.7)"
        yield DoctorLine("KINETO_USE_DAEMON", _WARN, found, "update torch, or use stepscope.profile()")
    else:
        yield DoctorLine("KINETO_USE_DAEMON", _OK, "=1: the agent can profile jobs that start here")


def _of_file(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.lstrip().startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


_SECONDS = 2.0
_START = "start it: stepscope agent run"


def look_at_agent(address: str, socket_path: str) -> Iterator[DoctorLine]:
    """Doctor's check of the agent's web address and socket.

    Args:
        address: host:port on which it is configured to listen.
        socket_path: of its Unix socket; @name for an abstract one, empty for none.
    """
    yield _web(address)
    if socket_path:
        yield _socket(socket_path)


def _web(address: str) -> DoctorLine:
    host, _, port = address.rpartition(":")
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))
    if not port.isdecimal() or port == "0":
        return DoctorLine("agent", _OK, f"{address} is not an address that can be checked")
    status = _status(http.client.HTTPConnection(host, int(port), timeout=_SECONDS))
    if status is None:
        unchecked = ssl.create_default_context()
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE  # only whether it is there
        status = _status(http.client.HTTPSConnection(host, int(port), timeout=_SECONDS, context=unchecked))
    if status is None:
        return DoctorLine("agent", _WARN, f"none answers at {address}", _START)
    if status == 200:
        return DoctorLine("agent", _OK, f"answers at {address}")
    return DoctorLine("agent", _FAIL, f"what answers at {address} is none, or not well (HTTP {status})", _START)


def _status(connection: http.client.HTTPConnection) -> int | None:
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _socket(path: str) -> DoctorLine:
    place = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_SECONDS)
        try:
            client.connect(place)
        except FileNotFoundError:
            return DoctorLine("agent's socket", _WARN, f"{path} is not there: training cannot be captured", _START)
        except PermissionError:
            advice = "open its folder and the socket to this user (setting training.socket_mode)"
            return DoctorLine("agent's socket", _FAIL, f"{path} may not be opened by this user", advice)
        except OSError as error:
            why = error.strerror or str(error)
            return DoctorLine("agent's socket", _WARN, f"{path}: no process listens ({why})", _START)
    return DoctorLine("agent's socket", _OK, f"{path} answers")
