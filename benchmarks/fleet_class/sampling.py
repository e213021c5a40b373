"""Recording of labelled windows of GPUs that train with known faults, for the accuracy of the fleet class.

    python -m benchmarks.fleet_class.sampling OUT [--preset two-gpu] [--cases 'ddp-*,pp-healthy'] [--windows 2]
    python -m benchmarks.fleet_class.sampling OUT --cases '*-healthy' --on-one-gpu
    python -m benchmarks.fleet_class.accuracy OUT/windows.jsonl

Needs GPUs. The agent's own sources read them once a second while cases of the labelled suite train. Steps are captured
between unprofiled windows of 30 s; the label of a GPU's window is its rank's ledger in the captures before and after it
(`windows`). A short run measures the step time of a case, unless given: `--step-ms ddp-healthy=195`.
Runs that a fault ends have no label and are left out. Traces are analysed while the next case trains, and windows kept
as soon as they are known, so that a session that ends early has what it had.

`--on-one-gpu` puts all ranks on one GPU, where they talk as over TCP. Its label is that of all of them together, so
that it takes healthy cases alone in which all do the same at the same time.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from benchmarks.fleet_class.windows import (
    Captured,
    Labelled,
    label_between,
    mean_step,
    pace_within,
    undisturbed,
    write_windows,
)
from benchmarks.ranks import run_on_one_gpu
from stepscope.agent.fleet.history import GpuHistory, HostHistory, gpu_values_by_device
from stepscope.agent.gpus.supervisor import ProbeTiming
from stepscope.agent.sources import AgentSources
from stepscope.analyzer.fleet import GpuFacts, GpuSample, HostUse
from stepscope.core.documents.run_directory import TRACES_FOLDER, trace_path
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.hardware.devices import Device
from stepscope.core.text.numbers import counted
from stepscope.reference_workloads.launch import WorkloadResult, run_workload
from stepscope.reference_workloads.suite.cases import SuiteCase, find_cases
from stepscope.store.step_records import read_run_steps
from stepscope.training import Schedule
from stepscope.workflow.analyze import analyze

_PROBE_STEPS = 9
_MARGIN_SECONDS = 3.0
"""More than a window lies between two captures: samples and steps do not begin at the same time."""
_SLOWER = 1.08
"""Steps may take this many times what they were said to."""
_BESIDE = 5
"""Steps between two captures that are in no window."""
_ANALYSING = 4
"""Processes."""
WINDOWS_FILE = "windows.jsonl"
CAPTURES_FILE = "captures.json"

Captures = dict[str, dict[int, Captured]]
"""By the capture's folder and the rank."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One window of one GPU, not labelled yet."""

    gpu: int
    begin_ns: int
    end_ns: int
    samples: tuple[GpuSample, ...]
    facts: GpuFacts
    host: HostUse


class Recorder:
    """Recorder of all GPUs by the agent's sources, cut into windows. A context manager.

    Args:
        interval: between samples, in seconds, and from the beginning of a window to that of the next.
        window: how long each is.
    """

    def __init__(self, interval: float, window: float) -> None:
        self.window = window
        self._interval = interval
        self._sources = AgentSources(ProbeTiming(interval=interval))
        self._histories: dict[Device, GpuHistory] = {}
        self._host = HostHistory()
        self._cuts: list[Cut] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Recorder:
        self._sources.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._sources.__exit__()

    def cuts(self) -> list[Cut]:
        """All windows until now; those of a GPU overlap."""
        return list(self._cuts)

    def _run(self) -> None:
        next_cut = time.monotonic() + self.window
        while not self._ended.wait(self._interval):
            states = self._sources.states()
            self._host.observe(states)
            for device, values in gpu_values_by_device(states).items():
                self._histories.setdefault(device, GpuHistory()).add(values)
            if time.monotonic() >= next_cut:
                next_cut += self._interval
                for device, history in self._histories.items():
                    self._cut(device, history)

    def _cut(self, device: Device, history: GpuHistory) -> None:
        samples = tuple(history.last(self.window))
        if len(samples) >= 2 and device.index.isdecimal():
            begin_ns = samples[0].time_ns - int(self._interval * 1e9)  # rates are of the time before
            host = self._host.use_of(device.uuid, self.window)
            self._cuts.append(Cut(int(device.index), begin_ns, samples[-1].time_ns, samples, history.facts, host))


def record_case(
    case: SuiteCase,
    out: Path,
    num_windows: int,
    window: float,
    step_seconds: float | None,
    train: Callable[..., WorkloadResult] = run_workload,
) -> Path:
    """Train one case for a while and return its run directory.

    Args:
        train: starts the ranks.
        num_windows: of this many seconds, with a capture before and after each.
        step_seconds: how long a step takes; where it is not known, a shorter run tells.

    Raises:
        StepscopeError: it cannot be trained.
    """
    if step_seconds is None:
        step_seconds = max(1e-3, _train(case, out, f"{case.name}-probe", _PROBE_STEPS, None, train))
    once = case.run.job.schedule or Schedule()
    between = math.ceil((window + _MARGIN_SECONDS) * _SLOWER / step_seconds) + _BESIDE
    # the last step of a capture is not whole: one more
    schedule = replace(once, active=once.active + 1, period=once.active + 1 + between, repeat=num_windows + 1)
    last = schedule.first + num_windows * (schedule.active + between) + schedule.active
    _train(case, out, case.name, last + 1, schedule, train)
    return out / case.name


