"""Accuracy of `stepscope whatif --fix pipeline_bubble`: predictions against runs with that many micro-batches.

    python benchmarks/accuracy/pipeline_what_if.py [--layer-ms 80] [--out FOLDER]

Trains on this machine's CPU with layers that sleep, so that every process is a device of its own. The same batch is cut
into 2, 4 and 8 micro-batches (a layer sleeps as much less a micro-batch), and each run is predicted from the coarser
ones. Exits with status 1 if an unchanged replay is off by more than 3%.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from stepscope.core.documents.what_if import WhatIfReport
from stepscope.core.vocabulary import Cause
from stepscope.reference_workloads import ParallelPlan, run_workload
from stepscope.training import once
from stepscope.workflow.what_if import what_if

REPLAY_GOAL = 0.03
CUTS = (2, 4, 8)
LAYOUTS = (("1f1b", (2, 2)), ("gpipe", (2, 2)), ("1f1b", (1, 3)))
"""(schedule, layers of each stage)"""


def main() -> int:
    """Print the table; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer-ms", type=float, default=80.0, help="forward of one layer at 2 micro-batches")
    parser.add_argument("--out", type=Path, help="folder in which the runs are kept")
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp())
    print(f"{'layout':20} {'M':>2} {'measured':>9} {'replay':>7}  predicted from")
    missed = 0
    for schedule, layers in LAYOUTS:
        name = f"{schedule} {'+'.join(map(str, layers))}"
        reports: dict[int, WhatIfReport] = {}
        for cut in CUTS:
            plan = ParallelPlan(pp=2, schedule=schedule, micro_batches=cut, stage_layers=layers)
            run = f"{schedule}-{layers[0]}{layers[1]}-{cut}"
            done = run_workload(
                plan,
                out=out,
                run=run,
                num_steps=6,
                simulate_compute_ms=options.layer_ms * CUTS[0] / cut,
                schedule=once(wait=1, warmup=1, active=3),
                device="cpu",
            )
            reports[cut] = what_if([str(done.run_dir)], causes=[Cause.PIPELINE_BUBBLE])
            missed += abs(reports[cut].replay_error) > REPLAY_GOAL
            print(_row(name, cut, reports), flush=True)
    return 1 if missed else 0


def _row(name: str, cut: int, reports: dict[int, WhatIfReport]) -> str:
    measured = reports[cut].measured_step_ms
    predicted = []
    for coarser in (c for c in CUTS if c < cut):
        words = f"in {cut} micro-batches"
        fixes = reports[coarser].fixes
        fix = next(f for f in fixes if f.fix is Cause.PIPELINE_BUBBLE and words in f.change)
        predicted.append(f"{coarser}: {fix.step_ms:,.1f} ms ({fix.step_ms / measured - 1:+.1%})")
    return f"{name:20} {cut:2} {measured:9,.1f} {reports[cut].replay_error:+7.2%}  {', '.join(predicted)}"


if __name__ == "__main__":
    sys.exit(main())
