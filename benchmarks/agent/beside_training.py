"""Cost of the agent to training: blocks of the same steps with the agent at work and frozen, by turns. Needs a GPU.

    python -m benchmarks.agent.beside_training [--step-ms 30] [--host-bound] [--rounds 60] [--seconds 1] [--out FILE]

A real agent reads all GPUs once per second; a transformer trains on the first. A round is four blocks, each as long as
the agent's interval: with the agent, frozen, frozen, with it, so that a drift affects both kinds. All blocks begin
alike, after untimed steps. Printed are the CPU and memory use of the agent, the ratio of the rounds (median and 95%
interval), and the ratio of neighbouring frozen blocks as the noise. /metrics and the wake-ups of the reader processes
prove that the agent read in its blocks and in no others. Exits with status 1 if the interval reaches over 1.005, or if
readings failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.agent.real_agent import RealAgent, gpus_read, real_agent, troubles
from benchmarks.measurement import Interval, cpu_seconds, interval_of, proportional_bytes, resident_bytes, times_woken
from benchmarks.training_step import Workload, seconds_per_step

_MOST = 1.005
_SETTLE_SECONDS = 0.25
_COST_SECONDS = 10.0
_OLDEST_SECONDS = 2.6
"""Age of the newest reading of a GPU that is read once a second and published once a second."""
_LEAST_WOKEN = 0.8
"""A second, while blocks with the agent are timed: it reads once."""
_MIB = 1024**2


@dataclass
class Blocks:
    """Blocks of one kind, in their order.

    Attributes:
        step_seconds: of each block.
        timed_seconds: of all of them together.
        woken: how often readers were woken in each.
    """

    step_seconds: list[float] = field(default_factory=list)
    timed_seconds: float = 0.0
    woken: list[int] = field(default_factory=list)


def _train(workload: Workload, seconds: float) -> float:
    """Seconds of a step."""
    num_steps = max(3, round(1e3 * seconds / workload.step_ms))
    return seconds_per_step(workload.step, num_steps, workload.synchronize)


def cost(agent: RealAgent, workload: Workload, seconds: float) -> str:
    """CPU and memory use of the agent while the loop runs, and the step time measured again."""
    family = agent.family()
    before, began = [cpu_seconds(pid) for pid in family], time.monotonic()
    workload.step_ms = 1e3 * _train(workload, seconds)  # as it is once all is warm: blocks are as long as was asked
    elapsed = time.monotonic() - began
    own, *reading = [(cpu_seconds(pid) - earlier) / elapsed for pid, earlier in zip(family, before, strict=True)]
    shared = [proportional_bytes(pid) for pid in family]
    proportional = "" if None in shared else f", {sum(filter(None, shared)) / _MIB:.0f} MiB proportional"
    return (
        f"the agent takes {own:.2%} of one core and {sum(reading):.2%} for reading {len(gpus_read(agent.scrape()[1]))}"
        f" GPUs; {sum(map(resident_bytes, family)) / _MIB:.0f} MiB resident{proportional}"
    )


def alternate(agent: RealAgent, workload: Workload, rounds: int, seconds: float) -> tuple[Blocks, Blocks, float]:
    """Blocks with the agent and without, and the oldest reading on a page within the former."""
    with_agent, frozen, oldest = Blocks(), Blocks(), 0.0
    readers = agent.family()[1:]

    def block(blocks: Blocks) -> None:
        _train(workload, _SETTLE_SECONDS)
        woken, began = sum(map(times_woken, readers)), time.monotonic()
        blocks.step_seconds.append(_train(workload, seconds))
        blocks.timed_seconds += time.monotonic() - began
        blocks.woken.append(sum(map(times_woken, readers)) - woken)

    for _ in range(rounds):
        block(with_agent)
        with agent.frozen():
            block(frozen)
            block(frozen)
        block(with_agent)
        oldest = max(oldest, *gpus_read(agent.scrape()[1]).values())
    return with_agent, frozen, oldest


def ratio_of(with_agent: list[float], frozen: list[float]) -> Interval:
    """Of the rounds: two blocks of each kind."""
    pairs = zip(with_agent[::2], with_agent[1::2], frozen[::2], frozen[1::2], strict=True)
    return interval_of([(first + last) / (second + third) for first, last, second, third in pairs])


def noise_of(frozen: list[float]) -> Interval:
    """Ratio of two neighbouring blocks that should be the same."""
    return interval_of([second / first for first, second in zip(frozen[::2], frozen[1::2], strict=True)])


def _measured(agent: RealAgent, workload: Workload, rounds: int, seconds: float) -> tuple[dict[str, Any], bool]:
    """All of one step length, printed; and whether it is right."""
    print(f"{workload}\n  {cost(agent, workload, _COST_SECONDS)}", flush=True)
    with_agent, frozen, oldest = alternate(agent, workload, rounds, seconds)
    ratio, noise = ratio_of(with_agent.step_seconds, frozen.step_seconds), noise_of(frozen.step_seconds)
    on, off = (1e3 * median(blocks.step_seconds) for blocks in (with_agent, frozen))
    print(f"  with the agent / without: {ratio}; a step takes {on:.2f} and {off:.2f} ms, {rounds} rounds")
    print(f"  frozen / frozen: {noise}")
    woken = sum(with_agent.woken) / with_agent.timed_seconds
    is_well = woken >= _LEAST_WOKEN and oldest <= _OLDEST_SECONDS and not any(frozen.woken)
    print(
        f"  readers woken {woken:.1f} times a second (frozen: {sum(frozen.woken)} times), "
        f"oldest reading {oldest:.1f} s: {'OK' if is_well else 'off'}",
        flush=True,
    )
    found = {"ratio": ratio._asdict(), "noise": noise._asdict(), "oldest_seconds": oldest}
    found |= {"with_agent": asdict(with_agent), "frozen": asdict(frozen)}
    return found, is_well and ratio.high <= _MOST


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--step-ms", default="30", help="comma-separated step times")
    parser.add_argument("--host-bound", action="store_true", help="use steps of small kernels")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of each block")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("a CUDA GPU is needed", file=sys.stderr)
        sys.exit(2)
    torch.set_num_threads(1)
    began = time.monotonic()
    results: dict[str, Any] = {"torch": torch.__version__, "device": options.device}
    is_right = True
    with tempfile.TemporaryDirectory() as folder, real_agent(Path(folder)) as agent:
        for step_ms in map(float, options.step_ms.split(",")):
            workload = Workload(options.device, step_ms, host_bound=options.host_bound)
            found, is_so = _measured(agent, workload, options.rounds, options.seconds)
            results[f"{step_ms:g} ms"] = found
            is_right &= is_so
        wrong = troubles(agent.scrape()[1])
    print(f"failed readings: {wrong or 'none'}; {time.monotonic() - began:.0f} s")
    if options.out:
        options.out.write_text(json.dumps(results | {"troubles": wrong}, indent=1) + "\n")
    sys.exit(0 if is_right and not wrong else 1)


if __name__ == "__main__":
    main()
