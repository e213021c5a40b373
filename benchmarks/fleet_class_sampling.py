"""How often is the fleet class right on GPUs that train with known faults? Records minutes of them, with labels.

    python -m benchmarks.fleet_class_sampling OUT [--preset two-gpu] [--cases 'ddp-*,pp-healthy'] [--seconds 75]
    python -m benchmarks.fleet_class_sampling OUT --beside SUITE
    python -m benchmarks.fleet_class_accuracy OUT/windows.jsonl

Needs GPUs. The agent's own sources read them once a second while cases of the labelled suite train, each long enough
for some windows of 30 s, with three captures in each. The label of a GPU's window is its rank's ledger in the captures
of that very time, without what the profiler added: the largest share of time that was lost, and under which heading.
Runs that a fault ends have no label and are left out. Windows are kept as soon as they are known, so that a session
that ends early has what it had.

With `--beside` nothing is trained here: a suite that runs meanwhile into that folder is watched, four times a second,
until it writes its report. Its runs take few seconds, so their windows are as long as that.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from benchmarks.labelled_windows import Labelled, right_of, write_windows
from stepscope.agent.fleet.history import GpuHistory
from stepscope.agent.fleet.host_use import HostHistory
from stepscope.agent.fleet.sampling import told_of_gpus
from stepscope.agent.isolation import Timing
from stepscope.agent.sources import Sources
from stepscope.analyzer.fleet import GpuFacts, HostUse, Sample
from stepscope.core.analysis import RankLedger
from stepscope.core.causes import Cause
from stepscope.core.errors import StepscopeError
from stepscope.core.headings import COMPUTE_HEADINGS, EXPOSED_COMMUNICATION_HEADINGS, IDLE_HEADINGS, Heading
from stepscope.core.readings import Labels
from stepscope.core.run_layout import TRACES_FOLDER
from stepscope.core.steps import Step
from stepscope.reference_workloads.launch import run_workload
from stepscope.reference_workloads.suite.cases import Case, find_cases
from stepscope.reference_workloads.suite.report import JSON_FILE
from stepscope.reference_workloads.suite.results import RESULTS_FOLDER, RUNS_FOLDER
from stepscope.store.step_lines import read_run_steps
from stepscope.training import Schedule
from stepscope.workflow.analyze import analyze

_SETTLED_FROM = 13
"""Steps of the suite's schedule: captured ones end with 9, and the one after the traces are written is longer."""
_PROBE_STEPS = 9
_CAPTURES = 3
"""In a window."""
_FIRST_STEP, _LAST_CAPTURED = 3, 10
"""Steps of a suite's run before which it settles, and after which its traces are written."""
_QUICK_INTERVAL, _QUICK_WINDOW = 0.25, 1.5
WINDOWS_FILE = "windows.jsonl"
_HOST_CAUSES = {Heading.DATA_LOADING: Cause.DATA_LOADING, Heading.CHECKPOINT: Cause.CHECKPOINT}
"""Whatever else a GPU was empty for is its host."""
_CLOSE = 0.1


@dataclass(frozen=True, slots=True)
class Cut:
    """One window of one GPU, not labelled yet."""

    gpu: int
    begin_ns: int
    end_ns: int
    samples: tuple[Sample, ...]
    facts: GpuFacts
    host: HostUse


