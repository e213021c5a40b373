"""Comparison of steps after a capture with steps before it, beside a process of the same model without a capture.

Two processes of a model take turns, so that the drift of the machine is in both. A round is a block of 50 steps, a
pause, and one more block, in each of them. In the first rounds neither captures anything: A/A. In the others the first
process takes captures in its pause. All ratios are of neighbouring blocks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.after_capture.models import MODELS
from benchmarks.after_capture.process import TrainingProcess

_LEAST_ROUNDS, _MOST_ROUNDS = (2, 3), (5, 8)
"""Without a capture, and with one."""
_STATE_ROUNDS = 3
"""After each act of others."""
_RESAMPLES = 2_000


class Round(NamedTuple):
    """Steps of the process with captures and the one without, before and after the pause, ms."""

    before: float
    control_before: float
    after: float
    control_after: float

    @property
    def own(self) -> float:
        """After over before."""
        return self.after / self.before

    @property
    def control(self) -> float:
        return self.control_after / self.control_before

    @property
    def relative(self) -> float:
        """After over before, over the same of the process without a capture."""
        return self.own / self.control


class Pair:
    """The two processes of a model.

    Attributes:
        traces: with kernels, that each act of a round left.
    """

    def __init__(self, subject: TrainingProcess, control: TrainingProcess) -> None:
        self.subject, self.control = subject, control
        self.traces: list[int] = []

    def blocks(self) -> tuple[float, float]:
        return self.subject.ask("block"), self.control.ask("block")

    def round(self, act: str) -> Round:
        """One round in which the process with captures does this in its pause.

        Raises:
            RuntimeError: a process has ended.
        """
        before = self.blocks()
        done = self.subject.ask(act)
        self.traces += [] if done is None else [done]
        self.control.ask("pause")
        return Round(*before, *self.blocks())

    def level(self) -> list[float]:
        """Ratios of the two processes' steps, of some blocks by turns."""
        pairs = [self.blocks() for _ in range(_STATE_ROUNDS)]
        return [own / other for own, other in pairs]


def with_error(values: Sequence[float]) -> dict[str, float]:
    """Median of ratios and its standard error, by resampling."""
    drawn = np.random.default_rng(7).choice(values, (_RESAMPLES, len(values)))
    error = float(np.median(drawn, axis=1).std())
    return {"ratio": round(statistics.median(values), 4), "error": round(error, 4), "num": len(values)}


def _over(after: Sequence[float], before: Sequence[float]) -> dict[str, float]:
    """Ratio of two medians and its standard error, by resampling."""
    drawn = np.random.default_rng(7)
    medians = [np.median(drawn.choice(part, (_RESAMPLES, len(part))), axis=1) for part in (after, before)]
    ratio = statistics.median(after) / statistics.median(before)
    return {"ratio": round(ratio, 4), "error": round(float((medians[0] / medians[1]).std()), 4)}


def compare(model: str, pair: Pair, seconds: float, num_captures: int) -> dict[str, Any]:
    """Ratios of one model within about so many seconds, then captures to survive, and the cost of staying attached.

    `a_to_a`: after over before a pause without a capture, of all rounds of the process without captures and the first
    ones of the other. `each_capture`: the same with a capture between, over the process without. `all_captures`: steps
    of the process with captures over those of the one without, from the first capture on over before it.
    """
    began = time.monotonic()
    plain = [pair.round("pause") for _ in range(_LEAST_ROUNDS[0])]
    one_seconds = (time.monotonic() - began) / len(plain)
    affordable = max(seconds - num_captures * 0.5, 0.0) / one_seconds
    num_plain, num_captured = (
        int(min(max(share * affordable, least), most))
        for share, least, most in zip((0.35, 0.5), _LEAST_ROUNDS, _MOST_ROUNDS, strict=True)
    )
    plain += [pair.round("pause") for _ in range(num_plain - len(plain))]
    captured = [pair.round("capture") for _ in range(num_captured)]
    before = [level for one in plain for level in (one.before / one.control_before, one.after / one.control_after)]
    before.append(captured[0].before / captured[0].control_before)
    after = [one.after / one.control_after for one in captured]
    after += [one.before / one.control_before for one in captured[1:]]
    result = {
        "model": model,
        "bounded_by": MODELS[model].kind,
        "step_ms": round(statistics.median(one.control_before for one in (*plain, *captured)), 3),
        "a_to_a": with_error([one.own for one in plain] + [one.control for one in (*plain, *captured)]),
        "a_to_a_relative": with_error([one.relative for one in plain]),
        "first_capture": round(captured[0].relative, 4),
        "each_capture": with_error([one.relative for one in captured]),
        "each_capture_alone": with_error([one.own for one in captured]),
        "all_captures": _over(after, before),
        "halves_before": _over(before[len(before) // 2 :], before[: len(before) // 2]),
        "rounds": [[round(value, 4) for value in one] for one in (*plain, *captured)],
        "num_plain": len(plain),
        "traces": pair.traces,
    }
    if num_captures:
        endured = pair.subject.ask(f"endure {num_captures}", 120.0)
        result |= {"endured": endured["traces"], "costs": endured["costs"]}
        result["requested"] = pair.subject.ask("request 2", 60.0)
        result["after_all"] = _over(pair.level(), before)
        result["attached_traces"] = pair.subject.ask("attached")
        result["attached"] = _over(pair.level(), before)
    return result


OTHERS = ("user", "capture", "user", "aside", "capture")
"""What a process goes through that other profilers record too."""


def beside_others(model: str, pair: Pair) -> dict[str, Any]:
    """Levels after each act over that before any profiler: the user's leave CUPTI attached, ours detach it."""
    before = pair.level() + pair.level()
    acts = []
    for act in OTHERS:
        traces = pair.subject.ask(act)
        acts.append({"act": act, "traces": traces} | _over(pair.level(), before))
    return {"model": model, "beside_others": acts}
