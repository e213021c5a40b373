"""Accuracy of the measured pipeline bubble. Prints a table of docs/explanation/accuracy.md.

    python benchmarks/accuracy/pipeline.py [--nap-ms 100] [--repeat 1] [--out FOLDER]

Trains 4 pipeline stages on this machine's CPU with layers that sleep, so that every process is a device of its own.
The truth needs no trace and none of our analysis: each process adds up what its layers slept, and its steps without
the optimizer, by its own clock (truth/rank{r}.jsonl). Exits with status 1 if a case is off by more than 3 points, if
parts do not add up, or if the verdict is not the injected cause.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.core.documents.analysis import Analysis
from stepscope.core.documents.run_directory import TRUTH_FOLDER
from stepscope.reference_workloads import ParallelPlan, run_workload
from stepscope.reference_workloads.plan import find_preset
from stepscope.training import once
from stepscope.workflow.analyze import analyze

STAGES = 4
MOST_POINTS = 3.0


@dataclass(frozen=True)
class Case:
    """One layout and what its verdict must be."""

    name: str
    schedule: str
    micro_batches: int
    stage_layers: tuple[int, ...]
    cause: str = "pipeline_bubble"


CASES = (
    Case("1F1B", "1f1b", 4, (1,) * 4),
    Case("1F1B", "1f1b", 8, (1,) * 4),
    Case("interleaved 1F1B", "interleaved", 4, (1,) * 8),
    Case("interleaved 1F1B", "interleaved", 8, (1,) * 8),
    Case("1F1B, last stage x2", "1f1b", 8, (1, 1, 1, 2), "imbalance"),
    Case("interleaved 1F1B, last stage x2", "interleaved", 8, (1,) * 7 + (2,), "imbalance"),
)


def run(case: Case, out: Path, name: str, nap_ms: float) -> tuple[Analysis, float]:
    """Train and analyze one case; also the idle share of the profiled steps by the processes' own clocks."""
    result = run_workload(
        ParallelPlan(
            pp=STAGES, schedule=case.schedule, micro_batches=case.micro_batches, stage_layers=case.stage_layers
        ),
        out=out,
        run=name,
        preset=replace(find_preset("tiny"), num_layers=sum(case.stage_layers)),
        num_steps=6,
        simulate_compute_ms=nap_ms,
        schedule=once(wait=1, warmup=1, active=3),
        device="cpu",
    )
    analysis = analyze([str(result.run_dir)]).analysis
    captured = {step.index for rank in analysis.ranks for step in rank.steps}
    slept = span = 0.0
    for rank in range(STAGES):
        for line in (result.run_dir / TRUTH_FOLDER / f"rank{rank}.jsonl").read_text().splitlines():
            step = json.loads(line)
            if step["index"] in captured:
                slept += step["slept_seconds"]
                span += step["seconds"] - step["optimizer_seconds"]
    return analysis, 1.0 - slept / span


def main() -> None:
    """Run every case and print one row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nap-ms", type=float, default=100.0)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder in which the runs are kept")
    arguments = parser.parse_args()
    print("| case | M | layers | truth | measured | structural | imbalance | variance | textbook | off by | verdict |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        out = arguments.out or Path(scratch)
        for attempt in range(arguments.repeat):
            for number, case in enumerate(CASES):
                failures += not _report(case, *run(case, out, f"case{number}-{attempt}", arguments.nap_ms))
    sys.exit(1 if failures else 0)


def _report(case: Case, analysis: Analysis, truth: float) -> bool:
    """Print a row; return whether the case is right."""
    p = analysis.pipeline
    if p is None:
        print(f"| {case.name} | {case.micro_batches} | not recognized |")
        return False
    off = 100 * (p.measured - truth)
    adds_up = abs(p.structural + p.imbalance + p.variance - p.measured) < 1e-9
    named = f"{analysis.verdict.cause} ({p.schedule})"
    shares = " | ".join(
        f"{share:.1%}" for share in (truth, p.measured, p.structural, p.imbalance, p.variance, p.textbook)
    )
    layers = ",".join(map(str, case.stage_layers))
    print(f"| {case.name} | {case.micro_batches} | {layers} | {shares} | {off:+.1f} points | {named} |", flush=True)
    return abs(off) <= MOST_POINTS and adds_up and analysis.verdict.cause == case.cause


if __name__ == "__main__":
    main()
