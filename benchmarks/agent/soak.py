"""Soak test of the agent: 24 hours of its work in a few minutes, on the fake driver of the tests.

    python -m benchmarks.agent.soak [--hours 24] [--gpus 8]

Time is simulated: the periodic work of the agent (reading all GPUs every second; host, jobs, health and fleet class at
their intervals; a scrape every 15 s) runs one task after the other at full speed. Every two hours a GPU hangs for five
minutes. Memory, files, threads and processes are measured each hour; after a quarter of the time they must not grow,
else the exit status is 1. The HTTP server and the training socket are not covered.
"""

from __future__ import annotations

import argparse
import os
import select
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

MOST_GROWTH_MIB = 1.0
_PIPES = 2
"""Files for each process that reads GPUs; one that keeps hanging has its own for ever longer."""
_HANG_EVERY, _HANG_SECONDS = 7200.0, 300.0
_ANSWER_SECONDS, _SILENT_SECONDS = 60.0, 0.5
"""Real seconds that a reading is waited for before made-up time goes on: while all GPUs answer, and once one hangs."""
_BLAMED_SECONDS = 15.0
"""Made-up time after which the GPU that hangs has a process of its own, which is not waited for."""


class MadeUpTime:
    """Simulated clock of this process, advanced by the test."""

    def __init__(self) -> None:
        self.start_ns = time.time_ns()
        self.seconds = 0.0
        self.really = time.monotonic
        time.monotonic = lambda: 1000.0 + self.seconds
        time.time_ns = lambda: self.start_ns + int(self.seconds * 1e9)
        time.time = lambda: time.time_ns() / 1e9


class OfMadeUpTime:
    """Readings of a process on the real clock, restamped to the simulated time."""

    def __init__(self, collector: Any) -> None:
        self._collector = collector

    def collect(self) -> Any:
        """The same with other times."""
        told, now_ns = self._collector.collect(), time.time_ns()
        return replace(told, readings=tuple(replace(reading, time_ns=now_ns) for reading in told.readings))


@dataclass(frozen=True)
class Use:
    """Resources held by the process."""

    hour: int
    mib: float
    files: int
    threads: int
    processes: int


def main() -> int:
    """Print the held resources hour by hour; return 1 if they grow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--gpus", type=int, default=8)
    options = parser.parse_args()
    clock = MadeUpTime()  # before the agent's modules take the clocks
    with tempfile.TemporaryDirectory() as folder:
        uses = list(_run(clock, options.hours, options.gpus, Path(folder)))
    print(f"{'hour':>4} {'MiB':>8} {'files':>6} {'threads':>8} {'processes':>10}")
    for use in uses:
        print(f"{use.hour:4} {use.mib:8.1f} {use.files:6} {use.threads:8} {use.processes:10}")
    return _judge(uses)


def _judge(uses: Sequence[Use]) -> int:
    settled = uses[len(uses) // 4 :]
    first, last = settled[0], settled[-1]
    grown = last.mib - first.mib
    print(f"from hour {first.hour} to {last.hour}: {grown:+.1f} MiB")
    has_more_files = last.files - _PIPES * last.processes > first.files - _PIPES * first.processes
    return 1 if grown > MOST_GROWTH_MIB or has_more_files or last.threads > first.threads else 0


def _run(clock: MadeUpTime, hours: int, num_gpus: int, folder: Path) -> Iterator[Use]:
    from stepscope.agent.exporter.metrics_page import MetricsPage
    from stepscope.agent.fleet.fleet_source import FleetSource
    from stepscope.agent.gpus.gpu_source import GpuSource
    from stepscope.agent.gpus.probes import GpuProbes
    from stepscope.agent.gpus.supervisor import ProbeTiming
    from stepscope.agent.health.health_source import HealthSource
    from stepscope.agent.jobs.job_collector import JobCollector
    from stepscope.agent.polling import SourceState
    from stepscope.collectors.host.collector import HostCollector, InfinibandCollector
    from stepscope.collectors.host.processes import gpu_users_of
    from stepscope.core.metrics.readings import Collection, Collector
    from tests.collectors.fake_nvml import profiles
    from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml

    machine = FakeNvml(build_fake_nvml(folder / "library"), folder / "nvml.conf")
    for index in range(num_gpus):
        machine.add(profiles.h100(index))
    machine.write()
    probes = GpuProbes(ProbeTiming(stale=1e9), environment=machine.environment())
    states: dict[str, SourceState] = {}

    def told() -> tuple[SourceState, ...]:
        return tuple(states.values())

    def nvml() -> tuple[SourceState, ...]:
        return (states["nvml"],) if "nvml" in states else ()

    def users() -> object:
        return gpu_users_of(states["nvml"].collection if "nvml" in states else Collection())

    sources: list[tuple[str, Collector, float]] = [
        ("nvml", OfMadeUpTime(GpuSource(probes, quiet_seconds=8.0)), 1.0),
        ("host", HostCollector(gpu_users=users), 5.0),  # type: ignore[arg-type]
        ("infiniband", InfinibandCollector(), 5.0),
        ("jobs", JobCollector(nvml), 5.0),
        ("health", HealthSource(told, "nvml"), 5.0),
        ("fleet_class", FleetSource(told), 1.0),
    ]
    page = MetricsPage(told)
    due = {name: 0.0 for name, _, _ in sources}
    scrape_due, hour_due, hang_due = 0.0, 3600.0, _HANG_EVERY
    while clock.seconds < 3600 * hours + 1:
        since = clock.seconds - hang_due
        _read_gpus(clock, probes, _SILENT_SECONDS if 0 <= since < _BLAMED_SECONDS else _ANSWER_SECONDS)
        for name, collector, interval in sources:
            if clock.seconds >= due[name]:
                due[name] = clock.seconds + interval
                collection = collector.collect()
                number = states[name].num_collections + 1 if name in states else 1
                states[name] = SourceState(
                    name, collection, time.time_ns(), 0.001, num_collections=number, age_seconds=0.0
                )
        if clock.seconds >= scrape_due:
            scrape_due += 15.0
            page.encoded(accept_encoding="gzip")
        if clock.seconds >= hang_due:
            is_over = clock.seconds >= hang_due + _HANG_SECONDS
            machine.set(1, hang="" if is_over else "nvmlDeviceGetPowerUsage")
            machine.write()
            hang_due += _HANG_EVERY if is_over else 0.0
        if clock.seconds >= hour_due:
            yield _use(round(hour_due / 3600), probes)
            hour_due += 3600.0
        clock.seconds += 1.0
    _end(clock, probes)


def _read_gpus(clock: MadeUpTime, probes: object, patience: float) -> None:
    """One round of the thread that asks for GPUs: until those that answer have, or none does any more."""
    supervisor = probes._supervisor  # type: ignore[attr-defined]  # its own thread goes by the real clock
    end = clock.really() + patience
    while clock.really() < end:
        supervisor.step(time.monotonic(), time.time_ns())
        probe = supervisor._shared.probe
        if probe is None or not supervisor._shared.is_waiting:
            break
        select.select([probe], [], [], 0.1)
    probes._publish()  # type: ignore[attr-defined]


def _end(clock: MadeUpTime, probes: object) -> None:
    while not probes._supervisor.close(time.monotonic()):  # type: ignore[attr-defined]
        clock.seconds += 0.1
        select.select([], [], [], 0.05)


def _use(hour: int, probes: object) -> Use:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Use(
        hour,
        pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
        len(probes._supervisor.probes()),  # type: ignore[attr-defined]
    )


if __name__ == "__main__":
    raise SystemExit(main())
