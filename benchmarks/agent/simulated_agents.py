"""Simulated agents of many machines: one process that listens on a loopback address for each.

A recorded document of a node, and a recorded page of metrics, are served with variations: names, UUIDs, jobs, load, a
share of sick GPUs. Some machines hang, in several ways, and some answer garbage. `python -m
benchmarks.agent.simulated_agents --count 20` serves until its input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.agent.real_agent import started_agent
from stepscope.core.documents.node import NodeView, node_view
from stepscope.workflow.nodes.answers import read_node
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml

_SEED = 23
_SETTLE_SECONDS = 12.0
_NODES_OF_A_RACK = 16
_NODES_OF_A_JOB = 24
_PORT = 9455
_HANGS = ("silent", "half_headers", "half_body", "drip")
_GARBAGE = (
    "html",
    "error",
    "cut",
    "other_schema",
    "a_list",
    "no_devices",
    "endless",
    "binary",
    "closed",
    "redirect",
    "nested",
    "ssh",
    "empty",
    "wrong_types",
)
"""Kinds of answers that are not a node's document; each machine has one, in turn."""
_COMPUTING: dict[str, Any] = {
    "cause": "compute_bound",
    "reasons": [],
    "confidence": 0.8,
    "summary": "tensor cores are busy",
    "evidence": [],
    "shares": {"computing": 0.9, "waiting": 0.0, "copying": 0.05, "empty": 0.05},
    "counters": "sm",
    "begin_ns": 1,
    "end_ns": 2,
}


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is simulated: so many machines, of which some hang and some answer garbage."""

    count: int = 1250
    hanging: int = 20
    garbage: int = 14

    def address(self, index: int) -> str:
        """Loopback address of a machine's agent."""
        return f"127.{10 + index // 65536}.{index // 256 % 256}.{index % 256}:{_PORT}"

    def rack(self, index: int) -> str:
        """Name of a machine's rack."""
        return f"rack{index // _NODES_OF_A_RACK:03}"


def recorded_document(gpus: int = 8) -> dict[str, Any]:
    """Document of a node as a real agent serves it, on the fake driver of the tests."""
    document: dict[str, Any] = json.loads(_recorded("/api/v1/node", gpus))
    return document


def recorded_page(gpus: int = 8) -> str:
    """Page of metrics as a real agent serves it, on the fake driver of the tests."""
    return _recorded("/metrics", gpus).decode()


def _recorded(path: str, gpus: int) -> bytes:
    import http.client

    with tempfile.TemporaryDirectory() as folder:
        machine = FakeNvml(build_fake_nvml(Path(folder) / "library"), Path(folder) / "nvml.conf")
        for index in range(gpus):
            machine.add(profiles.h100(index))
        machine.write()
        environment = machine.environment() | {"STEPSCOPE_AGENT__KINETO__ENABLED": "false"}
        with started_agent(Path(folder), environment=environment) as agent:
            time.sleep(_SETTLE_SECONDS)
            connection = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=30)
            connection.request("GET", path)
            content = connection.getresponse().read()
            connection.close()
    return content


def varied(document: dict[str, Any], index: int) -> dict[str, Any]:
    """The document as another machine would serve it: one in 50 has a sick GPU, one in 40 a slow one."""
    chance = random.Random(_SEED * 1_000_003 + index)
    copy: dict[str, Any] = json.loads(json.dumps(document))
    copy["host"] = f"r{index // _NODES_OF_A_RACK:03}n{index % _NODES_OF_A_RACK:02}"
    copy["time_ns"] = time.time_ns()
    number = index // _NODES_OF_A_JOB
    job = {"kind": "slurm", "id": str(90_000 + number), "name": f"train{number}", "user": f"user{number % 7}"}
    job |= dict.fromkeys(("account", "team", "project", "queue", "workload"), "")
    slow = chance.randrange(len(copy["devices"])) if chance.random() < 1 / 40 else None
    for place, device in enumerate(copy["devices"]):
        uuid = f"GPU-{index:08x}-0000-4000-8000-{place:012x}"
        device["labels"]["uuid"] = uuid
        load = 0.2 if place == slow else 0.97 - 0.04 * chance.random()
        device["values"] |= {"utilization_ratio": load, "power_watts": 120.0 + 560.0 * load}
        device["values"] |= {"temperature_celsius": 40.0 + 28.0 * load, "tensor_active_ratio": 0.5 * load}
        device["jobs"] = [{**job, "share": "exclusive", "pids": [4000 + place]}]
        device["by_label"]["use_state"] = {"busy": 1.0, "free": 0.0}
        device["spent"] = _COMPUTING
    if chance.random() < 1 / 50:
        place = chance.randrange(len(copy["devices"]))
        code, message, action = chance.choice(
            [
                ("row_remap_failed", "no spare rows are left", "replace"),
                ("xid", "XID 79: GPU has fallen off the bus", "reboot"),
                ("nvlink_down", "NVLink 4 is down", "reset_gpu"),
            ]
        )
        _make_sick(copy, place, code, message, action)
    return copy


