"""Ablation of a run's layers of evidence: what each says alone, and without each, beside the joined verdict.

    python -m benchmarks.accuracy.layers [--traces FOLDER...] [--counted FOLDER] [--kept FOLDER] [--list]

Over the kept labelled runs and the kept ones of the suite; `--traces` adds folders of runs with a truth.json,
`--counted` the runs of `benchmarks.counted_runs`, unpacked. A verdict is right where cause, reasons, ranks and whether
it is a bottleneck are; it abstains where it names no cause. A layer is left out by hiding its files.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.counted_runs.__main__ import EXPECTED
from benchmarks.labelled_runs.score import KEPT, NAMING, checks_of, kept_runs, truth_of
from stepscope.core.documents.analysis import Analysis, LayerVerdict, Verdict
from stepscope.core.errors import DataError
from stepscope.core.vocabulary import HEALTHY_CAUSES, Cause
from stepscope.workflow.analyze import analyze

FOLDERS = {
    "telemetry": ("steps",),
    "trace": ("traces", "light"),
    "counters": ("metrics",),
    "flight": ("flight",),
    "memory": ("memory",),
    "nccl": ("nccl",),
}
SUITE = Path(__file__).parents[2] / "tests/reference_workloads/suite/recorded"
JOINED = "all joined"
RIGHT, WRONG, ABSTAINED = "right", "wrong", "abstained"
_NO_CAUSE = (Cause.INSUFFICIENT_EVIDENCE, Cause.UNEXPLAINED)


class LabelledRun(NamedTuple):
    """A run and what its verdict should say."""

    name: str
    path: Path
    truth: dict[str, Any]

    def mark(self, verdict: Verdict | None) -> str:
        if verdict is None or (verdict.cause in _NO_CAUSE and verdict.cause not in self.truth["cause"]):
            return ABSTAINED
        checks = checks_of(verdict, self.truth, 0.0)
        return RIGHT if all(checks.get(name) is None for name in (*NAMING, "bottleneck")) else WRONG


def marks_of(run: LabelledRun) -> dict[str, str]:
    """Marks of a run's verdicts: joined, by each of its layers alone, and without each where two or more are left."""
    present = [layer for layer, folders in FOLDERS.items() if any((run.path / name).is_dir() for name in folders)]
    analysis = _analysed(run.path, hidden=())
    if analysis is None:
        return {JOINED: ABSTAINED}
    marks = {JOINED: run.mark(analysis.verdict)}
    layers = () if analysis.job_time is None else analysis.job_time.layers
    for layer in layers:
        if layer.used:
            marks[f"{layer.layer} alone"] = run.mark(_verdict(analysis.verdict, layer.verdict))
    for left_out in present if len(present) > 1 else ():
        without = _analysed(run.path, hidden=FOLDERS[left_out])
        marks[f"without {left_out}"] = run.mark(None if without is None else without.verdict)
    return marks


def _verdict(joined: Verdict, alone: LayerVerdict | None) -> Verdict | None:
    if alone is None:
        return None
    return replace(
        joined,
        cause=alone.cause,
        reasons=alone.reasons,
        ranks=alone.ranks,
        bottleneck=alone.bottleneck,
        share=alone.share,
        confidence=alone.confidence,
    )


def _analysed(run: Path, hidden: Iterable[str]) -> Analysis | None:
    """Analysis of a copy of a run without these folders; None where nothing is left."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(run, Path(folder, run.name), ignore=shutil.ignore_patterns("views", "analysis.json"))
        for name in hidden:
            shutil.rmtree(copy / name, ignore_errors=True)
        try:
            return analyze([str(copy)], keep=False).analysis
        except DataError:
            return None


def labelled_runs(traces: Iterable[Path], counted: Path | None, kept: Path) -> Iterator[LabelledRun]:
    """All runs with a truth."""
    for run in kept_runs(kept):
        yield LabelledRun(f"{run.parent.name}/{run.name}", run, truth_of(run))
    for path in sorted(SUITE.iterdir()):
        yield _run_of_suite(path)
    for folder in traces:
        for name, truth in json.loads((folder / "truth.json").read_text()).items():
            whole = {"reasons": [], "bottleneck": None, **truth}
            ranks = whole.get("ranks") or []
            whole["ranks"] = ranks if all(isinstance(rank, int) for rank in ranks) else []
            yield LabelledRun(f"{folder.name}/{name}", folder / name, whole)
    for name, (causes, reasons) in EXPECTED.items() if counted is not None else ():
        path = Path(counted or "", name)
        healthy = [Cause.COMPUTE_BOUND, Cause.MEMORY_BOUND, Cause.LATENCY_BOUND]
        truth = {"cause": sorted(causes or healthy), "reasons": sorted(reasons), "bottleneck": causes is not None}
        yield LabelledRun(f"counted/{name}", path, truth)


def _run_of_suite(path: Path) -> LabelledRun:
    """A kept run of the suite: the truth has causes, reasons of each, and the rank of a straggler."""
    truth = json.loads((path / "truth.json").read_text())
    reasons = truth["expected_reasons"].get(truth["expected"][0], [])
    rank = truth["severity"].get("rank") if truth["fault"] == "straggler" else None
    is_work = set(truth["expected"]) <= HEALTHY_CAUSES  # what the job itself does is no bottleneck
    return LabelledRun(
        f"suite/{path.name}",
        path,
        {
            "cause": truth["expected"],
            "reasons": reasons,
            "ranks": [] if rank is None else [rank],
            "bottleneck": None if is_work else True,
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, nargs="*", default=[])
    parser.add_argument("--counted", type=Path)
    parser.add_argument("--kept", type=Path, default=KEPT)
    parser.add_argument("--list", action="store_true", help="print the marks of each run")
    options = parser.parse_args()
    totals: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    exceptions = []
    for run in labelled_runs(options.traces, options.counted, options.kept):
        marks = marks_of(run)
        layers = " + ".join(name.removesuffix(" alone") for name in marks if name.endswith(" alone")) or "nothing"
        for name, mark in marks.items():
            totals[layers][name][mark] += 1
        if options.list:
            print(run.name, marks, flush=True)
        better = [name for name, mark in marks.items() if mark == RIGHT]
        if marks[JOINED] != RIGHT and better:
            exceptions.append(f"{run.name}: joined {marks[JOINED]}; right: {', '.join(better)}")
    print(f"| layers of a run | verdict by | {RIGHT} | {WRONG} | {ABSTAINED} |\n| --- | --- | --- | --- | --- |")
    for layers, by_name in totals.items():
        for name, numbers in by_name.items():
            print(f"| {layers} | {name} | {numbers[RIGHT]} | {numbers[WRONG]} | {numbers[ABSTAINED]} |")
    print(f"\n{len(exceptions)} runs in which less evidence is right and all joined is not:")
    print("\n".join(exceptions))


if __name__ == "__main__":
    main()
