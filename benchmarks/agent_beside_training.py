"""Is training slowed by the agent? Blocks of the same steps with the agent at work and frozen, in turn. Needs a GPU.

    python -m benchmarks.agent_beside_training [--blocks 40] [--seconds 2] [--step-ms 30] [--out FILE.json]

A real agent reads all GPUs once a second; a transformer (`profile_overhead.Workload`) trains on the first. Each pair of
neighbouring blocks has one with the agent at work and one with it frozen, which of them first by turns: on off, off on,
on off. Ratios of these pairs, their median with a 95 % interval. Before them, what the agent takes of the CPU and of
memory while the same loop runs. That a block had readings is told by the page, and by how often the reading processes
were woken, which in the other blocks is never. Ends with 1 where the interval reaches over 1.005, or readings failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.profile_overhead import Workload, _interval, _seconds_per_step
from benchmarks.real_agent import RealAgent, collections, gpus_read, real_agent, troubles

_MOST = 1.005
_SETTLE_SECONDS = 0.25
_COST_SECONDS = 10.0
_OLDEST_SECONDS = 2.6
"""Age of the newest reading of a GPU that is read once a second and published once a second."""


def _times_woken(pids: list[int]) -> int:
    """How often these processes waited for something and got it."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def _train(workload: Workload, seconds: float) -> float:
    """Seconds of a step."""
    num_steps = max(3, round(1e3 * seconds / workload.step_ms))
    return _seconds_per_step(workload.step, num_steps, workload.synchronize)


def cost(agent: RealAgent, workload: Workload, seconds: float) -> dict[str, float]:
    """What the agent takes of one core and of memory, while the loop runs; and a step's time anew."""
    before, began = agent.cpu_seconds(), time.monotonic()
    workload.step_ms = 1e3 * _train(workload, seconds)  # as it is once all is warm: blocks are as long as was asked
    elapsed = time.monotonic() - began
    shares = [(after - earlier) / elapsed for after, earlier in zip(agent.cpu_seconds(), before, strict=True)]
    return {"agent_cores": shares[0], "reading_cores": sum(shares[1:]), **agent.memory_mib()}


def pairs(agent: RealAgent, workload: Workload, blocks: int, seconds: float) -> dict[str, Any]:
    """Ratios of the pairs, and how much was read in their blocks."""
    times: dict[bool, list[float]] = {True: [], False: []}
    woken: dict[bool, list[int]] = {True: [], False: []}
    ages: list[float] = []
    rounds: list[float] = []
    readers = agent.family()[1:]
    is_on = True
    for number in range(2 * blocks):
        wanted = number % 4 in (0, 3)
        if wanted != is_on:
            (agent.thaw if wanted else agent.freeze)()
            is_on = wanted
            _train(workload, _SETTLE_SECONDS)
        rounds_before = collections(agent.scrape()[1]) if is_on else 0.0
        woken_before = _times_woken(readers)
        times[is_on].append(_train(workload, seconds))
        woken[is_on].append(_times_woken(readers) - woken_before)
        if is_on:
            page = agent.scrape()[1]
            rounds.append(collections(page) - rounds_before)
            ages.append(max(gpus_read(page).values()))
    agent.thaw()
    ratios = [on / off for on, off in zip(times[True], times[False], strict=True)]
    return {
        "ratio": _interval(ratios),
        "ratios": ratios,
        "on_seconds": times[True],
        "off_seconds": times[False],
        "rounds_on": rounds,
        "oldest_on": max(ages),
        "woken_on": woken[True],
        "woken_off": woken[False],
    }


def _is_well(found: dict[str, Any]) -> bool:
    """Whether there were readings in all blocks that should have them, and in no other."""
    was_on = min(found["woken_on"]) > 0 and min(found["rounds_on"]) > 0 and found["oldest_on"] <= _OLDEST_SECONDS
    return bool(was_on and max(found["woken_off"]) == 0)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--step-ms", default="30", help="one or more, by commas")
    parser.add_argument("--blocks", type=int, default=40, help="pairs of them")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each block")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("this needs a GPU that CUDA can use", file=sys.stderr)
        sys.exit(2)
    torch.set_num_threads(1)
    began = time.monotonic()
    results: dict[str, Any] = {"torch": torch.__version__, "device": options.device}
    is_right = True
    with tempfile.TemporaryDirectory() as folder, real_agent(Path(folder)) as agent:
        for step_ms in options.step_ms.split(","):
            workload = Workload(options.device, float(step_ms))
            print(f"step of {workload.step_ms:.1f} ms ({workload.num_layers} layers)", flush=True)
            taken = cost(agent, workload, _COST_SECONDS)
            case = results[f"{step_ms} ms"] = {"step_ms": workload.step_ms, "cost": taken}
            proportional = f", {taken['pss_mib']:.0f} MiB proportional" if "pss_mib" in taken else ""
            print(
                f"  the agent takes {taken['agent_cores']:.2%} of one core and {taken['reading_cores']:.2%} for reading"
                f" {len(gpus_read(agent.scrape()[1]))} GPUs; {taken['rss_mib']:.0f} MiB resident{proportional}",
                flush=True,
            )
            case |= pairs(agent, workload, options.blocks, options.seconds)
            case["is_well"] = _is_well(case)
            is_right &= case["is_well"] and case["ratio"]["high"] <= _MOST
            print(
                "  with the agent {median:.4f} x without (95 %: {low:.4f} to {high:.4f})".format(**case["ratio"]),
                end="",
            )
            on, off = (1e3 * median(case[name]) for name in ("on_seconds", "off_seconds"))
            print(f"; {options.blocks} pairs of {options.seconds:g} s; a step takes {on:.2f} and {off:.2f} ms")
            print(
                f"  in a block {median(case['rounds_on']):g} rounds (at least {min(case['rounds_on']):g}), readers "
                f"woken {median(case['woken_on']):g} times (at least {min(case['woken_on'])}; frozen: "
                f"{max(case['woken_off'])}), oldest reading {case['oldest_on']:.1f} s: "
                f"{'OK' if case['is_well'] else 'off'}",
                flush=True,
            )
        results["troubles"] = troubles(agent.scrape()[1])
    print(f"troubles with reading: {results['troubles'] or 'none'}; {time.monotonic() - began:.0f} s")
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(0 if is_right and not results["troubles"] else 1)


if __name__ == "__main__":
    main()