_UUID = re.compile(r"GPU-(\d{8})-0000-4000-8000-0{12}")
_VARYING = re.compile(
    r"^(stepscope_gpu_(?:power_watts|utilization_ratio|temperature_celsius|sm_clock_hertz|energy_joules_total"
    r"|sm_active_ratio|tensor_active_ratio|dram_active_ratio|memory_used_bytes|pcie_\w+_per_second)\{.*\}) .*$",
    re.MULTILINE,
)


class SimulatedPage:
    """Page of metrics of one machine: its own UUIDs and job, values that change with each request."""

    def __init__(self, page: str, index: int) -> None:
        job = 90_000 + index // _NODES_OF_A_JOB
        page = page.replace("%", "%%")
        page = _UUID.sub(lambda match: f"GPU-{index:08x}-0000-4000-8000-{int(match[1]):012x}", page)
        page, self._num_values = _VARYING.subn(r"\1 %.6g", page)
        gpus = sorted(set(re.findall(r'gpu="(\d+)",uuid="([^"]*)"', page)))
        lines = [
            f'stepscope_gpu_job_info{{gpu="{gpu}",job_id="{job}",job_kind="slurm",share="exclusive",uuid="{uuid}"}} 1.0'
            for gpu, uuid in gpus
        ]
        lines.append(
            f'stepscope_job_info{{job_id="{job}",job_kind="slurm",job_name="train{job}",user="user{job % 7}"}} 1.0'
        )
        lines.append(f'stepscope_training_verdict_age_seconds{{run="train{job}"}} 5.0')
        lines.append(f'stepscope_training_bottleneck_ratio{{cause="data_loading",run="train{job}"}} 0.4')
        self._template = (page + "\n".join(lines) + "\n").encode()
        self._chance = random.Random(index)

    def content(self) -> bytes:
        """The page now."""
        load = self._chance.random()
        return self._template % tuple(100.0 + load + number for number in range(self._num_values))


def _make_sick(document: dict[str, Any], place: int, code: str, message: str, action: str) -> None:
    device = document["devices"][place]
    device["health"] = {**device["health"], "state": "failed", "reason": message, "codes": [code]}
    labels = {"gpu": str(place), "uuid": device["labels"]["uuid"]}
    event: dict[str, Any] = {"code": code, "labels": labels, "severity": "critical", "action": action}
    event |= {"message": message, "value": 1.0, "threshold": 0.0, "unit": "", "first_ns": 1, "last_ns": 2}
    document["events"].append(event | {"ended_ns": None, "count": 1, "since_start": False, "action_line": ""})


def _view(document: dict[str, Any], view: NodeView) -> bytes:
    """As an agent makes it."""
    return json.dumps(node_view(read_node(document), view), separators=(",", ":")).encode()


