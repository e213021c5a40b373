"""Time and memory to read and analyze a large trace, compared with other tools.

    python -m benchmarks.speed.large_trace [TRACE] [--megabytes 500] [--steps 5] [--repeats 3] [--only read,analyze,...]

Writes one large trace: copies of TRACE (by default a synthetic trace), each shifted in time and ids, in a few long
steps. Runs each tool in its own process, in turn, and prints the medians of CPU seconds, wall seconds and peak memory,
and the ratio of the CPU time of HolisticTraceAnalysis (load and temporal breakdown, in one run) to ours.

    read, analyze            stepscope: columns only; the whole command
    again                    a second analysis, which reads the views that the first one kept
    read-pure, analyze-pure  the same without the accelerators in C
    hta                      HolisticTraceAnalysis, in a virtual environment that is kept for later runs
    tracelens                TraceLens' TreePerfAnalyzer: load and GPU timeline, where --tracelens can be installed
    json                     json.load alone
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import stepscope
from benchmarks.measurement import Cost, measure, median_cost

_READ = """
import os, sys
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command does
from stepscope.trace.reading import read_ranks
(trace,) = read_ranks(sys.argv[1])
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
_TRACELENS = """
import sys
from TraceLens import TreePerfAnalyzer
analysis = TreePerfAnalyzer.from_file(sys.argv[1])
print(analysis.get_df_gpu_timeline().to_string())
"""
_PURE = {"STEPSCOPE_PURE": "1"}
_WITHOUT_VIEWS = {"STEPSCOPE_VIEWS": "off"}
_WAYS = ("read", "analyze", "again", "read-pure", "analyze-pure", "hta", "tracelens", "json")


