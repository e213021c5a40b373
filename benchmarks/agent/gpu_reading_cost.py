"""Cost of reading 8 GPUs once per second, and of requesting the readings. On the fake driver of the tests.

    python -m benchmarks.agent.gpu_reading_cost [--gpus 8] [--interval 1] [--seconds 60] [--out FILE.json]

CPU of the reader processes and of the process that polls them, as shares of one core; resident (RSS) and proportional
memory (PSS: pages of shared libraries are divided among their users). Measured again while one GPU hangs. A real driver
adds its own time: 1 to 4 ms per GPU and round on recorded H100s.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.measurement import children, cpu_seconds, proportional_bytes, resident_bytes
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml

_SETTLE_SECONDS = 15.0
_MIB = 1024**2

_PROGRAM = """
import json, sys, time
from stepscope.agent.gpus.probes import GpuProbes, ProbeTiming
interval, seconds = float(sys.argv[1]), float(sys.argv[2])
with GpuProbes(ProbeTiming(interval=interval, first_retry=1, last_retry=30)) as probes:
    for line in sys.stdin:
        took, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            begin = time.perf_counter()
            told = probes.snapshot()
            took.append(time.perf_counter() - begin)
            time.sleep(float(line))
        print(json.dumps({"took": took, "readings": len(told.collection.readings),
                          "reasons": [target.reason for target in told.targets]}), flush=True)
"""


def _measured(agent: subprocess.Popen[str], pause: float) -> dict[str, Any]:
    """Cost of the agent and its processes over a time in which it is asked every `pause` seconds."""
    assert agent.stdin is not None
    assert agent.stdout is not None
    family = [agent.pid, *children(agent.pid)]
    before = {pid: cpu_seconds(pid) for pid in family}
    begin = time.monotonic()
    agent.stdin.write(f"{pause}\n")
    agent.stdin.flush()
    told = json.loads(agent.stdout.readline())
    elapsed = time.monotonic() - begin
    after = {pid: cpu_seconds(pid) for pid in [agent.pid, *children(agent.pid)]}
    shares = {pid: (cpu - before.get(pid, 0.0)) / elapsed for pid, cpu in after.items()}
    return {
        "seconds": elapsed,
        "readings": told["readings"],
        "reasons": told["reasons"],
        "processes": len(after),
        "asking_cpu_share": shares[agent.pid],
        "reading_cpu_share": sum(share for pid, share in shares.items() if pid != agent.pid),
        "rss_mib": sum(map(resident_bytes, after)) / _MIB,
        "pss_mib": sum(proportional_bytes(pid) or 0 for pid in after) / _MIB,
        "snapshot_ms": _percentiles(told["took"]),
    }


def _percentiles(took: list[float]) -> dict[str, float]:
    if len(took) < 2:
        return {"p50": 1e3 * took[0], "p99": 1e3 * took[0]}
    cuts = quantiles(took, n=100, method="inclusive")
    return {"p50": 1e3 * cuts[49], "p99": 1e3 * cuts[98]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {"gpus": options.gpus, "interval": options.interval}
    with tempfile.TemporaryDirectory() as folder:
        machine = FakeNvml(build_fake_nvml(Path(folder) / "library"), Path(folder) / "nvml.conf")
        for index in range(options.gpus):
            machine.add(profiles.h100(index))
        machine.write()
        agent = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(options.interval), str(options.seconds)],
            env=machine.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with agent:
            time.sleep(_SETTLE_SECONDS)
            results["asked every 15 s"] = _measured(agent, 15.0)
            results["asked every 20 ms"] = _measured(agent, 0.02)
            machine.set(options.gpus - 1, hang="any")
            machine.write()
            time.sleep(_SETTLE_SECONDS)
            results["one GPU hangs, asked every 20 ms"] = _measured(agent, 0.02)
            assert agent.stdin is not None
            agent.stdin.close()
    for name, result in results.items():
        if not isinstance(result, dict):
            continue
        snapshot = result["snapshot_ms"]
        print(
            f"{name}: {result['readings']} readings, {result['processes']} processes; CPU of one core: reading "
            f"{result['reading_cpu_share']:.2%}, asking {result['asking_cpu_share']:.2%}; memory "
            f"{result['rss_mib']:.1f} MiB RSS, {result['pss_mib']:.1f} MiB PSS; "
            f"a snapshot p50 {snapshot['p50']:.2f} ms, p99 {snapshot['p99']:.2f} ms"
        )
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
