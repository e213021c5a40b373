"""Recording of jobs of one GPU beside an agent: verdicts with and without counters, bare steps with and without fault.

`python -m benchmarks.counted_runs --out DIR [--only CASE...] [--device cpu --tiny]`
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.agent.real_agent import started_agent
from benchmarks.counted_runs.job import CASES
from stepscope.core.documents.analysis import Analysis
from stepscope.core.protocol.messages import SOCKET_VARIABLE
from stepscope.core.text.verdict import verdict_text
from stepscope.workflow.analyze import analyze

_CASE_SECONDS = 240.0
EXPECTED: dict[str, tuple[set[str] | None, set[str]]] = {
    "healthy": (None, set()),
    "idle_process": (None, set()),
    "second_process": ({"contention"}, {"gpu_shared"}),
    "cpu_starved": ({"contention", "host_bound"}, {"cpu_limited"}),
}
"""Causes and reasons that a verdict should have; None: no bottleneck."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=CASES, default=CASES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        socket = f"{folder}/agent.sock"
        with started_agent(Path(folder), "--interval", "1", "--socket", socket):
            for case in asked.only:
                began = time.monotonic()
                command = [sys.executable, "-m", "benchmarks.counted_runs.job", "--case", case, "--out", str(asked.out)]
                command += ["--device", asked.device, "--seconds", str(asked.seconds)]
                command += ["--tiny"] if asked.tiny else []
                environment = {**os.environ, SOCKET_VARIABLE: socket}
                try:
                    subprocess.run(command, env=environment, timeout=_CASE_SECONDS, check=True)
                except (subprocess.SubprocessError, OSError) as error:
                    result: dict[str, Any] = {"case": case, "trouble": str(error)}
                else:
                    result = result_of(asked.out, case)
                result["seconds"] = round(time.monotonic() - began, 1)
                print(json.dumps(result), flush=True)
                with (asked.out / "cases.jsonl").open("a") as file:
                    file.write(json.dumps(result) + "\n")
        (asked.out / "agent.log").write_bytes(Path(folder, "agent.log").read_bytes())
    with tarfile.open(asked.out / "counted.tar", "w") as tar:
        for case in asked.only:
            for path in (asked.out / case, asked.out / f"{case}.truth.json"):
                if path.exists():
                    tar.add(path, path.name)
    return 0


def result_of(out: Path, case: str) -> dict[str, Any]:
    """What the verdicts on a run say, with its counters and without, and whether they are right."""
    truth = json.loads((out / f"{case}.truth.json").read_text())
    blocks = {name: round(median(values), 3) for name, values in truth.pop("blocks_ms").items()}
    run, metrics, hidden = out / case, out / case / "metrics", out / case / "metrics.hidden"
    with_counters = analyze([str(run)], keep=False).analysis
    has_counters = metrics.is_dir()
    if has_counters:
        metrics.rename(hidden)
    try:
        without = analyze([str(run)], keep=False).analysis
    finally:
        if has_counters:
            hidden.rename(metrics)
    return {
        **truth,
        "step_ms": blocks,
        "counters": _said(case, with_counters),
        "no_counters": _said(case, without),
        "text": verdict_text(with_counters).lines(),
    }


def _said(case: str, analysis: Analysis) -> dict[str, Any]:
    verdict, (causes, reasons) = analysis.verdict, EXPECTED[case]
    found = {reason.value for reason in verdict.reasons}
    is_right = not verdict.bottleneck if causes is None else verdict.cause.value in causes and reasons <= found
    return {
        "right": is_right,
        "cause": verdict.cause.value,
        "reasons": sorted(found),
        "share": verdict.share,
        "confidence": verdict.confidence,
        "layers": [
            [layer.layer, layer.used, layer.agrees, layer.note]
            for layer in (() if analysis.job_time is None else analysis.job_time.layers)
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
