"""Accuracy of the analysis on labelled traces. Prints the table of docs/explanation/accuracy.md.

    python benchmarks/accuracy/analysis.py TRACES

TRACES holds one folder a case with one trace a rank, and truth.json: for each case its cause and, by rank, an
independent reading of the window (fractions compute, exposed_comm, comm_wait, comm_transfer, copy, idle).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from stepscope.core.documents.analysis import Ledger
from stepscope.core.vocabulary import (
    COMPUTE_CATEGORIES,
    EXPOSED_COMMUNICATION_CATEGORIES,
    IDLE_CATEGORIES,
    TimeCategory,
)
from stepscope.workflow.analyze import analyze

_GROUPS = {
    "compute": COMPUTE_CATEGORIES,
    "exposed_comm": EXPOSED_COMMUNICATION_CATEGORIES,
    "comm_wait": (TimeCategory.WAIT, TimeCategory.BUBBLE),
    "comm_transfer": (TimeCategory.COMMUNICATION,),
    "copy": (TimeCategory.COPY,),
    "idle": IDLE_CATEGORIES,
}


def main() -> None:
    """Analyse every case and print one row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    folder = parser.parse_args().traces
    truth = json.loads((folder / "truth.json").read_text())
    print("| case | built in | verdict | confidence | largest deviation, points |")
    print("| --- | --- | --- | --- | --- |")
    right = 0
    worst = 0.0
    for case, expected in truth.items():
        analysis = analyze([str(folder / case)]).analysis
        deviations = {
            f"{group}, rank {rank.rank}": abs(_sum(rank.ledger, categories) - expected["ranks"][rank.rank][group]) * 100
            for rank in analysis.ranks
            for group, categories in _GROUPS.items()
        }
        largest = max(deviations, key=lambda name: deviations[name])
        worst = max(worst, deviations[largest])
        right += analysis.verdict.cause in expected["cause"]
        print(
            f"| {case} | {', '.join(expected['cause'])} | {analysis.verdict.cause} | {analysis.verdict.confidence:.2f}"
            f" | {deviations[largest]:.3f} ({largest}) |"
        )
    print(f"\n{right} of {len(truth)} causes right, largest deviation {worst:.3f} points")


def _sum(ledger: Ledger, categories: tuple[TimeCategory, ...]) -> float:
    return sum(ledger[category] for category in categories)


if __name__ == "__main__":
    main()
