"""Score of verdicts on the kept labelled runs: what is right of each, and whether confidence keeps its word.

`python -m benchmarks.labelled_runs.score [--part seen|unseen] [--only NAME...] [--kept FOLDER]
[--json]`
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.labelled_runs.host_limit import TRUTH_FILE
from stepscope.core.documents.analysis import Headroom, PredictedFix, Verdict
from stepscope.workflow.analyze import analyze

KEPT: Final = Path(__file__).resolve().parents[2] / "tests" / "benchmarks" / "labelled_runs" / "recorded"

CHECKS: Final = (
    "cause",
    "reasons",
    "ranks",
    "bottleneck",
    "share",
    "step",
    "confidence",
    "pair",
    "advice",
    "action",
    "gain",
    "saving",
    "excess",
)
NAMING: Final = ("cause", "reasons", "ranks")
"""What a verdict's confidence is about."""

SHARE_TOLERANCE: Final = 0.07
STEP_TOLERANCE: Final = {
    "gpu": 0.2,
    "cpu": 0.15,
    "calls": 0.1,
    "ranks": 0.1,
    "headroom": 0.2,
    "communication": 0.2,
    "exchange": 0.2,
    "several": 0.15,
}
"""Of the step after the fix or a change, by lane; virtual hosts differ."""
_BY_SPREAD: Final = ("calls", "ranks")
"""Lanes in which blocks of steps that are further apart widen it."""
_WORTH: Final = 0.1
"""Of the step: changes that gain less need not be named."""
_LARGE: Final = 1 - 1 / 1.3
"""Of the step: of changes that gain as much the saving is judged too."""
_SAVING_TOLERANCE: Final = 0.3
_EXCESS: Final = 0.1
"""Of the step: promised beyond what a change was measured to gain."""
_WIDEST_INTERVAL: Final = 1.6
"""High over low end of a fix's steps that still tells something."""

_BINS: Final = (0.0, 0.5, 0.7, 0.85, 0.95, 1.0)


def is_unseen(name: str) -> bool:
    """Whether a run was looked at only after the rules were done: half of them, by a hash of their names."""
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 1


def kept_runs(folder: Path = KEPT) -> list[Path]:
    """Kept runs of all lanes, as LANE/NAME."""
    return sorted(path.parent for path in folder.glob(f"*/*/{TRUTH_FILE}"))


def truth_of(run: Path) -> dict[str, Any]:
    """What a verdict on a kept run should say."""
    truth: dict[str, Any] = json.loads((run / TRUTH_FILE).read_text())
    return truth


@dataclass(frozen=True, slots=True)
class Marks:
    """What is right of a verdict.

    Attributes:
        checks: by what the run's truth tells; None is right, else what is wrong.
    """

    lane: str
    name: str
    cause: str
    confidence: float
    checks: dict[str, str | None]

    def is_right(self, names: Iterable[str] = CHECKS) -> bool:
        return all(self.checks.get(name) is None for name in names)


def marks_of(run: Path) -> Marks:
    """Analyse a kept run and compare its verdict with the truth."""
    verdict = analyze([str(run)], keep=False).analysis.verdict
    lane, truth = run.parent.name, truth_of(run)
    checks = checks_of(verdict, truth, max(STEP_TOLERANCE[lane], spread(truth) if lane in _BY_SPREAD else 0.0))
    return Marks(lane, run.name, str(verdict.cause), verdict.confidence, checks)


def spread(truth: dict[str, Any]) -> float:
    """How far blocks of the same steps are apart, over their mean; of the set of faults with most."""
    spreads: list[float] = [
        (max(blocks) - min(blocks)) * len(blocks) / sum(blocks) for blocks in truth["blocks_ms"].values()
    ]
    return max(spreads)


