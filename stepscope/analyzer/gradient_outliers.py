"""Whose own gradients differ from all other ranks'? A GPU that computes wrongly shows here before they are reduced."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from stepscope.core.analysis import Notice
from stepscope.core.steps import RankSteps
from stepscope.core.words import ranks_words

FIGURE = "local_grad_norm"
FEWEST_RANKS = 4
"""Of fewer, nobody can say which one differs."""

LEAST_RATIO = 2.0
"""Batches of different data make norms differ by some ten percent, seldom by this much."""

SIGMAS = 6.0
SHARE_OF_STEPS = 0.5
"""A batch may be an outlier; a rank that is one in most steps is itself the reason."""

FEWEST_STEPS = 2
_MAD_TO_SIGMA = 1.4826


def gradient_outliers(ranks: Sequence[RankSteps], *, are_alike: bool) -> list[Notice]:
    """What the norms of the ranks' own gradients say of single ranks.

    Args:
        are_alike: whether all ranks compute the gradients of the same parameters, as in pure data parallelism; else
            only those that are not finite can be compared.
    """
    finite: dict[int, dict[int, float]] = defaultdict(dict)
    not_finite: dict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        for step in rank.steps:
            if FIGURE in step.non_finite:
                not_finite[step.index].append(rank.rank)
            elif step.figures.get(FIGURE, 0.0) > 0:
                finite[step.index][rank.rank] = step.figures[FIGURE]
    return [*_first_not_finite(finite, not_finite), *(_far_off(finite.values()) if are_alike else [])]


def _first_not_finite(finite: Mapping[int, Mapping[int, float]], not_finite: Mapping[int, list[int]]) -> list[Notice]:
    for step in sorted(not_finite):
        bad, good = not_finite[step], finite.get(step, {})
        if len(bad) < len(good):
            text = f"step {step}: the gradients that {ranks_words(bad)} computed are not finite, those of others are"
            return [Notice("gradients_not_finite", f"{text}; check its batch and its GPU")]
    return []


def _far_off(steps: Iterable[Mapping[int, float]]) -> list[Notice]:
    ratios: dict[int, list[float]] = defaultdict(list)
    num_steps: dict[int, int] = defaultdict(int)
    for norms in steps:
        if len(norms) < FEWEST_RANKS:
            continue
        logarithms = {rank: math.log(norm) for rank, norm in norms.items()}
        usual = median(logarithms.values())
        sigma = _MAD_TO_SIGMA * median(abs(value - usual) for value in logarithms.values())
        for rank, value in logarithms.items():
            num_steps[rank] += 1
            if abs(value - usual) > max(math.log(LEAST_RATIO), SIGMAS * sigma):
                ratios[rank].append(math.exp(value - usual))
    return [
        Notice(
            "gradient_outlier",
            f"rank {rank}: the gradients that it computed are {median(far):.3g} times the other ranks' in {len(far)} of"
            f" {num_steps[rank]} steps; check its GPU and its data",
        )
        for rank, far in sorted(ratios.items())
        if len(far) >= FEWEST_STEPS and len(far) > SHARE_OF_STEPS * num_steps[rank]
    ]