@dataclass(frozen=True, slots=True)
class Way:
    """Tool under test: its command and environment."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def main() -> None:
    """Make the trace, run the tools, print the table."""
    options = _options()
    # as pip does when it installs: a source tree may have no bytecode, and the environment may forbid to keep any
    compileall.compile_dir(Path(stepscope.__file__).parent, quiet=2)
    with tempfile.TemporaryDirectory(prefix="stepscope-bench-", dir=options.work_directory) as folder:
        trace = Path(folder, "rank0.json")
        num_events = write_multiplied(
            trace, options.trace, num_bytes=options.megabytes * 1_000_000, num_steps=options.steps
        )
        size = trace.stat().st_size
        print(f"trace: {size / 1e6:.1f} MB of JSON, {num_events:,} entries, {options.steps} steps", flush=True)
        ways = _ways(trace, options)
        if (again := ways.get("again")) is not None:
            measure(again.command, again.environment)
        runs: dict[str, list[Cost]] = {name: [] for name in ways}
        for _ in range(max(options.repeats, 1)):
            for name, way in ways.items():
                runs[name].append(measure(way.command, way.environment))
    _print_table({name: median_cost(costs) for name, costs in runs.items()}, size)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, help="Kineto trace to multiply; default: synthetic")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=1, help="runs of each tool; medians are shown")
    parser.add_argument("--only", default=",".join(_WAYS), help="comma-separated tools to run")
    parser.add_argument("--work-directory", type=Path, help="temporary folder for the large trace")
    temporary = Path(tempfile.gettempdir())
    parser.add_argument("--hta-environment", type=Path, default=temporary / "stepscope-bench-hta")
    parser.add_argument("--tracelens-environment", type=Path, default=temporary / "stepscope-bench-tracelens")
    parser.add_argument(
        "--tracelens",
        default="git+https://github.com/AMD-AGI/TraceLens.git",
        help="pip requirement of TraceLens, which is not on PyPI",
    )
    return parser.parse_intermixed_args()


def _ways(trace: Path, options: argparse.Namespace) -> dict[str, Way]:
    chosen = options.only.split(",")
    read = [sys.executable, "-c", _READ, str(trace)]
    analyze = [sys.executable, "-m", "stepscope", "analyze", str(trace), "--json"]
    ways = {
        "read": Way(read),
        "analyze": Way(analyze, _WITHOUT_VIEWS),
        "again": Way(analyze, {"XDG_CACHE_HOME": str(trace.parent / "cache")}),
        "read-pure": Way(read, _PURE),
        "analyze-pure": Way(analyze, _PURE | _WITHOUT_VIEWS),
        "json": Way([sys.executable, "-c", _JSON, str(trace)]),
    }
    if "hta" in chosen:  # with pandas 3 it fails on some traces
        python = _python_with(options.hta_environment, ["HolisticTraceAnalysis", "pandas<3"])
        if python is not None:
            ways["hta"] = Way([str(python), "-c", _HTA, str(trace)])
    if "tracelens" in chosen:
        python = _python_with(options.tracelens_environment, [options.tracelens])
        if python is not None:
            ways["tracelens"] = Way([str(python), "-c", _TRACELENS, str(trace)])
    return {name: ways[name] for name in _WAYS if name in chosen and name in ways}


def _python_with(environment: Path, packages: list[str]) -> Path | None:
    """The Python of an environment that holds the packages; None, and a line that says so, where it cannot be made."""
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--quiet", *packages]
    done = subprocess.run(install, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        print(f"not installable, left out: {packages[0]} ({done.stderr.strip().splitlines()[-1:]})")
        return None
    return python


def _print_table(costs: dict[str, Cost], size: int) -> None:
    hta = costs.get("hta")
    print("| tool | CPU s | wall s | MB/s of CPU | peak memory | of the file | HTA's CPU, times | HTA's wall, times |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, cost in costs.items():
        cpu = f"{hta.cpu_seconds / cost.cpu_seconds:.1f}" if hta else "-"
        wall = f"{hta.wall_seconds / cost.wall_seconds:.1f}" if hta else "-"
        print(
            f"| {name} | {cost.cpu_seconds:.2f} | {cost.wall_seconds:.2f} | {size / 1e6 / cost.cpu_seconds:.0f}"
            f" | {cost.peak_bytes / 1e6:.0f} MB | {cost.peak_bytes / size:.0%} | {cpu} | {wall} |"
        )
    for name, cost in costs.items():
        if not cost.succeeded:
            print(f"{name} failed: {cost.last_line}")


_ID_KEYS = ("External id", "correlation")
_STEP_NAME = re.compile(r"ProfilerStep#\d+")
_SYNTHETIC_EVENTS = 100_000
_GAP_US = 1000
"""Between two copies."""


def write_multiplied(target: Path, source: Path | None, *, num_bytes: int, num_steps: int, rank: int = 0) -> int:
    """Write copies of a trace until the file has about `num_bytes`; the number of events.

    Each copy has times and ids of its own. The source's step marks give way to `num_steps` marks of equal length, so
    that a large trace is one of long steps. In a process of its own: memory that this one once held would count as the
    peak of those it starts.

    Args:
        target: file to write.
        source: a Kineto trace; a synthetic one is made without it.
        num_bytes: size to reach.
        num_steps: step marks in the whole file.
        rank: what distributedInfo tells.
    """
    child = os.fork()
    if child == 0:
        _write(target, source, num_bytes=num_bytes, num_steps=num_steps, rank=rank)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        raise SystemExit("the large trace could not be written")
    with target.open("rb") as stream:
        return sum(line.count(b'"ph":') for line in stream)


def _write(target: Path, source: Path | None, *, num_bytes: int, num_steps: int, rank: int) -> None:
    document = _synthetic() if source is None else _load(source)
    events = document.pop("traceEvents")
    document["distributedInfo"] = {
        "backend": "nccl",
        "world_size": 1,
        **document.get("distributedInfo", {}),
        "rank": rank,
    }
    marks = [event for event in events if _STEP_NAME.fullmatch(event.get("name", ""))]
    events = [event for event in events if not _STEP_NAME.fullmatch(event.get("name", ""))]
    timed = [event for event in events if event["ph"] == "X" and event.get("cat") != "Trace"]
    start = min(event["ts"] for event in timed)
    period = ceil(max(event["ts"] + event["dur"] for event in timed) - start) + _GAP_US
    with target.open("w") as stream:
        stream.write("{\n" + "".join(f'  "{key}": {json.dumps(value)},\n' for key, value in document.items()))
        stream.write('  "traceEvents": [\n')
        first = "".join(_copy(events, 0, ids=0))
        num_copies = max(num_steps, round(num_bytes / len(first)))
        ids = max((event.get("args") or {}).get(key) or 0 for event in timed for key in _ID_KEYS) + 1
        for number, mark in enumerate(_step_marks(marks, start, num_copies * period, num_steps)):
            stream.write((",\n" if number else "") + kineto_text(mark))
        for copy in range(num_copies):
            for text in _copy(events, copy * period, ids=copy * ids):
                stream.write(",\n" + text)
        stream.write('\n  ],\n  "traceName": "bench.json"\n}\n')


def _copy(events: list[dict[str, Any]], microseconds: int, *, ids: int) -> Iterator[str]:
    for event in events:
        yield kineto_text(_shifted(event, microseconds, ids=ids))


def _step_marks(marks: list[dict[str, Any]], start: float, length: int, num_steps: int) -> Iterator[dict[str, Any]]:
    host = next((mark for mark in marks if mark.get("cat") != "gpu_user_annotation"), {"pid": 7, "tid": 7})
    for step in range(num_steps):
        yield {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{step + 1}",
            "pid": host["pid"],
            "tid": host["tid"],
            "ts": start + step * (length // num_steps),
            "dur": length // num_steps,
        }


def _shifted(event: dict[str, Any], microseconds: int, *, ids: int) -> dict[str, Any]:
    moved = dict(event)
    if "ts" in moved:
        moved["ts"] += microseconds  # whole ones, so that integers stay integers, which old traces have
    if event["ph"] in "sf" and isinstance(event.get("id"), int):
        moved["id"] = event["id"] + ids
    if isinstance(event.get("args"), dict):
        moved["args"] = {key: value + ids if key in _ID_KEYS else value for key, value in event["args"].items()}
    return moved


def kineto_text(event: dict[str, Any]) -> str:
    """The layout that Kineto itself writes."""
    head = ", ".join(
        f"{json.dumps(key)}: {json.dumps(event[key])}" for key in event if key not in ("ts", "dur", "args")
    )
    times = ", ".join(f'"{key}": {_time_text(event[key])}' for key in ("ts", "dur") if key in event)
    text = "  {\n    " + ",\n    ".join(part for part in (head, times) if part)
    if "args" in event:
        text += ',\n    "args": {\n      ' + json.dumps(event["args"])[1:-1] + "\n    }"
    return text + "\n  }"


def _time_text(microseconds: float) -> str:
    return str(microseconds) if isinstance(microseconds, int) else f"{microseconds:.3f}"


def _load(source: Path) -> dict[str, Any]:
    content = source.read_bytes()
    text = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    document: dict[str, Any] = json.loads(text)
    return document


def _synthetic() -> dict[str, Any]:
    """Operators, launches, flows and kernels in about a real trace's proportions."""
    events = [event for number in range(_SYNTHETIC_EVENTS // 5) for event in _synthetic_operator(number)]
    return {"schemaVersion": 1, "traceEvents": events}


def _synthetic_operator(number: int) -> list[dict[str, Any]]:
    ts = 4956637219772.625 + number * 20
    host, device = {"pid": 7, "tid": 7}, {"pid": 0, "tid": 7}
    ids = {"External id": number, "correlation": number}
    shapes = {"Input Dims": [[number % 50, 1024], [1024, 4096]], "Input type": ["float", "float"]}
    operator = {"External id": number, "Record function id": 0, **shapes, "Ev Idx": number}
    work: dict[str, Any] = {**ids, "queued": 0, "device": 0, "context": 1, "stream": 7}
    work |= {"registers per thread": 128, "shared memory": 49152, "blocks per SM": 1.5, "warps per SM": 6.0}
    work |= {"grid": [number % 100 + 1, 2, 1], "block": [128, 1, 1], "est. achieved occupancy %": 9}
    flow = {"id": number, "cat": "ac2g", "name": "ac2g"}
    call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", **host, "ts": ts + 4, "dur": 5}
    kernel = {"cat": "kernel", "name": f"void gemm_{number % 60}<float>(Params)", **device, "ts": ts + 9, "dur": 11.264}
    return [
        {"ph": "X", "cat": "cpu_op", "name": f"aten::op{number % 40}", **host, "ts": ts, "dur": 12.5, "args": operator},
        {"ph": "X", **call, "args": {"cbid": 211, **ids}},
        {"ph": "s", **flow, **host, "ts": ts + 4},
        {"ph": "X", **kernel, "args": work},
        {"ph": "f", **flow, **device, "ts": ts + 9, "bp": "e"},
    ]


if __name__ == "__main__":
    main()