def _with_headers(body: bytes, status: str = "200 OK", more: str = "") -> bytes:
    head = f"HTTP/1.0 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def _garbage(kind: str, good: bytes) -> bytes:
    document = json.loads(good)
    answers = {
        "html": _with_headers(b"<html><body>It works!</body></html>"),
        "error": _with_headers(b'{"error": "no such tenant"}', "502 Bad Gateway"),
        "cut": _with_headers(good)[: len(good) // 2],
        "other_schema": _with_headers(good.replace(b"stepscope.node/1", b"stepscope.node/9")),
        "a_list": _with_headers(b"[1, 2, 3]"),
        "no_devices": _with_headers(b'{"schema": "stepscope.node/1", "host": "n"}'),
        "endless": b"HTTP/1.0 200 OK\r\n\r\n" + b" " * (18 << 20),
        "binary": bytes(range(256)) * 40,
        "closed": b"",
        "redirect": _with_headers(b"", "302 Found", "Location: /login\r\n"),
        "nested": _with_headers(b"[" * 200_000),
        "ssh": b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n",
        "empty": _with_headers(b""),
        "wrong_types": _with_headers(json.dumps({**document, "devices": {"0": 1}, "time_ns": "now"}).encode()),
    }
    return answers[kind]


class _Agent(asyncio.Protocol):
    """One connection to a simulated machine."""

    def __init__(self, answer: bytes, views: dict[NodeView, bytes], hang: str, page: SimulatedPage | None) -> None:
        self._answer, self._views, self._hang, self._page = answer, views, hang, page
        self._request = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._request += data
        if b"\r\n\r\n" not in self._request:
            return
        if not self._hang and self._page is not None and self._request.startswith(b"GET /metrics "):
            self._transport.write(_with_headers(self._page.content()))
            self._transport.close()
        elif not self._hang:
            asked = self._request.partition(b"?view=")[2].partition(b" ")[0].decode()
            self._transport.write(self._views[NodeView(asked)] if asked and self._views else self._answer)
            self._transport.close()
        elif self._hang == "half_headers":
            self._transport.write(b"HTTP/1.0 200 OK\r\nContent-")
        elif self._hang == "half_body":
            self._transport.write(self._answer[: len(self._answer) // 2])
        elif self._hang == "drip":
            self._drip(0)

    def _drip(self, place: int) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._answer[place : place + 1])
            asyncio.get_running_loop().call_later(0.1, self._drip, place + 1)


async def _serve(fleet: Fleet, document: dict[str, Any], page: str, *, is_old: bool) -> None:
    loop = asyncio.get_running_loop()
    chance = random.Random(_SEED)
    special = chance.sample(range(fleet.count), fleet.hanging + fleet.garbage)
    hangs = {index: _HANGS[number % len(_HANGS)] for number, index in enumerate(special[: fleet.hanging])}
    garbage = {index: _GARBAGE[number % len(_GARBAGE)] for number, index in enumerate(special[fleet.hanging :])}
    for index in range(fleet.count):
        of_node = varied(document, index)
        good = json.dumps(of_node, separators=(",", ":")).encode()
        answer = _garbage(garbage[index], good) if index in garbage else _with_headers(good)
        views = {} if index in garbage or is_old else {one: _with_headers(_view(of_node, one)) for one in NodeView}
        host, _, port = fleet.address(index).rpartition(":")
        of_page = SimulatedPage(page, index) if page and index not in garbage else None
        made = partial(_Agent, answer, views, hangs.get(index, ""), of_page)
        await loop.create_server(made, host, int(port), backlog=64)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


@contextmanager
def simulated_agents(fleet: Fleet, document: Path, *, page: Path | None = None, is_old: bool = False) -> Iterator[int]:
    """Serve a fleet in a process of its own; its process id.

    Args:
        document: a recorded document of a node.
        page: a recorded page of metrics; None: there is none.
        is_old: the agents know no views of their document.

    Raises:
        RuntimeError: it does not start.
    """
    command = [sys.executable, "-m", "benchmarks.agent.simulated_agents", "--document", str(document)]
    command += ["--count", str(fleet.count), "--hanging", str(fleet.hanging), "--garbage", str(fleet.garbage)]
    command += ["--old"] if is_old else []
    command += ["--page", str(page)] if page else []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("the simulated agents do not start; is port 9455 taken?")
            yield process.pid
        finally:
            process.stdin.close()
            process.wait(20)


def main() -> None:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1250)
    parser.add_argument("--hanging", type=int, default=20)
    parser.add_argument("--garbage", type=int, default=14)
    parser.add_argument("--document", type=Path, help="a recorded document of a node; else one is recorded")
    parser.add_argument("--page", type=Path, help="a recorded page of metrics; else there is none")
    parser.add_argument("--old", action="store_true", help="the agents know no views of their document")
    options = parser.parse_args()
    if options.hanging + options.garbage > options.count:
        parser.error("--hanging and --garbage are together more than --count")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    document = json.loads(options.document.read_text()) if options.document else recorded_document()
    page = options.page.read_text() if options.page else ""
    asyncio.run(_serve(Fleet(options.count, options.hanging, options.garbage), document, page, is_old=options.old))


if __name__ == "__main__":
    main()