class Recorder:
    """Samples all GPUs by the agent's sources, and cuts windows. A context manager.

    Args:
        interval: between samples, in seconds.
        window: how long each is.
        stride: from one to the next, as long as a window by default; where it is less, they overlap.
    """

    def __init__(self, interval: float, window: float, stride: float | None = None) -> None:
        self.window = window
        self._interval = interval
        self._stride = window if stride is None else stride
        self._sources = Sources(Timing(interval=interval))
        self._histories: dict[Labels, GpuHistory] = {}
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

    def cuts_within(self, begin_ns: int, end_ns: int) -> list[Cut]:
        """Windows that lie inside a span of time, ns since the epoch; of each GPU such as do not overlap."""
        found: dict[int, list[Cut]] = {}
        for cut in list(self._cuts):
            chosen = found.setdefault(cut.gpu, [])
            begins = max(begin_ns, chosen[-1].end_ns if chosen else 0)
            if begins <= cut.begin_ns and cut.end_ns <= end_ns:
                chosen.append(cut)
        return [cut for chosen in found.values() for cut in chosen]

    def _run(self) -> None:
        next_cut = time.monotonic() + self.window
        while not self._ended.wait(self._interval):
            states = self._sources.states()
            self._host.observe(states)
            for labels, told in told_of_gpus(states).items():
                self._histories.setdefault(labels, GpuHistory()).add(told)
            if time.monotonic() >= next_cut:
                next_cut += self._stride
                for labels, history in self._histories.items():
                    self._cut(labels, history)

    def _cut(self, labels: Labels, history: GpuHistory) -> None:
        samples = tuple(history.last(self.window))
        told = dict(labels)
        if len(samples) >= 2 and told.get("gpu", "").isdecimal():
            begin_ns = samples[0].time_ns - int(self._interval * 1e9)  # rates are of the time before
            host = self._host.use_of(told["uuid"], self.window)
            self._cuts.append(Cut(int(told["gpu"]), begin_ns, samples[-1].time_ns, samples, history.facts, host))


def record_case(case: Case, out: Path, recorder: Recorder, seconds: float, step_seconds: float = 0.0) -> list[Labelled]:
    """Train one case for a while; the labelled windows of its GPUs.

    Args:
        seconds: after it has settled.
        step_seconds: how long a step takes; where it is not given, a shorter run tells.

    Raises:
        StepscopeError: it cannot be trained or analysed.
    """
    job = case.run.job
    if step_seconds <= 0:
        probe = _train(case, out, f"{case.name}-probe", _PROBE_STEPS, None)
        step_seconds = max(probe, 1e-3)
    num_steps = _SETTLED_FROM + max(job.num_steps, int(seconds / step_seconds))
    once = job.schedule or Schedule()
    period = max(once.warmup + once.active, round(recorder.window / step_seconds / _CAPTURES))
    _train(case, out, case.name, num_steps, replace(once, period=period, repeat=None))
    return windows_of(out / case.name, recorder, _SETTLED_FROM)


def windows_of(run: Path, recorder: Recorder, first: int, last: int | None = None) -> list[Labelled]:
    """Windows of the GPUs of a run that was captured, from a step on to another.

    Raises:
        StepscopeError: it cannot be analysed.
    """
    captures = {
        int(folder.name.removeprefix("step")): {
            ledger.rank: ledger for ledger in analyze([str(folder)], keep=False).analysis.ranks
        }
        for folder in (run / TRACES_FOLDER).glob("step*")
    }
    windows = []
    for rank in read_run_steps(run)[0]:
        steps = [step for step in rank.steps if first <= step.index and (last is None or step.index <= last)]
        ledgers = {index: ranks[rank.rank] for index, ranks in captures.items() if rank.rank in ranks}
        if not steps or not ledgers:
            continue
        for cut in recorder.cuts_within(steps[0].start_ns, steps[-1].end_ns):
            if cut.gpu == rank.rank:
                spent, right = label_of(_ledger_of(cut, rank.steps, ledgers))
                length = (cut.end_ns - cut.begin_ns) / 1e9
                windows.append(
                    Labelled(run.name, cut.gpu, right, cut.samples, length, cut.facts, cut.host, dict(spent))
                )
    return windows


def _ledger_of(cut: Cut, steps: Sequence[Step], ledgers: Mapping[int, RankLedger]) -> dict[Heading, float]:
    """Mean of the captures in the window, or of the nearest one, by the steps that they begin with."""
    begins = {step.index: step.start_ns for step in steps if step.index in ledgers}
    within = [index for index, begin in begins.items() if cut.begin_ns <= begin <= cut.end_ns]
    chosen = within or [min(begins, key=lambda index: abs(begins[index] - cut.begin_ns))]
    paces = [
        (step.end_ns - step.start_ns) / 1e6
        for step in steps
        if not step.captured and cut.begin_ns <= step.start_ns and step.end_ns <= cut.end_ns
    ]
    each = [as_unprofiled(ledgers[index], median(paces) if paces else None) for index in chosen]
    return {heading: fmean(one[heading] for one in each) for heading in Heading}


