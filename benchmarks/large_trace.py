"""How much time and memory does reading and analysing a large trace take, beside other ways of doing it?

    python -m benchmarks.large_trace [TRACE] [--megabytes 500] [--steps 5] [--repeats 3] [--only read,analyze,...]

Writes one large trace: copies of TRACE (of a synthetic trace when none is given), each shifted in time and ids, in a
few long steps. Runs each way in a process of its own, all ways in turn, and prints the medians of CPU seconds, wall
seconds and peak memory, and how many times less CPU ours takes than HolisticTraceAnalysis: its load and temporal
breakdown, in one run.

    read, analyze            ours: to columns alone; the whole command
    read-pure, analyze-pure  the same without the accelerators in C
    hta                      HolisticTraceAnalysis, in a virtual environment that is kept for the next time
    tracelens                TraceLens' TreePerfAnalyzer: load and GPU timeline, where --tracelens can be installed
    json                     json.load alone
"""

from __future__ import annotations

import argparse
import compileall
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass, field
from pathlib import Path

import stepscope
from benchmarks.measuring import Cost, measure, median_cost
from benchmarks.multiplied import write_multiplied

_READ = """
import os, sys
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command does
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
_TRACELENS = """
import sys
from TraceLens import TreePerfAnalyzer
analysis = TreePerfAnalyzer.from_file(sys.argv[1])
print(analysis.get_df_gpu_timeline().to_string())
"""
_PURE = {"STEPSCOPE_PURE": "1"}
_WAYS = ("read", "analyze", "read-pure", "analyze-pure", "hta", "tracelens", "json")


@dataclass(frozen=True, slots=True)
class Way:
    """One way to do it: a command, and what it needs in its environment."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def main() -> None:
    """Make the trace, run the ways, print the table."""
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
        runs: dict[str, list[Cost]] = {name: [] for name in ways}
        for _ in range(max(options.repeats, 1)):
            for name, way in ways.items():
                runs[name].append(measure(way.command, way.environment))
    _print_table({name: median_cost(costs) for name, costs in runs.items()}, size)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, help="a Kineto trace to multiply; synthetic when left out")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=1, help="runs of each way; medians are shown")
    parser.add_argument("--only", default=",".join(_WAYS), help="ways to run, by name")
    parser.add_argument("--work-directory", type=Path, help="where the large trace is written for the while")
    temporary = Path(tempfile.gettempdir())
    parser.add_argument("--hta-environment", type=Path, default=temporary / "stepscope-bench-hta")
    parser.add_argument("--tracelens-environment", type=Path, default=temporary / "stepscope-bench-tracelens")
    parser.add_argument(
        "--tracelens",
        default="git+https://github.com/AMD-AGI/TraceLens.git",
        help="what pip installs as TraceLens, which is not on PyPI",
    )
    return parser.parse_intermixed_args()


def _ways(trace: Path, options: argparse.Namespace) -> dict[str, Way]:
    chosen = options.only.split(",")
    read = [sys.executable, "-c", _READ, str(trace)]
    analyze = [sys.executable, "-m", "stepscope", "analyze", str(trace), "--json"]
    ways = {
        "read": Way(read),
        "analyze": Way(analyze),
        "read-pure": Way(read, _PURE),
        "analyze-pure": Way(analyze, _PURE),
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
    print("| way | CPU s | wall s | MB/s of CPU | peak memory | of the file | HTA's CPU, times | HTA's wall, times |")
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


if __name__ == "__main__":
    main()
