"""False alarms of anomaly detection on pure noise, by rule and kind of noise.

python benchmarks/accuracy/anomaly_noise.py [--steps 1000000] [--runs 200]
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator
from itertools import islice

from stepscope.training.anomalies.detectors import (
    MemoryGrowthDetector,
    StepTimeChangeDetector,
    gradient_explosion_detector,
    loss_spike_detector,
)

GIB = float(2**30)
SAMPLES_A_RUN = 20_000

Noise = Callable[[random.Random], Iterator[float]]


def independent(draw: Callable[[random.Random], float]) -> Noise:
    """Noise with independent steps."""

    def noise(generator: random.Random) -> Iterator[float]:
        while True:
            yield draw(generator)

    return noise


def remembering(rho: float, level: float, sigma: float) -> Noise:
    """Autocorrelated normal noise: AR(1) with coefficient `rho`."""

    def noise(generator: random.Random) -> Iterator[float]:
        state = 0.0
        while True:
            state = rho * state + math.sqrt(1 - rho * rho) * generator.gauss(0, 1)
            yield level + sigma * state

    return noise


def student(generator: random.Random) -> float:
    """Noise by Student's t distribution with three degrees of freedom."""
    return generator.gauss(0, 1) / math.sqrt(sum(generator.gauss(0, 1) ** 2 for _ in range(3)) / 3)


def random_walk(generator: random.Random) -> Iterator[float]:
    """Random walk of memory: up as often as down."""
    level = 10 * GIB
    while True:
        level += 0.01 * GIB * generator.gauss(0, 1)
        yield level


def sawtooth(generator: random.Random) -> Iterator[float]:
    """Sawtooth of memory: grows and is freed now and then."""
    period = generator.randrange(50, 300)
    while True:
        yield from (10 * GIB + place / period * 3 * GIB for place in range(period))


FIGURES: dict[str, Noise] = {
    "normal, 2%": independent(lambda generator: 2.3 + 0.05 * generator.gauss(0, 1)),
    "normal, 4%, memory of 10 steps": remembering(0.9, 2.3, 0.1),
    "normal, 4%, memory of 100 steps": remembering(0.99, 2.3, 0.1),
    "exponential": independent(lambda generator: generator.expovariate(1)),
    "uniform": independent(lambda generator: generator.random()),
    "normal, rounded to tenths": independent(lambda generator: round(2.3 + 0.05 * generator.gauss(0, 1), 1)),
    "log-normal 0.5": independent(lambda generator: math.exp(0.5 * generator.gauss(0, 1))),
    "log-normal 1": independent(lambda generator: math.exp(generator.gauss(0, 1))),
    "Student's t, 3": independent(lambda generator: 2.3 + 0.05 * student(generator)),
}
STEP_TIMES: dict[str, Noise] = {
    "normal, 5%": independent(lambda generator: 30 * (1 + 0.05 * generator.gauss(0, 1))),
    "log-normal 0.2": independent(lambda generator: 30 * math.exp(0.2 * generator.gauss(0, 1))),
    "log-normal 0.5": independent(lambda generator: 30 * math.exp(0.5 * generator.gauss(0, 1))),
    "every tenth three times as long": independent(lambda generator: 30 * (3 if generator.random() < 0.1 else 1)),
    "normal, 10%, memory of 10 steps": remembering(0.9, 30, 3),
    "normal, 10%, memory of 100 steps": remembering(0.99, 30, 3),
    "half of the steps half as long again": independent(lambda generator: 30 * (1 + (generator.random() < 0.5) / 2)),
}
MEMORY: dict[str, Noise] = {
    "normal, 10%": independent(lambda generator: 10 * GIB + GIB * generator.gauss(0, 1)),
    "normal, 10%, memory of 10 samples": remembering(0.9, 10 * GIB, GIB),
    "normal, 10%, memory of 100 samples": remembering(0.99, 10 * GIB, GIB),
    "sawtooth": sawtooth,
    "random walk": random_walk,
}


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    print(f"events in {options.steps} steps of noise")
    for name, noise in FIGURES.items():
        for detector in (loss_spike_detector(), gradient_explosion_detector("grad_norm")):
            values = islice(noise(random.Random(1)), options.steps)
            print(
                f"  {type(detector).__name__} of {detector.figure}: {name}: {sum(map(bool, map(detector.see, values)))}"
            )
    for name, noise in STEP_TIMES.items():
        values = islice(noise(random.Random(1)), options.steps)
        print(f"  step_time_change: {name}: {sum(map(bool, map(StepTimeChangeDetector().see, values)))}")
    print(f"of {options.runs} runs of {SAMPLES_A_RUN} samples, runs with memory_growth")
    for name, noise in MEMORY.items():
        print(f"  {name}: {sum(grows(noise(random.Random(seed))) for seed in range(options.runs))}")


def grows(samples: Iterator[float]) -> bool:
    """Whether the memory of a run is reported to grow."""
    growth = MemoryGrowthDetector("memory_allocated_bytes", least_bytes=16 * 2**20, least_ratio=0.01)
    return any(growth.see(place, num_bytes) for place, num_bytes in enumerate(islice(samples, SAMPLES_A_RUN)))


if __name__ == "__main__":
    main()
