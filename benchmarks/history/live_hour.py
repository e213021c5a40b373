"""An hour of two real agents on the fake driver of the tests, at a faster clock: their pages, scrape by scrape.

The agents poll each second and are scraped each second; a scrape stands for 15 s, and the GPUs' values change as much.
Jobs begin, end and share a GPU; a GPU's memory has a fault for a while; one machine is down for ten minutes, and its
counters begin at 0 again.
"""

from __future__ import annotations

import http.client
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.agent.real_agent import RealAgent, started_agent
from stepscope.store.history.questions import Labels
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml

_GPUS = 4
_SCRAPE_MS = 15_000
_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RawPage:
    """One scrape: labels of the target, time (ms since the epoch), and the page; None: no answer."""

    target: Labels
    time_ms: int
    text: bytes | None


class Node:
    """A machine with GPUs, its agent, and the processes of its jobs."""

    def __init__(self, folder: Path, library: Path, name: str, rack: str) -> None:
        folder.mkdir()
        self.target: Labels = (("instance", f"{name}:9455"), ("rack", rack))
        self._folder = folder
        self._machine = FakeNvml(library, folder / "nvml.conf")
        self._energy = [1e9 * (index + 1) for index in range(_GPUS)]
        for index in range(_GPUS):
            self._machine.add({**profiles.h100(index), "uuid": f"GPU-{name}-{index}"})
        self.advance(0.0, {})
        self._agent: ExitStack | None = None
        self._port = 0

    def start(self) -> RealAgent:
        """Start its agent.

        Raises:
            RuntimeError: it does not start.
        """
        settings = {"STEPSCOPE_AGENT__KINETO__ENABLED": "false", "STEPSCOPE_AGENT__EXPORTER__METRICS": "full"}
        self._agent = ExitStack()
        environment = {**self._machine.environment(), **settings}
        agent = self._agent.enter_context(started_agent(self._folder, "--interval", "1", environment=environment))
        self._port = agent.port
        return agent

    def restart(self) -> None:
        """Start its agent after a reboot: counters of the GPUs begin at 0."""
        self._energy = [0.0] * _GPUS
        self.start()

    def kill(self) -> None:
        """End its agent."""
        if self._agent is not None:
            self._agent.close()
        self._agent = None

    def advance(self, minute: float, holders: dict[int, list[int]]) -> None:
        """Values of the GPUs a scrape later.

        Args:
            minute: of the hour.
            holders: process ids by GPU.
        """
        for index in range(_GPUS):
            pids = holders.get(index, [])
            busy = (0.55 + 0.4 * math.sin(minute * (0.7 + index / 10) + index)) if pids else 0.02
            watts = 90.0 + 600.0 * max(busy, 0.0)
            self._energy[index] += watts * _SCRAPE_MS
            processes: dict[str, object] = {"compute__count": len(pids)}
            for place, pid in enumerate(pids):
                processes |= {f"compute__{place}__pid": pid, f"compute__{place}__memory": (20 + place) << 30}
            self._machine.set(
                index,
                power_mw=round(watts * 1e3),
                field__186=f"u {round(watts * 1e3)}",
                energy_mj=round(self._energy[index]),
                utilization=round(100 * max(busy, 0.0)),
                temperature__0=round(35 + 45 * max(busy, 0.0)),
                memory_used=(1 << 30) + (len(pids) * (20 << 30)),
                clock__1=1980 if pids else 345,
                remap_failed=int(index == 3 and 0.1 <= minute / 60.0 < 0.9),
                **processes,
            )
        self._machine.write()

    def page(self, time_ms: int) -> RawPage:
        """Its page now, as of a time."""
        if self._agent is None:
            return RawPage(self.target, time_ms, None)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request("GET", "/metrics", headers={"Accept": "text/plain;version=0.0.4"})
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException):
            return RawPage(self.target, time_ms, None)
        finally:
            connection.close()
        return RawPage(self.target, time_ms, text if response.status == 200 else None)


@contextmanager
def running_job(job_id: str, user: str) -> Iterator[int]:
    """A process of a Slurm job; its id."""
    variables = {"SLURM_JOB_ID": job_id, "SLURM_JOB_USER": user, "SLURM_JOB_NAME": f"train-{job_id}"}
    command = [sys.executable, "-c", "import time; time.sleep(3600)"]
    with subprocess.Popen(command, env={**os.environ, **variables}) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def record(
    folder: Path,
    begin_ms: int,
    *,
    minutes: float = 60.0,
    seconds_a_scrape: float = 1.0,
    progress: Callable[[str], None] = lambda _: None,
) -> list[RawPage]:
    """Pages of two agents; `begin_ms` is the time of the first scrape, ms since the epoch.

    Raises:
        RuntimeError: an agent does not start.
    """
    library = build_fake_nvml(folder / "library")
    nodes = [Node(folder / name, library, name, rack) for name, rack in (("node-a", "r1"), ("node-b", "r2"))]
    first, second = nodes
    pages: list[RawPage] = []
    with ExitStack() as stack:
        stack.callback(first.kill)
        stack.callback(second.kill)
        jobs = [
            stack.enter_context(running_job(str(101 + number), user))
            for number, user in enumerate(("ann", "bob", "ann"))
        ]
        for node in nodes:
            node.start()
        num_scrapes = round(minutes * 60_000 / _SCRAPE_MS)
        is_down = False
        began = time.monotonic()
        for number in range(num_scrapes):
            share = number / num_scrapes
            if (0.6 <= share < 0.77) != is_down:
                is_down = not is_down
                (second.kill if is_down else second.restart)()
                began = time.monotonic() - number * seconds_a_scrape
            for node, holders in zip(nodes, _holders(share, jobs), strict=True):
                node.advance(share * 60.0, holders)
            time.sleep(max(began + (number + 1) * seconds_a_scrape - time.monotonic(), 0.0))
            now_ms = begin_ms + number * _SCRAPE_MS + round(time.monotonic() * 1e3) % 20  # as scrapes jitter
            pages += [first.page(now_ms), second.page(now_ms + 6_000)]
            if number % 40 == 0:
                progress(f"{number} of {num_scrapes} scrapes")
    return pages


def _holders(share: float, jobs: list[int]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Processes on the GPUs of each machine, by the share of the hour that is over."""
    one, two, three = jobs
    if share < 0.4:
        return {0: [one], 1: [one], 2: [one], 3: []}, {0: [one], 1: [two], 2: [two, three]}
    if share < 0.5:
        return {3: [three]}, {0: [two], 1: [two]}
    return {0: [two], 1: [two], 2: [three], 3: [three]}, {0: [two], 1: [three], 2: [three], 3: [one, two]}
