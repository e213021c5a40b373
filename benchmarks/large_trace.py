"""How much time and memory does reading and analysing a large trace take, beside other ways of doing it?

    python benchmarks/large_trace.py [TRACE] [--copies 12] [--repeats 3] [--without-hta] [--only read,analyze,json,hta]

Writes one large trace: copies of TRACE (of a synthetic trace when none is given), each shifted in time, ids and step
numbers. Runs each way in a process of its own and prints the medians of its CPU seconds, wall seconds and peak
resident memory, and how many times more CPU and memory it takes than `stepscope analyze`: "read" is our reader alone,
"json" only json.load, "hta" HolisticTraceAnalysis's load and temporal breakdown, installed into a virtual environment
that is kept for the next time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

_BASELINE = "analyze"
_ID_KEYS = ("External id", "correlation")
_STEP_NAME = re.compile(r"ProfilerStep#(\d+)")
_SYNTHETIC_EVENTS = 100_000

_READ = """
import sys
from stepscope.trace.kineto import read_trace
trace = read_trace(sys.argv[1])
print(len(trace), "complete events")
"""
_JSON = """
import json, sys
with open(sys.argv[1], "rb") as stream:
    document = json.load(stream)
print(len(document["traceEvents"]), "events")
"""
_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
print(analysis.get_temporal_breakdown(visualize=False).to_string())
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one process cost."""

    cpu_seconds: float
    wall_seconds: float
    peak_bytes: int
    succeeded: bool
    output: str


