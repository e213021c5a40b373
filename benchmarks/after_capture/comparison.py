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


class Block(NamedTuple):
    """Steps of a process, ms: by the clock, and CPU time of all its threads, without their waits for a core."""

    wall: float
    cpu: float


class Round(NamedTuple):
    """Steps of the process with captures and the one without, before and after the pause."""

    before: Block
    control_before: Block
    after: Block
    control_after: Block


class Ratios(NamedTuple):
    """Ratios of a round by one of the clocks: after over before, of each process, and the first over the second."""

    own: float
    control: float
    level_before: float
    level_after: float

    @property
    def relative(self) -> float:
        return self.own / self.control

    @classmethod
    def of(cls, one: Round, clock: str) -> Ratios:
        before, control_before, after, control_after = (getattr(block, clock) for block in one)
        return cls(after / before, control_after / control_before, before / control_before, after / control_after)


class Pair:
    """The two processes of a model.

    Attributes:
        traces: with kernels, that each act of a round left.
    """

    def __init__(self, subject: TrainingProcess, control: TrainingProcess) -> None:
        self.subject, self.control = subject, control
        self.traces: list[int] = []

    def blocks(self) -> tuple[Block, Block]:
        return Block(*self.subject.ask("block")), Block(*self.control.ask("block"))

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

    def levels(self) -> list[tuple[Block, Block]]:
        """Blocks of the two processes by turns."""
        return [self.blocks() for _ in range(_STATE_ROUNDS)]


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
    result = {
        "model": model,
        "bounded_by": MODELS[model].kind,
        "step_ms": round(statistics.median(one.control_before.wall for one in (*plain, *captured)), 3),
        "wall": _compared(plain, captured, "wall"),
        "cpu": _compared(plain, captured, "cpu"),
        "num_plain": len(plain),
        "traces": pair.traces,
    }
    base = [blocks for one in plain for blocks in ((one.before, one.control_before), (one.after, one.control_after))]
    if num_captures:
        endured = pair.subject.ask(f"endure {num_captures}", 120.0)
        result |= {"endured": endured["traces"], "costs": endured["costs"]}
        result["requested"] = pair.subject.ask("request 2", 60.0)
    result["after_all"] = _levels_over(pair.levels(), base)
    result["attached_traces"] = pair.subject.ask("attached")
    result["attached"] = _levels_over(pair.levels(), base)
    return result | {"rounds": [[round(value, 4) for block in one for value in block] for one in (*plain, *captured)]}


def _compared(plain: Sequence[Round], captured: Sequence[Round], clock: str) -> dict[str, Any]:
    without, having = ([Ratios.of(one, clock) for one in part] for part in (plain, captured))
    before = [level for one in without for level in (one.level_before, one.level_after)] + [having[0].level_before]
    after = [one.level_after for one in having] + [one.level_before for one in having[1:]]
    return {
        "a_to_a": with_error([one.own for one in without] + [one.control for one in (*without, *having)]),
        "a_to_a_relative": with_error([one.relative for one in without]),
        "first_capture": round(having[0].relative, 4),
        "each_capture": with_error([one.relative for one in having]),
        "each_capture_alone": with_error([one.own for one in having]),
        "all_captures": _over(after, before),
        "halves_before": _over(before[len(before) // 2 :], before[: len(before) // 2]),
    }


def _levels_over(
    after: Sequence[tuple[Block, Block]], before: Sequence[tuple[Block, Block]]
) -> dict[str, dict[str, float]]:
    """By clock: steps over those of the process without captures, after over before."""
    ratios = {
        clock: [[getattr(own, clock) / getattr(other, clock) for own, other in part] for part in (after, before)]
        for clock in Block._fields
    }
    return {clock: _over(*parts) for clock, parts in ratios.items()}


OTHERS = ("user", "capture", "user", "aside", "capture")
"""What a process goes through that other profilers record too."""


def beside_others(model: str, pair: Pair) -> dict[str, Any]:
    """Levels after each act over that before any profiler: the user's leave CUPTI attached, ours detach it."""
    before = pair.levels() + pair.levels()
    acts = []
    for act in OTHERS:
        traces = pair.subject.ask(act)
        acts.append({"act": act, "traces": traces} | _levels_over(pair.levels(), before))
    return {"model": model, "beside_others": acts}
