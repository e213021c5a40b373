"""Agent that is killed while GPUs have errors: each error must be part of one event, whenever the kill comes.

    python -m benchmarks.agent.kills [--kills 50] [--gpus 4] [--seed 1]

A real agent on the fake driver of the tests, with a kernel log in a file. XIDs and SXids come all the time, also while
no agent runs and most of them around a kill; the driver reports some of them, too, before or after the kernel. GPUs are
reset, so that events end. The agent is killed with SIGKILL after a random time, from its first moment on, and started
again. At the end, the errors that its events stand for are compared with those that came. The exit status is 1 if one
is missing or counted twice, two events have one id, or `_events_total` is not the number of events.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

_SECONDS = 60.0
_ADDRESS = re.compile(r":(\d+)/metrics serves")
_XIDS = (31, 48, 94, 119)
_SWITCH = "00000000:C1:00.0"
_SXIDS = ((20001, "Non-fatal"), (20034, "Fatal"))
_RECORD_BYTES = 8192
Errors = Counter[tuple[str, str]]
"""Number of errors by UUID of the GPU (bus id of the switch) and code."""


@dataclass(frozen=True, slots=True)
class KillsResult:
    """Errors that came and those that the events of the last agent stand for.

    Attributes:
        num_events: open and ended ones.
        num_begins: begins that were logged.
        had, found: errors.
        num_doubled_ids: events with the id of another.
        totals: values of `_events_total`.
        events: number of events by the same keys.
    """

    num_kills: int
    num_events: int
    num_begins: int
    had: Errors
    found: Errors
    num_doubled_ids: int
    totals: Errors
    events: Errors

    @property
    def is_right(self) -> bool:
        """Whether nothing was lost or doubled."""
        return self.had == self.found and not self.num_doubled_ids and self.totals == self.events


@dataclass(slots=True)
class _Node:
    """Machine whose GPUs have errors. Methods are called by one thread at a time."""

    machine: Any
    log: Path
    num_gpus: int
    chance: random.Random
    had: Errors = field(default_factory=Counter)
    num_records: int = 0
    told: dict[int, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def has_error(self) -> None:
        """One more error, mostly an XID of a GPU."""
        with self.lock:
            if self.chance.random() < 0.15:
                number, severity = self.chance.choice(_SXIDS)
                self._logs(f"nvidia-nvswitch3: SXid (PCI:{_address(_SWITCH)}): {number}, {severity}, Link 36")
                self.had[_SWITCH, f"sxid_{number}"] += 1
                return
            gpu, xid = self.chance.randrange(self.num_gpus), self.chance.choice(_XIDS)
            values = self.machine.values
            bus_id, uuid = values[f"gpu.{gpu}.pci_bus_id"], values[f"gpu.{gpu}.uuid"]
            self.had[uuid, f"xid_{xid}"] += 1
            who_tells = self.chance.choice(("kernel", "kernel, driver", "driver, kernel"))
            for who in who_tells.split(", "):
                if who == "kernel":
                    self._logs(f"NVRM: Xid (PCI:{_address(bus_id)}): {xid}, pid=7, name=python3")
                else:
                    count = self.told.get(gpu, 0)
                    self.told[gpu] = count + 1
                    self.machine.set(gpu, **{f"xid__{count}": xid, "xids": count + 1})
                    self.machine.write()
                time.sleep(self.chance.choice((0.0, 0.0, 0.1, 0.5)))

    def resets(self) -> None:
        """A GPU is reset: its energy counter restarts."""
        with self.lock:
            gpu = self.chance.randrange(self.num_gpus)
            self.machine.set(gpu, energy_mj=self.chance.randrange(1_000))
            self.machine.write()

    def works(self) -> None:
        """All GPUs use energy."""
        with self.lock:
            for gpu in range(self.num_gpus):
                used = int(self.machine.values[f"gpu.{gpu}.energy_mj"])
                self.machine.set(gpu, energy_mj=used + 300_000)
            self.machine.write()

    def _logs(self, text: str) -> None:
        microseconds = time.monotonic_ns() // 1000
        record = f"4,{self.num_records},{microseconds},-;{text}\n".encode().ljust(_RECORD_BYTES)
        self.num_records += 1
        with self.log.open("ab") as stream:
            stream.write(record)  # appended at once: no reader sees a part of it


def _address(bus_id: str) -> str:
    return bus_id.partition(".")[0][4:].lower()


def count_errors(folder: Path, *, kills: int, num_gpus: int, seed: int, is_quick: bool = False) -> KillsResult:
    """Kill agents, and count the errors in the end.

    Args:
        folder: empty; for library, kernel log and state.
        is_quick: check health every half second, and let each agent live shortly.
    """
    from tests.collectors.fake_nvml import profiles
    from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml

    chance = random.Random(seed)
    machine = FakeNvml(build_fake_nvml(folder / "library"), folder / "nvml.conf")
    for index in range(num_gpus):
        machine.add(profiles.h100(index))
    machine.write()
    log = folder / "kmsg"
    log.touch()
    node = _Node(machine, log, num_gpus, random.Random(seed + 1))
    environment = {
        **machine.environment(),
        "STEPSCOPE_AGENT__KINETO__ENABLED": "false",
        "STEPSCOPE_AGENT__HEALTH__XID_LEAVE_SECONDS": "5",
    }
    agents = _Agents(folder, environment, is_quick=is_quick)
    with agents.running() as first:  # from its first look on, no error may be lost
        first.wait_until_kept()
    with _errors(node, rate=4.0 if is_quick else 1.0):
        for number in range(kills):
            with agents.running() as agent:
                _wait(chance.uniform(0.0, 3.0 if is_quick else 12.0))
                for _ in range(chance.randrange(4)):
                    node.has_error()
                    _wait(chance.uniform(0.0, 0.1))
                agent.kill()
                for _ in range(chance.randrange(3)):
                    node.has_error()
                if chance.random() < 0.5:
                    _wait(chance.uniform(0.0, 1.0))
            print(f"kill {number + 1} of {kills}: {sum(node.had.values())} errors so far", file=sys.stderr)
    with agents.running() as last:
        return last.result(node.had, kills, lambda: agents.num_begins, settle_seconds=2.0 if is_quick else 12.0)


@contextmanager
def _errors(node: _Node, rate: float) -> Iterator[None]:
    ended = threading.Event()

    def run() -> None:
        chance = random.Random(node.chance.random())
        next_reset = time.monotonic() + 15.0
        while not ended.wait(chance.expovariate(rate)):
            node.has_error()
            node.works()
            if time.monotonic() > next_reset:
                node.resets()
                next_reset = time.monotonic() + chance.uniform(5.0, 30.0)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _wait(seconds: float) -> None:
    time.sleep(seconds)


class _Agents:
    """Agents, one after the other, with one state directory."""

    def __init__(self, folder: Path, environment: dict[str, str], *, is_quick: bool) -> None:
        self._environment = environment
        self._log = folder / "agent.log"
        self._log.touch()
        self._command = [sys.executable, "-m", __name__ if __name__ != "__main__" else "benchmarks.agent.kills"]
        self._command += ["--kernel-log", str(folder / "kmsg"), *(["--quick"] if is_quick else []), "--"]
        self._command += ["agent", "run", "--listen", "127.0.0.1:0", "--socket", "", "--interval", "1"]
        self._command += ["--state-dir", str(folder / "state")]

    @property
    def num_begins(self) -> int:
        """Begins of events in the log."""
        lines = self._log.read_text().splitlines()
        return sum(re.search(r": s?xid_\d+, (info|warning|critical): ", line) is not None for line in lines)

    @contextmanager
    def running(self) -> Iterator[_Agent]:
        """One that was just started; killed in the end."""
        begin = self._log.stat().st_size
        with self._log.open("ab") as stream:
            process = subprocess.Popen(
                self._command, stdout=stream, stderr=stream, env=self._environment, start_new_session=True
            )
        agent = _Agent(process, self._log, begin)
        try:
            yield agent
        finally:
            agent.kill()


class _Agent:
    def __init__(self, process: subprocess.Popen[bytes], log: Path, begin: int) -> None:
        self._process = process
        self._log = log
        self._begin = begin

    def kill(self) -> None:
        """SIGKILL, in which no code of it runs any more."""
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait_until_kept(self) -> None:
        """Until its first state is in its file."""
        end = time.monotonic() + _SECONDS
        while not (self._asked("/api/v1/health") or {}).get("is_kept"):
            self._check(end)

    def result(
        self, had: Errors, num_kills: int, num_begins: Callable[[], int], *, settle_seconds: float
    ) -> KillsResult:
        """What it has found, once that is what came, and some time later; or after a minute."""
        end = time.monotonic() + _SECONDS
        settles = end - settle_seconds
        while True:
            document = self._asked("/api/v1/health") or {"events": []}
            found: Errors = Counter()
            for event in document["events"]:
                found[_key(event["labels"], event["code"])] += event["count"]
            if found == had and time.monotonic() < settles:
                end, settles = time.monotonic() + settle_seconds, 0.0  # two more rounds of the checks change nothing
            elif time.monotonic() > end:
                break
            time.sleep(0.5)
        events: Errors = Counter(_key(event["labels"], event["code"]) for event in document["events"])
        ids = [event["id"] for event in document["events"]]
        totals: Errors = Counter()
        for family in text_string_to_metric_families(self._page()):
            for one in family.samples:
                if one.name.endswith("_health_events_total"):
                    totals[_key(one.labels, one.labels["code"])] += int(one.value)
        return KillsResult(num_kills, len(ids), num_begins(), had, found, len(ids) - len(set(ids)), totals, events)

    def _asked(self, path: str) -> Any:
        text = self._get(path)
        return None if text is None else json.loads(text)

    def _page(self) -> str:
        text = self._get("/metrics")
        assert text is not None
        return text

    def _get(self, path: str) -> str | None:
        address = _ADDRESS.search(self._log.read_bytes()[self._begin :].decode())
        if address is None:
            return None
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=15)
            try:
                connection.request("GET", path)
                return connection.getresponse().read().decode()
            finally:
                connection.close()
        return None

    def _check(self, end: float) -> None:
        if self._process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the agent does not run: {self._log.read_text()[-2000:]}")
        time.sleep(0.05)


def _key(labels: dict[str, str], code: str) -> tuple[str, str]:
    return labels.get("uuid") or labels.get("pci_bus_id") or "machine", code


def _run_agent(kernel_log: Path, arguments: list[str], *, is_quick: bool) -> None:
    """The agent, with another kernel log."""
    from stepscope.agent import sources
    from stepscope.cli import main as stepscope
    from stepscope.collectors.kernel_log import KernelLog

    vars(sources)["KernelLog"] = lambda: KernelLog(kernel_log)
    if is_quick:
        sources._HEALTH_SECONDS = 0.5
    stepscope(arguments)


def main() -> int:
    """Print what came and what was found; return 1 if they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--kernel-log", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kernel_log is not None:
        _run_agent(options.kernel_log, options.arguments, is_quick=options.quick)
    with tempfile.TemporaryDirectory() as folder:
        result = count_errors(
            Path(folder), kills=options.kills, num_gpus=options.gpus, seed=options.seed, is_quick=options.quick
        )
    print(f"{result.num_kills} kills, {sum(result.had.values())} errors, {result.num_events} events")
    print(f"lost: {dict(result.had - result.found)}")
    print(f"doubled: {dict(result.found - result.had)}")
    print(f"ids of more than one event: {result.num_doubled_ids}")
    print(
        f"_events_total above and below: {dict(result.totals - result.events)}, {dict(result.events - result.totals)}"
    )
    print(f"begins in the log: {result.num_begins} of {result.num_events}")
    return 0 if result.is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