def main() -> None:
    """Make the trace, run the ways, print the table."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="stepscope-bench-", dir=options.work_directory) as folder:
        trace = Path(folder, "rank0.json")
        num_events = _write_large_trace(trace, options.trace, copies=options.copies)
        size = trace.stat().st_size
        print(f"trace: {size / 1e6:.1f} MB of JSON, {num_events:,} events")
        costs = {name: _median_cost(command, options.repeats) for name, command in _ways(trace, options)}
    _print_table(costs, size)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, help="a Kineto trace to multiply; synthetic when left out")
    parser.add_argument("--copies", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=1, help="runs of each way; medians are shown")
    parser.add_argument("--without-hta", action="store_true")
    parser.add_argument("--only", default="read,analyze,json,hta", help="ways to run, by name")
    parser.add_argument("--work-directory", type=Path, help="where the large trace is written for the while")
    parser.add_argument("--hta-environment", type=Path, default=Path(tempfile.gettempdir(), "stepscope-bench-hta"))
    return parser.parse_args()


def _ways(trace: Path, options: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    chosen = set(options.only.split(","))
    commands = {
        "read": [sys.executable, "-c", _READ, str(trace)],
        "analyze": [sys.executable, "-m", "stepscope", "analyze", str(trace), "--json"],
        "json": [sys.executable, "-c", _JSON, str(trace)],
    }
    yield from ((name, command) for name, command in commands.items() if name in chosen)
    if "hta" in chosen and not options.without_hta:
        yield "hta", [str(_hta_python(options.hta_environment)), "-c", _HTA, str(trace)]


def _hta_python(environment: Path) -> Path:
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    packages = ["HolisticTraceAnalysis", "pandas<3"]  # with pandas 3 it fails on some traces
    install = [str(python), "-m", "pip", "install", "--quiet", "--quiet", *packages]
    done = subprocess.run(install, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"HolisticTraceAnalysis cannot be installed (leave it out with --without-hta)\n{done.stderr}")
    return python


def _median_cost(command: list[str], repeats: int) -> Cost:
    costs = [_measure(command) for _ in range(max(repeats, 1))]
    return Cost(
        cpu_seconds=median(cost.cpu_seconds for cost in costs),
        wall_seconds=median(cost.wall_seconds for cost in costs),
        peak_bytes=int(median(cost.peak_bytes for cost in costs)),
        succeeded=all(cost.succeeded for cost in costs),
        output=next((cost.output for cost in costs if not cost.succeeded), costs[0].output),
    )


def _measure(command: list[str]) -> Cost:
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    return Cost(
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        wall_seconds=time.monotonic() - began,
        peak_bytes=usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        succeeded=process.returncode == 0,
        output=output,
    )


def _print_table(costs: dict[str, Cost], size: int) -> None:
    baseline = costs.get(_BASELINE)
    print(
        f"{'way':10} {'CPU s':>8} {'wall s':>8} {'MB/s CPU':>9} {'peak MB':>8} {'% of file':>9}"
        f"   times {_BASELINE}: {'CPU':>6} {'memory':>7}"
    )
    for name, cost in costs.items():
        slower = f"{cost.cpu_seconds / baseline.cpu_seconds:6.2f}" if baseline else f"{'-':>6}"
        larger = f"{cost.peak_bytes / baseline.peak_bytes:7.2f}" if baseline else f"{'-':>7}"
        print(
            f"{name:10} {cost.cpu_seconds:8.2f} {cost.wall_seconds:8.2f} {size / 1e6 / cost.cpu_seconds:9.1f}"
            f" {cost.peak_bytes / 1e6:8.1f} {cost.peak_bytes / size:9.1%}   {'':{len(_BASELINE) + 7}} {slower} {larger}"
        )
        if not cost.succeeded:
            print(f"  failed: {cost.output.strip().splitlines()[-1] if cost.output.strip() else 'no output'}")


def _write_large_trace(target: Path, source: Path | None, *, copies: int) -> int:
    """Write the copies in Kineto's layout, one after another in time; the number of events.

    In a process of its own: memory that this one once held would count as the peak of those it starts.
    """
    child = os.fork()
    if child == 0:
        _write_copies(target, source, copies=copies)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        raise SystemExit("the large trace could not be written")
    with target.open("rb") as stream:
        return sum(line.count(b'"ph":') for line in stream)


def _write_copies(target: Path, source: Path | None, *, copies: int) -> None:
    document = _synthetic() if source is None else _load(source)
    events = document.pop("traceEvents")
    timed = [event for event in events if event["ph"] == "X" and event.get("cat") != "Trace"]
    period = max(event["ts"] + event["dur"] for event in timed) - min(event["ts"] for event in timed) + 1000
    ids = max((event.get("args") or {}).get(key) or 0 for event in timed for key in _ID_KEYS) + 1
    numbers = [int(found[1]) for event in timed if (found := _STEP_NAME.fullmatch(event["name"]))]
    steps = max(numbers) - min(numbers) + 1 if numbers else 0
    with target.open("w") as stream:
        stream.write("{\n" + "".join(f'  "{key}": {json.dumps(value)},\n' for key, value in document.items()))
        stream.write('  "traceEvents": [\n')
        for copy in range(copies):
            for place, event in enumerate(events):
                stream.write(",\n" if copy or place else "")
                stream.write(_kineto_text(_shifted(event, copy * period, ids=copy * ids, steps=copy * steps)))
        stream.write('\n  ],\n  "traceName": "bench.json"\n}\n')


def _shifted(event: dict[str, Any], microseconds: float, *, ids: int, steps: int) -> dict[str, Any]:
    moved = dict(event)
    if step := _STEP_NAME.fullmatch(event.get("name", "")):
        moved["name"] = f"ProfilerStep#{int(step[1]) + steps}"
    if "ts" in moved:
        moved["ts"] = round(moved["ts"] + microseconds, 3)
    if event["ph"] in "sf" and isinstance(event.get("id"), int):
        moved["id"] = event["id"] + ids
    if isinstance(event.get("args"), dict):
        moved["args"] = {key: value + ids if key in _ID_KEYS else value for key, value in event["args"].items()}
    return moved


def _kineto_text(event: dict[str, Any]) -> str:
    """The layout that Kineto itself writes."""
    head = ", ".join(
        f"{json.dumps(key)}: {json.dumps(event[key])}" for key in event if key not in ("ts", "dur", "args")
    )
    times = ", ".join(f"{json.dumps(key)}: {json.dumps(event[key])}" for key in ("ts", "dur") if key in event)
    text = "  {\n    " + ",\n    ".join(part for part in (head, times) if part)
    if "args" in event:
        text += ',\n    "args": {\n      ' + json.dumps(event["args"])[1:-1] + "\n    }"
    return text + "\n  }"


def _load(source: Path) -> dict[str, Any]:
    content = source.read_bytes()
    text = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    document: dict[str, Any] = json.loads(text)
    return document


def _synthetic() -> dict[str, Any]:
    """Operators, launches, flows and kernels in about a real trace's proportions."""
    events: list[dict[str, Any]] = []
    for number in range(_SYNTHETIC_EVENTS // 5):
        ts = 4956637219772.625 + number * 20
        shapes = {"Input Dims": [[number % 50, 1024], [1024, 4096]], "Input type": ["float", "float"]}
        launch = {"cbid": 211, "correlation": number, "External id": number}
        work: dict[str, Any] = {
            "External id": number,
            "queued": 0,
            "device": 0,
            "context": 1,
            "stream": 7,
            "correlation": number,
        }
        work |= {"registers per thread": 128, "shared memory": 49152, "blocks per SM": 1.5, "warps per SM": 6.0}
        work |= {"grid": [number % 100 + 1, 2, 1], "block": [128, 1, 1], "est. achieved occupancy %": 9}
        host, device = {"pid": 7, "tid": 7}, {"pid": 0, "tid": 7}
        events += [
            {"ph": "X", "cat": "cpu_op", "name": f"aten::op{number % 40}", **host, "ts": ts, "dur": 12.5}
            | {"args": {"External id": number, "Record function id": 0, **shapes, "Ev Idx": number}},
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                **host,
                "ts": ts + 4,
                "dur": 5,
                "args": launch,
            },
            {"ph": "s", "id": number, **host, "ts": ts + 4, "cat": "ac2g", "name": "ac2g"},
            {"ph": "X", "cat": "kernel", "name": f"void gemm_{number % 60}<float>(Params)", **device}
            | {"ts": ts + 9, "dur": 11.264, "args": work},
            {"ph": "f", "id": number, **device, "ts": ts + 9, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        ]
    distributed = {"backend": "nccl", "rank": 0, "world_size": 1}
    return {"schemaVersion": 1, "distributedInfo": distributed, "traceEvents": events}


if __name__ == "__main__":
    main()
