"""Accuracy of `stepscope whatif`: replay errors of recorded cases, and predictions against the run without the cause.

    python benchmarks/accuracy/what_if.py ../shared/traces/h100x2

Each case's replay with nothing changed is compared with its measured whole steps. Removing the built-in cause of three
cases must give the healthy run's step time: as profiled, and without the profiler.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from stepscope.analyzer.what_if.graph_layout import EdgeKind
from stepscope.analyzer.what_if.job_graph import NEVER
from stepscope.analyzer.what_if.whole_job import replay_model
from stepscope.core.documents.what_if import Fix, WhatIfReport
from stepscope.core.vocabulary import Cause
from stepscope.workflow.job_input import read_job
from stepscope.workflow.what_if import what_if

REPLAY_GOAL = 0.02
PREDICTION_GOAL = 0.08
CONTROL = "ddp"
ABLATED = (EdgeKind.EVENT, EdgeKind.QUEUE, EdgeKind.BLOCKING, EdgeKind.STREAM, EdgeKind.TRANSFER, EdgeKind.LAUNCH)
PREDICTED = (("slow_loader", Cause.DATA_LOADING), ("straggler", Cause.STRAGGLER), ("ckpt_stall", Cause.CHECKPOINT))


def main() -> int:
    """Print both tables; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with one folder per case and truth.json")
    parser.add_argument("--only", help="comma-separated cases")
    parser.add_argument("--ablate", action="store_true", help="replay without one kind of dependency at a time")
    options = parser.parse_args()
    truth = json.loads((options.folder / "truth.json").read_text())
    cases = options.only.split(",") if options.only else sorted(truth)
    if options.ablate:
        return _print_ablations(options.folder, cases)
    reports = {case: _report(options.folder / case, truth[case]) for case in cases}
    missed = _print_replays(reports)
    missed += _print_predictions(reports, truth)
    return 1 if missed else 0


def _report(folder: Path, truth: dict[str, float]) -> WhatIfReport:
    started = time.process_time()
    report = what_if([str(folder)], unprofiled_step_ms=truth["unprofiled_step_ms"])
    print(f"{folder.name}: {time.process_time() - started:.1f} CPU s", file=sys.stderr)
    return report


def _print_replays(reports: dict[str, WhatIfReport]) -> int:
    print(f"{'case':14} {'measured':>9} {'replayed':>9} {'error':>8}  {'unprofiled':>10} {'host x':>7}  skipped steps")
    missed = 0
    for case, report in reports.items():
        missed += abs(report.replay_error) > REPLAY_GOAL
        scale = "-" if report.host_scale is None else f"{report.host_scale:.2f}"
        print(
            f"{case:14} {report.measured_step_ms:9.2f} {report.replayed_step_ms:9.2f} {report.replay_error:+8.2%}"
            f"  {report.unprofiled_step_ms:10.1f} {scale:>7}  {report.skipped_steps or ''}"
        )
    return missed


def _print_predictions(reports: dict[str, WhatIfReport], truth: dict[str, dict[str, float]]) -> int:
    if CONTROL not in reports:
        return 0
    captured, unprofiled = reports[CONTROL].measured_step_ms, truth[CONTROL]["unprofiled_step_ms"]
    print(f"\npredicted step of {CONTROL}: {captured:.1f} ms profiled, {unprofiled:.1f} ms unprofiled")
    missed = 0
    for case, cause in PREDICTED:
        if case not in reports:
            continue
        fix = next(fix for fix in reports[case].fixes if fix.fix is cause)
        missed += not _hits(fix, captured, unprofiled)
        calibrated = fix.calibrated_step_ms
        beside = "not calibrated"
        if calibrated is not None:
            beside = f"calibrated {calibrated:.1f} ms ({calibrated / unprofiled - 1:+.1%} of unprofiled)"
        of_captured = f"{fix.step_ms / captured - 1:+.1%} of captured"
        print(f"{case:14} without {cause:13} {fix.step_ms:7.1f} ms ({of_captured}); {beside}")
    return missed


def _print_ablations(folder: Path, cases: list[str]) -> int:
    """Replay errors when the graph lacks one kind of edge: the edges that keep errors small."""
    print(f"{'case':14} {'all edges':>10} " + " ".join(f"{kind.name.lower():>10}" for kind in ABLATED))
    for case in cases:
        model = replay_model(read_job([str(folder / case)]).views)
        if model is None:
            continue
        errors = [model.step_ms(model.base) / model.measured_ms() - 1]
        for kind in ABLATED:
            edges = tuple(
                replace(e, base_ns=np.full(len(e), NEVER)) if e.kind is kind else e for e in model.graph.edges
            )
            without = replace(model, graph=replace(model.graph, edges=edges))
            errors.append(without.step_ms(model.base) / model.measured_ms() - 1)
        print(
            f"{case:14} " + " ".join(f"{error:+10.2%}" if abs(error) < 10 else f"{'no step':>10}" for error in errors)
        )
    return 0


def _hits(fix: Fix, captured: float, unprofiled: float) -> bool:
    pairs = [(fix.step_ms, captured), (fix.calibrated_step_ms, unprofiled)]
    return any(step is not None and abs(step / goal - 1) <= PREDICTION_GOAL for step, goal in pairs)


if __name__ == "__main__":
    raise SystemExit(main())