def checks_of(verdict: Verdict, truth: dict[str, Any], step_tolerance: float) -> dict[str, str | None]:
    """What of a verdict the truth tells; None is right, else what is wrong."""
    truth = _truth_of_cause(truth, verdict.cause)
    checks: dict[str, str | None] = {}

    def check(name: str, *, is_right: bool, said: str) -> None:
        checks[name] = None if is_right else said

    check("cause", is_right=verdict.cause in truth["cause"], said=verdict.cause)
    if reasons := truth["reasons"]:
        check("reasons", is_right=not set(reasons).isdisjoint(verdict.reasons), said=",".join(verdict.reasons))
    if ranks := truth.get("ranks"):
        check("ranks", is_right=sorted(verdict.ranks) == ranks, said=str(sorted(verdict.ranks)))
    if (is_slow := truth["bottleneck"]) is not None:
        check("bottleneck", is_right=verdict.bottleneck is is_slow, said=str(verdict.bottleneck))
    if (share := truth.get("share")) is not None:
        check("share", is_right=_is_near(verdict.share, share), said=f"{_text(verdict.share)} for {share:.3f}")
    elif (most := truth.get("max_share", {}).get(verdict.cause)) is not None:
        check("share", is_right=(verdict.share or 0.0) <= most + SHARE_TOLERANCE, said=_text(verdict.share))
    elif (least := truth.get("min_share")) is not None:
        check("share", is_right=(verdict.share or 0.0) >= least, said=f"{_text(verdict.share)} for {least:.3f} or more")
    if fixed := truth.get("fixed_ms"):
        check("step", is_right=_is_step(verdict.fix, fixed, step_tolerance), said=f"{_step(verdict.fix)} for {fixed}")
    if most := truth.get("max_confidence"):
        check("confidence", is_right=verdict.confidence < most, said=f"{verdict.confidence:.2f}")
    if pair := truth.get("pair"):
        wrong = [f"{name} {said}" for name, fault in pair.items() if (said := _cost_missed(verdict, fault))]
        check("pair", is_right=not wrong, said=", ".join(wrong))
    if advice := truth.get("advice"):
        first = verdict.fix.action if verdict.fix is not None else next(iter(verdict.actions), "")
        check("advice", is_right=re.search(advice, first, re.IGNORECASE) is not None, said=first)
    if changes := truth.get("headroom"):
        checks |= _checks_of_headroom(_promises(verdict, changes), changes, truth, step_tolerance)
    return checks


def _promises(verdict: Verdict, changes: dict[str, Any]) -> list[Headroom]:
    """What a verdict promises, first its fix if that is a measured change, then its headroom."""
    fix = verdict.fix
    if fix is None or fix.step_ms is None or fix.speedup is None:
        return verdict.headroom
    own = Headroom(fix.action, fix.step_ms, fix.speedup)
    return verdict.headroom if _change_of(own, changes) is None else [own, *verdict.headroom]


def _checks_of_headroom(
    headroom: Sequence[Headroom], changes: dict[str, Any], truth: dict[str, Any], tolerance: float
) -> dict[str, str | None]:
    """What of a headroom the measured changes tell: the first action, its step and saving, and no promise beyond them.

    The first action is asked for where the change that the job was made for, the first of `changes`, or another gains
    a tenth of the step; it must be that change or one that gains more. Where it is not, its step is wrong as well.
    """
    bare_ms, checks = truth["bare_ms"], {}
    main = next(iter(changes.values()))
    least = main["gain"] if main["gain"] >= _WORTH else max(change["gain"] for change in changes.values())
    if least >= _WORTH and not truth["is_tuned"]:
        first = _change_of(headroom[0], changes) if headroom else None
        is_named = first is not None and first["gain"] >= least - SHARE_TOLERANCE
        said = headroom[0].action if headroom else "nothing"
        checks["action"] = None if is_named else f"{said} for {main['action']}"
        step_ms = headroom[0].step_ms if headroom else None
        true_ms = (first if first is not None and is_named else main)["step_ms"]
        said = f"{_step_text(step_ms)} for {true_ms} of {bare_ms}"
        is_right = is_named and step_ms is not None and abs(step_ms / true_ms - 1) <= tolerance
        checks["gain"] = None if is_right else said
        if main["gain"] >= _LARGE:
            saving = headroom[0].step_ms * (headroom[0].speedup - 1) if is_named else 0.0
            is_right = abs(saving / (bare_ms - true_ms) - 1) <= _SAVING_TOLERANCE
            checks["saving"] = None if is_right else f"{saving:.1f} ms for {bare_ms - true_ms:.1f}"
    promised = []
    for one in headroom:
        change = _change_of(one, changes)
        gain = change["gain"] if change else 0.0 if truth["is_tuned"] else None
        if gain is not None and 1 - 1 / one.speedup > max(gain, 0.0) + _EXCESS:
            promised.append(f"{one.action}: {1 - 1 / one.speedup:.2f} for {gain:.2f}")
    checks["excess"] = "; ".join(promised) or None
    return checks


def _change_of(headroom: Headroom, changes: dict[str, Any]) -> dict[str, Any] | None:
    """The measured change that a headroom's action names."""
    return next((one for one in changes.values() if re.search(one["advice"], headroom.action, re.IGNORECASE)), None)


def _step_text(step_ms: float | None) -> str:
    return "no step" if step_ms is None else f"{step_ms:.1f} ms"


def _truth_of_cause(truth: dict[str, Any], cause: str) -> dict[str, Any]:
    """Of a pair the truth of the fault that was named first; of another right cause nothing else is known, but that
    one beside the job's fault takes more than it."""
    if cause in truth.get("also", []):
        known = {"cause": [cause], "bottleneck": True, "reasons": [], "min_share": truth["share"]}
        return {key: truth[key] for key in ("what", "blocks_ms")} | known
    pair = truth.get("pair", {})
    if not pair or cause not in truth["cause"]:
        return truth
    fault: dict[str, Any] = next((fault for fault in pair.values() if cause in fault["cause"]), {})
    return truth | {
        "reasons": fault.get("reasons", []),
        "ranks": fault.get("ranks"),
        "share": fault.get("gain"),
        "fixed_ms": fault.get("fixed_ms"),
        "advice": truth.get("advice") if fault is next(iter(pair.values())) else None,
    }


