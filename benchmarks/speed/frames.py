"""Frames of the Python API beside the same query by hand in pandas, in one run: time, and peak of new memory.

    python -m benchmarks.speed.frames [--kernels 5000000] [--ranks 1024]

kernels  every kernel of a trace as a frame in order of time, and its sum by name; by hand from the same columns
ranks    share of each category and rank from a saved analysis; by hand from its JSON
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

import stepscope
from stepscope.api.launches import frame_of_traces
from stepscope.store.documents import encode_document
from stepscope.trace.columns import Category, Lane, TraceColumns
from stepscope.trace.reading import read_ranks
from stepscope.workflow.analyze import analyze

_RECORDED = Path(__file__).parents[2] / "tests/reference_workloads/suite/recorded/ddp-straggler"
_NUM_NAMES = 300
_ROUNDS = 5


def main() -> None:
    """Print a line a query."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=5_000_000)
    parser.add_argument("--ranks", type=int, default=1024)
    arguments = parser.parse_args()
    trace = many_kernels(arguments.kernels)
    _compare(
        f"{arguments.kernels:,} kernels",
        lambda: frame_of_traces([(trace, 0)]).groupby("name", observed=True)["duration_ns"].sum(),
        lambda: _kernels_by_hand(trace).groupby("name", observed=True)["duration_ns"].sum(),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = saved_analysis(Path(folder), arguments.ranks)
        _compare(
            f"{arguments.ranks:,} ranks ({path.stat().st_size / 1e6:.1f} MB)",
            lambda: stepscope.load(path).breakdown(by="rank").sum(),
            lambda: pd.json_normalize(json.loads(path.read_bytes())["ranks"]).filter(like="ledger.").sum(),
        )


def many_kernels(count: int) -> TraceColumns:
    """A trace of so many kernels with the columns of a recorded one."""
    (trace,) = read_ranks(next(iter(sorted(_RECORDED.rglob("traces/step*/rank0.json.gz")))))
    random = np.random.default_rng(5)
    start = trace.start_ns[0] + np.sort(random.integers(0, 10**11, count))
    none = np.full(count, -1, np.int8)
    return replace(
        trace,
        category=np.full(count, Category.KERNEL, np.int8),
        name=random.integers(0, _NUM_NAMES, count).astype(np.int16),
        lane=random.integers(0, 2, count).astype(np.int8),
        start_ns=start,
        end_ns=start + random.integers(1_000, 100_000, count),
        correlation=np.arange(count, dtype=np.int32),
        external_id=none,
        shapes=none,
        launch=none,
        num_bytes=none,
        names=tuple(f"kernel_{number}" for number in range(_NUM_NAMES)),
        lanes=(Lane(0, 7, True), Lane(0, 20, True)),
    )


def _kernels_by_hand(trace: TraceColumns) -> pd.DataFrame:
    rows = np.flatnonzero(trace.category == Category.KERNEL)
    lanes = np.array([lane.thread for lane in trace.lanes])
    frame = pd.DataFrame(
        {
            "rank": np.zeros(len(rows), np.int32),
            "name": pd.Categorical.from_codes(trace.name[rows], pd.Index(trace.names, dtype="str")),
            "start": pd.to_datetime(trace.start_ns[rows], unit="ns", utc=True),
            "duration_ns": trace.end_ns[rows] - trace.start_ns[rows],
            "stream": lanes[trace.lane[rows]],
            "correlation": trace.correlation[rows],
        }
    )
    return frame.sort_values("start", kind="stable", ignore_index=True)


def saved_analysis(folder: Path, num_ranks: int) -> Path:
    """An analysis of so many ranks, as `analyze --json` prints it."""
    traces = [str(path) for path in sorted(_RECORDED.rglob("traces/step*/rank*.json.gz"))]
    analysis = analyze(traces, keep=False).analysis
    ranks = [replace(analysis.ranks[rank % len(analysis.ranks)], rank=rank) for rank in range(num_ranks)]
    path = folder / "analysis.json"
    path.write_bytes(encode_document(replace(analysis, ranks=ranks)))
    return path


def _compare(what: str, ours: Callable[[], object], by_hand: Callable[[], object]) -> None:
    seconds: dict[str, list[float]] = {"ours": [], "by hand": []}
    peak = {}
    for name, query in (("ours", ours), ("by hand", by_hand)):
        gc.collect()
        tracemalloc.start()
        query()
        peak[name] = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
    for _ in range(_ROUNDS):
        for name, query in (("ours", ours), ("by hand", by_hand)):
            begun = time.process_time()
            query()
            seconds[name].append(time.process_time() - begun)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    print(
        f"{what}: {median['ours']:.3f} s of CPU, by hand {median['by hand']:.3f} s "
        f"({median['ours'] / median['by hand']:.2f} times); "
        f"peak {peak['ours']:.0f} MB, by hand {peak['by hand']:.0f} MB ({peak['ours'] / peak['by hand']:.2f} times)"
    )


if __name__ == "__main__":
    main()
