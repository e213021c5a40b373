"""False alarms of `stepscope compare`, and how often it finds a real +5%. Simulated, seeded, no files.

    python benchmarks/accuracy/compare_noise.py [--trials 2000]

Step times have the same distribution for all methods: runs of the same code differ (normal, `between`), steps within a
run are correlated (AR(1), 0.5 from step to step), are noisy (`within`), and one in fifty takes half as long again.
Compared methods: a Mann-Whitney test over all steps (what benchstat does with its samples), a percentile bootstrap of
the difference of medians over all steps (criterion, critcmp's source), and a plain threshold of 2% on the medians.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.compare.comparison import RUN_SPREAD
from stepscope.analyzer.compare.statistics import MIN_EFFECT, estimate_steps, judge_difference
from stepscope.core.documents.comparison import Change

Floats = npt.NDArray[np.float64]
STEP_MS = 100.0
CORRELATION = 0.5
SPIKE_SHARE, SPIKE = 0.02, 0.5
NUM_RESAMPLES = 300


@dataclass(frozen=True)
class Scenario:
    """Runs a side, steps a run, and the two noises as shares of the step."""

    runs: int
    steps: int
    within: float
    between: float


SCENARIOS = (
    Scenario(1, 2, 0.002, 0.01),
    Scenario(1, 2, 0.01, 0.01),
    Scenario(1, 2, 0.05, 0.01),
    Scenario(1, 200, 0.03, 0.005),
    Scenario(1, 200, 0.03, 0.01),
    Scenario(1, 200, 0.03, 0.015),
    Scenario(1, 200, 0.03, 0.03),
    Scenario(2, 200, 0.03, 0.01),
    Scenario(3, 200, 0.03, 0.005),
    Scenario(3, 200, 0.03, 0.01),
    Scenario(3, 200, 0.03, 0.02),
    Scenario(5, 200, 0.03, 0.01),
    Scenario(5, 200, 0.03, 0.02),
    Scenario(5, 2, 0.03, 0.01),
    Scenario(8, 200, 0.03, 0.02),
)


def simulate(scenario: Scenario, random: np.random.Generator, *, factor: float = 1.0) -> Floats:
    """Step times in ms, shape (runs, steps)."""
    shape = (scenario.runs, scenario.steps)
    noise = random.normal(0.0, 1.0, shape)
    fresh = math.sqrt(1 - CORRELATION**2)
    for step in range(1, scenario.steps):
        noise[:, step] = CORRELATION * noise[:, step - 1] + fresh * noise[:, step]
    level = STEP_MS * factor * (1 + scenario.between * random.normal(0.0, 1.0, (scenario.runs, 1)))
    spikes = 1 + SPIKE * (random.random(shape) < SPIKE_SHARE)
    return level * np.exp(scenario.within * noise) * spikes


def ours(a: Floats, b: Floats, random: np.random.Generator) -> bool:  # noqa: ARG001 - one signature for all
    level = float(np.mean(np.median(a, axis=1)))
    found = estimate_steps(list(a), list(b), np.median, assumed_spread=RUN_SPREAD * level)
    return judge_difference(found, smallest=MIN_EFFECT * found.a).state is not Change.NOT_SEEN


def mann_whitney(a: Floats, b: Floats, random: np.random.Generator) -> bool:  # noqa: ARG001
    """p < 0.05 by the normal approximation over all steps."""
    pooled = np.concatenate((a.ravel(), b.ravel()))
    ranks = pooled.argsort().argsort() + 1.0
    n, m = a.size, b.size
    u = ranks[:n].sum() - n * (n + 1) / 2
    return bool(abs(u - n * m / 2) > 1.96 * math.sqrt(n * m * (n + m + 1) / 12))


def bootstrap(a: Floats, b: Floats, random: np.random.Generator) -> bool:
    """Whether the 95% percentile interval of the difference of medians over all steps excludes 0, and exceeds 1%."""
    medians = [
        np.median(side.ravel()[random.integers(0, side.size, (NUM_RESAMPLES, side.size))], axis=1) for side in (a, b)
    ]
    low, high = np.quantile(medians[1] - medians[0], (0.025, 0.975))
    return bool((low > 0 or high < 0) and abs(np.median(b) - np.median(a)) > 0.01 * np.median(a))


def threshold(a: Floats, b: Floats, random: np.random.Generator) -> bool:  # noqa: ARG001
    return bool(abs(np.median(b) / np.median(a) - 1) > 0.02)


METHODS: dict[str, Callable[[Floats, Floats, np.random.Generator], bool]] = {
    "ours": ours,
    "Mann-Whitney": mann_whitney,
    "bootstrap": bootstrap,
    "2% threshold": threshold,
}


def rates(scenario: Scenario, factor: float, trials: int) -> list[float]:
    """Share of the trials in which each method says that something changed."""
    random = np.random.default_rng([scenario.runs, scenario.steps, round(1e4 * scenario.between), round(100 * factor)])
    said = np.zeros(len(METHODS))
    for _ in range(trials):
        a, b = simulate(scenario, random), simulate(scenario, random, factor=factor)
        said += [method(a, b, random) for method in METHODS.values()]
    return cast("list[float]", (said / trials).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    trials = parser.parse_args().trials
    print("A/A: share of comparisons of the same code reported as changed; +5%: share of real +5% changes found")
    print(f"| runs a side | steps | within | between | {' | '.join(f'{name}: A/A, +5%' for name in METHODS)} |")
    print("| --- | --- | --- | --- |" + " --- |" * len(METHODS))
    for scenario in SCENARIOS:
        false, true = rates(scenario, 1.0, trials), rates(scenario, 1.05, trials)
        cells = " | ".join(f"{f:.1%}, {t:.0%}" for f, t in zip(false, true, strict=True))
        what = f"{scenario.runs} | {scenario.steps} | {scenario.within:.1%} | {scenario.between:.1%}"
        print(f"| {what} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