def _cost_missed(verdict: Verdict, fault: dict[str, Any]) -> str | None:
    """What is wrong about a fault of a pair: it is not named, or costs something else; None where all is right."""
    costs = [verdict.share] if verdict.cause in fault["cause"] else []
    costs += [other.fraction for other in verdict.secondary if other.cause in fault["cause"]]
    if verdict.next is not None and verdict.next.cause in fault["cause"]:
        costs.append(verdict.next.share)
    if not costs:
        return "is not named"
    return None if _is_near(costs[0], fault["gain"]) else f"{_text(costs[0])} for {fault['gain']:.3f}"


def _is_near(share: float | None, true: float) -> bool:
    return share is not None and abs(share - true) <= SHARE_TOLERANCE


def _is_step(fix: PredictedFix | None, true_ms: float, tolerance: float) -> bool:
    if fix is None:
        return False
    if fix.step_ms is not None:
        return abs(fix.step_ms / true_ms - 1) <= tolerance
    low, high = fix.interval_ms or (0.0, 0.0)
    return 0 < low <= true_ms * (1 + tolerance) and true_ms * (1 - tolerance) <= high <= _WIDEST_INTERVAL * low


def _step(fix: PredictedFix | None) -> str:
    if fix is None:
        return "no fix"
    return f"{fix.step_ms:.1f} ms" if fix.step_ms is not None else str(fix.interval_ms)


def _text(share: float | None) -> str:
    return "none" if share is None else f"{share:.3f}"


@dataclass(frozen=True, slots=True)
class Bin:
    """Verdicts of like confidence, and how many of them name the right cause, reason and ranks."""

    low: float
    high: float
    num_verdicts: int
    num_right: int
    mean_confidence: float


def reliability(marks: Sequence[Marks]) -> list[Bin]:
    """Bins of confidence that hold a verdict; the last one includes its end."""
    bins = []
    for low, high in itertools.pairwise(_BINS):
        inside = [mark for mark in marks if low <= mark.confidence < high or mark.confidence == high == _BINS[-1]]
        if inside:
            num_right = sum(mark.is_right(NAMING) for mark in inside)
            mean = sum(mark.confidence for mark in inside) / len(inside)
            bins.append(Bin(low, high, len(inside), num_right, round(mean, 3)))
    return bins


def totals(marks: Sequence[Marks]) -> dict[str, dict[str, tuple[int, int]]]:
    """By lane and check how many verdicts are right, of how many."""
    return {
        lane: {
            check: (sum(wrong is None for wrong in asked), len(asked))
            for check in CHECKS
            if (asked := [mark.checks[check] for mark in marks if mark.lane == lane and check in mark.checks])
        }
        for lane in sorted({mark.lane for mark in marks})
    }


def _print(marks: Sequence[Marks]) -> None:
    for mark in marks:
        wrong = "; ".join(f"{check} {said}" for check, said in mark.checks.items() if said is not None)
        print(f"{'-- ' if wrong else 'ok '}{mark.lane}/{mark.name}: {wrong or 'right'}")
    print("\n| lane | " + " | ".join(CHECKS) + " |\n| --- |" + " --- |" * len(CHECKS))
    for lane, checks in totals(marks).items():
        cells = (f"{checks[check][0]} of {checks[check][1]}" if check in checks else "" for check in CHECKS)
        print(f"| {lane} | " + " | ".join(cells) + " |")
    print("\n| confidence | mean | named right |\n| --- | --- | --- |")
    for part in reliability(marks):
        confidence = f"{part.low:.2f} to {part.high:.2f} | {part.mean_confidence:.2f}"
        print(f"| {confidence} | {part.num_right} of {part.num_verdicts} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["seen", "unseen"], help="one half of the runs; by default both")
    parser.add_argument("--only", nargs="*", default=[], help="names of runs")
    parser.add_argument("--kept", type=Path, default=KEPT, help="folder of kept runs, as LANE/NAME")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    marks = [
        marks_of(run)
        for run in kept_runs(options.kept)
        if options.part in (None, "unseen" if is_unseen(run.name) else "seen")
        and (not options.only or run.name in options.only)
    ]
    if options.json:
        document = {
            "runs": [asdict(mark) for mark in marks],
            "totals": totals(marks),
            "reliability": [asdict(part) for part in reliability(marks)],
        }
        print(json.dumps(document, indent=1))
    else:
        _print(marks)


if __name__ == "__main__":
    main()