def _train(
    case: SuiteCase,
    out: Path,
    name: str,
    num_steps: int,
    schedule: Schedule | None,
    train: Callable[..., WorkloadResult],
) -> float:
    """Seconds of a step."""
    job = case.run.job
    result = train(
        job.plan,
        out=out,
        run=name,
        preset=job.preset,
        recipe=job.recipe,
        injections=job.injections,
        num_steps=num_steps,
        simulate_compute_ms=job.simulate_ms,
        profiled=schedule is not None,
        schedule=schedule,
        seed=job.seed,
        device=job.device_type,
    )
    return result.step_seconds


def captures_of(run: Path) -> tuple[Captures, list[str]]:
    """What each rank did in the captures of a run, and what could not be analysed.

    Stored in the run, so that labels can be made again without its traces.
    """
    captures: Captures = {}
    troubles = []
    for folder in sorted((run / TRACES_FOLDER).iterdir()):
        try:
            ledgers = analyze([str(folder)], keep=False).analysis.ranks
        except StepscopeError as error:
            troubles.append(f"{run.name}: {error}")
            continue
        means = {ledger.rank: mean_step(ledger) for ledger in ledgers}
        captures[folder.name] = {rank: captured for rank, captured in means.items() if captured is not None}
    (run / CAPTURES_FILE).write_bytes(msgspec.json.encode(captures))
    return captures, troubles


def windows_of(run: Path, cuts: Sequence[Cut], captures: Captures, *, on_one_gpu: bool = False) -> list[Labelled]:
    """The windows between captures, labelled: of rank r those of GPU r that do not overlap.

    Args:
        on_one_gpu: all ranks have GPU 0, whose windows count once.
    """
    windows = []
    ranks = read_run_steps(run)[0]
    for rank in ranks[:1] if on_one_gpu else ranks:
        there = [each.rank for each in ranks] if on_one_gpu else [rank.rank]
        for first, steps, next_first in undisturbed(rank.steps):
            folders = [trace_path(at, rank.rank).parent.name for at in (first, next_first)]
            beside = [captures[name][at] for name in folders for at in there if at in captures.get(name, {})]
            free_ns = steps[0].start_ns
            for cut in cuts if len(beside) == len(folders) * len(there) else ():
                if cut.gpu != rank.rank or cut.begin_ns < free_ns or cut.end_ns > steps[-1].end_ns:
                    continue
                step_ms = pace_within(steps, cut.begin_ns, cut.end_ns)
                if step_ms is None:
                    continue
                free_ns = cut.end_ns
                spent, right = label_between(beside, step_ms)
                length = (cut.end_ns - cut.begin_ns) / 1e9
                windows.append(Labelled(run.name, cut.gpu, right, cut.samples, length, cut.facts, cut.host, spent))
    return windows


def chosen(preset: str, names: Sequence[str], *, on_one_gpu: bool) -> list[SuiteCase]:
    """Cases that have labels."""
    cases = find_cases(preset, only=names)
    if not on_one_gpu:
        return [case for case in cases if case.injection is None or not case.injection.ends_run]
    alike = [case for case in cases if case.injection is None and case.run.job.plan.pp == 1]
    return [replace(case, name=f"{case.name}-tcp") for case in alike]


def _step_seconds(text: str) -> dict[str, float]:
    try:
        return {name: float(ms) / 1e3 for name, ms in (word.split("=") for word in text.split(",") if word)}
    except ValueError:
        raise UsageError(f"--step-ms takes NAME=MILLISECONDS,..., not {text!r}") from None


def main() -> None:
    """Record all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--preset", default="two-gpu")
    parser.add_argument("--cases", default="", help="comma-separated names or patterns; default: all")
    parser.add_argument(
        "--on-one-gpu", action="store_true", help="run all ranks on one GPU, each as on its own machine"
    )
    parser.add_argument("--windows", type=int, default=2, help="windows of each case")
    parser.add_argument(
        "--step-ms", type=_step_seconds, default={}, metavar="NAME=MS,...", help="known step times of cases"
    )
    parser.add_argument("--window", type=float, default=30.0, help="length of a window, seconds")
    parser.add_argument("--interval", type=float, default=1.0, help="interval of the samples, seconds")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    train = run_on_one_gpu if options.on_one_gpu else run_workload
    cases = chosen(options.preset, list(filter(None, options.cases.split(","))), on_one_gpu=options.on_one_gpu)
    if unknown := options.step_ms.keys() - {case.name for case in cases}:
        parser.error(f"--step-ms: there is no case {sorted(unknown)[0]}; choose of {', '.join(c.name for c in cases)}")
    kept: list[Labelled] = []
    pending: dict[Path, Future[tuple[Captures, list[str]]]] = {}

    def keep(runs: Sequence[Path]) -> None:
        for run in runs:
            captures, troubles = pending.pop(run).result()
            windows = windows_of(run, recorder.cuts(), captures, on_one_gpu=options.on_one_gpu)
            kept.extend(windows)
            write_windows(options.out / WINDOWS_FILE, kept)
            print(*troubles, f"{run.name}: {counted(len(windows), 'window')}", sep="\n", flush=True)

    spawned = multiprocessing.get_context("spawn")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    pool = ProcessPoolExecutor(_ANALYSING, spawned, signal.signal, (signal.SIGINT, signal.SIG_IGN))
    with Recorder(options.interval, options.window) as recorder, pool:
        try:
            for case in cases:
                length = options.step_ms.get(case.name)
                try:
                    run = record_case(case, options.out, options.windows, options.window, length, train)
                except StepscopeError as error:
                    print(f"{case.name}: {error}", file=sys.stderr)
                    continue
                keep([earlier for earlier, analysed in pending.items() if analysed.done()])
                pending[run] = pool.submit(captures_of, run)
        finally:
            keep(list(pending))


if __name__ == "__main__":
    main()