def as_unprofiled(ledger: RankLedger, step_ms: float | None) -> dict[Heading, float]:
    """A capture's ledger for steps of this length without the profiler: what it adds is the host's, and leaves the GPU
    empty."""
    share = {heading: ledger.ledger[heading] for heading in Heading}
    empty = sum(share[heading] for heading in IDLE_HEADINGS)
    if not (step_ms and ledger.step_ms and empty):
        return share
    added = min(empty, max(0.0, 1.0 - step_ms / ledger.step_ms))
    scale = {heading: (empty - added) / empty if heading in IDLE_HEADINGS else 1.0 for heading in Heading}
    return {heading: share[heading] * scale[heading] / (1.0 - added) if added < 1.0 else 0.0 for heading in Heading}


def watch(suite: Path, out: Path) -> None:
    """Label what is sampled while a suite runs, run by run, until its report is there."""
    kept: list[Labelled] = []
    seen: set[str] = set()
    with Recorder(_QUICK_INTERVAL, _QUICK_WINDOW, _QUICK_INTERVAL) as recorder:
        is_over = False
        while not is_over:
            is_over = (suite / JSON_FILE).exists()
            for result in sorted((suite / RESULTS_FOLDER).glob("*.json")):
                if result.stem in seen:
                    continue
                seen.add(result.stem)
                try:
                    windows = windows_of(suite / RUNS_FOLDER / result.stem, recorder, _FIRST_STEP, _LAST_CAPTURED)
                except (StepscopeError, OSError) as error:
                    print(f"{result.stem}: {error}", file=sys.stderr)
                    continue
                kept += windows
                write_windows(out / WINDOWS_FILE, kept)
                print(f"{result.stem}: {len(windows)} windows", flush=True)
            time.sleep(_QUICK_INTERVAL)


def _train(case: Case, out: Path, name: str, num_steps: int, schedule: Schedule | None) -> float:
    """Seconds of a step."""
    job = case.run.job
    result = run_workload(
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


def label_of(ledger: Mapping[Heading, float]) -> tuple[dict[str, float], frozenset[Cause]]:
    """What the rank's time went into by its trace, and which classes say so."""
    spent = {
        "compute": sum(ledger[heading] for heading in COMPUTE_HEADINGS),
        "exposed_comm": sum(ledger[heading] for heading in EXPOSED_COMMUNICATION_HEADINGS),
        "copy": ledger[Heading.COPY],
        "idle": sum(ledger[heading] for heading in IDLE_HEADINGS),
    }
    why = max(IDLE_HEADINGS, key=lambda heading: ledger[heading])
    bounds = {Cause.COMPUTE_BOUND: ledger[Heading.COMPUTE_BOUND] + ledger[Heading.COMPUTE_OTHER]}
    bounds |= {Cause.MEMORY_BOUND: ledger[Heading.MEMORY_BOUND], Cause.LATENCY_BOUND: ledger[Heading.LATENCY_BOUND]}
    most = max(bounds.values())
    healthy = frozenset(cause for cause, share in bounds.items() if share >= most - _CLOSE)
    return spent, right_of(spent, _HOST_CAUSES.get(why, Cause.HOST_BOUND), healthy)


def main() -> None:
    """Record all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--preset", default="two-gpu")
    parser.add_argument("--cases", default="", help="names or patterns, with commas between; all when left out")
    parser.add_argument("--seconds", type=float, default=75.0, help="of training a case, after it has settled")
    parser.add_argument("--step-ms", type=float, default=0.0, help="of the cases; a short run tells when left out")
    parser.add_argument("--window", type=float, default=30.0)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--beside", type=Path, metavar="SUITE", help="the folder of a suite that runs meanwhile")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.beside is not None:
        watch(options.beside, options.out)
        return
    kept: list[Labelled] = []
    with Recorder(options.interval, options.window, options.interval) as recorder:
        for case in find_cases(options.preset, only=[name for name in options.cases.split(",") if name]):
            if case.injection is not None and case.injection.ends_run:
                continue
            try:
                windows = record_case(case, options.out, recorder, options.seconds, options.step_ms / 1e3)
            except StepscopeError as error:
                print(f"{case.name}: {error}", file=sys.stderr)
                continue
            kept += windows
            write_windows(options.out / WINDOWS_FILE, kept)
            print(f"{case.name}: {len(windows)} windows", flush=True)


if __name__ == "__main__":
    main()
