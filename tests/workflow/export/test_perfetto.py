"""The Perfetto export: its times are those of the analysis, its slices nest, its ranks are on one clock."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import DataError, UsageError
from stepscope.core.text.wording import category_words
from stepscope.trace.columns import DEVICE_CATEGORIES
from stepscope.trace.reading import read_ranks
from stepscope.workflow.analyze import analyze
from stepscope.workflow.export.perfetto import Selection, export_perfetto, nested_lanes

_RECORDED = Path(__file__).parents[2] / "reference_workloads/suite/recorded"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run of two H200s."""
    return Path(shutil.copytree(_RECORDED / "pp-few_micro_batches", tmp_path_factory.mktemp("runs") / "pp"))


@pytest.fixture(scope="module")
def events(run: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The exported events."""
    output = tmp_path_factory.mktemp("out") / "trace.json.gz"
    exported = export_perfetto([str(run)], output)
    assert exported.ranks == [0, 1]
    return _events(output)


def _events(path: Path) -> list[dict[str, Any]]:
    content = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
    found: list[dict[str, Any]] = json.loads(content)["traceEvents"]
    return found


def _tracks(events: list[dict[str, Any]]) -> dict[tuple[int, str], list[dict[str, Any]]]:
    """Slices by rank and name of their track."""
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["name"] == "thread_name"}
    tracks = defaultdict(list)
    for one in events:
        if one["ph"] == "X":
            tracks[one["pid"] - 1, names[one["pid"], one["tid"]]].append(one)
    return tracks


def test_times_by_category_are_those_of_the_breakdown(run: Path, events: list[dict[str, Any]]) -> None:
    tracks = _tracks(events)
    for rank in analyze([str(run)], keep=False).analysis.ranks:
        spent: dict[str, float] = defaultdict(float)
        for one in tracks[rank.rank, "time breakdown"]:
            spent[one["name"]] += one["dur"]
        total = sum(spent.values())
        assert total / 1e3 == pytest.approx(rank.window_ms, rel=1e-6)
        for category, share in rank.ledger.items():
            assert spent[category_words(category)] / total == pytest.approx(share, abs=1e-4)


def test_every_event_of_the_device_is_there_once(run: Path, events: list[dict[str, Any]]) -> None:
    for path in sorted(run.rglob("traces/step*/rank*.json.gz")):
        (trace,) = read_ranks(path)
        rows = trace.rows_of(*DEVICE_CATEGORIES)
        own = [one for one in events if one["ph"] == "X" and one["pid"] - 1 == trace.header.rank and "cat" in one]
        kernels = [one for one in own if one["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
        assert len(kernels) == len(rows)
        assert sum(one["dur"] for one in kernels) == pytest.approx((trace.end_ns - trace.start_ns)[rows].sum() / 1e3)


def test_slices_of_a_track_nest(events: list[dict[str, Any]]) -> None:
    for slices in _tracks(events).values():
        ends: list[float] = []
        for one in sorted(slices, key=lambda one: (one["ts"], -one["dur"])):
            while ends and ends[-1] <= one["ts"] + 1e-3:
                ends.pop()
            assert not ends or one["ts"] + one["dur"] <= ends[-1] + 2e-3
            ends.append(one["ts"] + one["dur"])


def test_arrows_lead_from_a_call_to_a_later_kernel(events: list[dict[str, Any]]) -> None:
    starts = {one["id"]: one["ts"] for one in events if one["ph"] == "s"}
    ends = {one["id"]: one["ts"] for one in events if one["ph"] == "f"}
    assert starts.keys() == ends.keys() != set()
    assert sum(ends[arrow] >= starts[arrow] for arrow in starts) > 0.99 * len(starts)


def test_processes_are_named_by_place_rank_and_gpu(events: list[dict[str, Any]]) -> None:
    names = [one["args"]["name"] for one in events if one["name"] == "process_name"]
    assert [name.split("/")[0].split(" ")[:3] for name in names] == [["[PP0]", "rank", "0"], ["[PP1]", "rank", "1"]]
    assert all(name.endswith(f"gpu{rank}") for rank, name in enumerate(names))


def test_the_reader_of_traces_reads_the_export(run: Path, tmp_path: Path) -> None:
    export_perfetto([str(run)], tmp_path / "trace.json")
    ranks = read_ranks(tmp_path / "trace.json")
    assert [trace.header.rank for trace in ranks] == [0, 1]


def test_clocks_of_two_hosts_are_aligned(tmp_path: Path) -> None:
    """The clock of the second host is 7 ms ahead; collectives of both ranks still end together."""
    ends = {}
    for name, ahead_us in (("plain", 0), ("skewed", 7_000)):
        run = Path(shutil.copytree(_RECORDED / "ddp-straggler", tmp_path / name))
        for rank, path in enumerate(sorted(run.rglob("traces/step*/rank*.json.gz"))):
            document = json.loads(gzip.decompress(path.read_bytes()))
            document["host_name"] = f"node{rank}"
            for event in document["traceEvents"]:
                if "ts" in event:
                    event["ts"] = float(event["ts"]) + rank * ahead_us
            path.write_bytes(gzip.compress(json.dumps(document).encode()))
        exported = export_perfetto([str(run)], tmp_path / f"{name}.json")
        events = _events(tmp_path / f"{name}.json")
        titles = [one["args"]["name"] for one in events if one["name"] == "process_name"]
        assert titles == ["[DP0] rank 0 node0/gpu0", "[DP1] rank 1 node1/gpu1"]
        kernels = [one for one in events if one["ph"] == "X" and "AllReduce" in one["name"] and "cat" in one]
        ends[name] = [np.array([one["ts"] + one["dur"] for one in kernels if one["pid"] == pid]) for pid in (1, 2)]
        assert exported.clock_residual_us is not None
    for first, second in ends.values():
        assert float(np.median(np.abs(first - second))) < 100.0


def test_a_wait_names_the_rank_that_is_late(tmp_path: Path) -> None:
    """Rank 1 is the straggler of this run."""
    export_perfetto([str(shutil.copytree(_RECORDED / "ddp-straggler", tmp_path / "run"))], tmp_path / "trace.json")
    tracks = _tracks(_events(tmp_path / "trace.json"))
    waited = [sum(one["dur"] for one in tracks[rank, "causes"] if "waits for" in one["name"]) for rank in (0, 1)]
    assert {one["name"] for one in tracks[0, "causes"] if "waits for" in one["name"]} == {"waits for rank 1"}
    assert waited[0] > 10 * waited[1]


def test_only_the_chosen_ranks_and_time_are_written(run: Path, tmp_path: Path) -> None:
    exported = export_perfetto([str(run)], tmp_path / "part.json", Selection(frozenset({1}), 10.0, 30.0))
    slices = [one for one in _events(tmp_path / "part.json") if one["ph"] == "X"]
    assert exported.ranks == [1]
    assert {one["pid"] for one in slices} == {2}
    assert min(one["ts"] for one in slices) >= 10_000
    assert max(one["ts"] + one["dur"] for one in slices) <= 30_000.001


def test_bad_requests_are_one_line_and_leave_no_file(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "trace.json"
    with pytest.raises(UsageError, match="rank 7"):
        export_perfetto([str(run)], output, Selection(frozenset({7})))
    with pytest.raises(UsageError, match="empty"):
        export_perfetto([str(run)], output, Selection(start_ms=5.0, end_ms=5.0))
    for time_ms in (float("nan"), float("inf"), -float("inf"), 1e300):
        with pytest.raises(UsageError, match="is not a time in ms"):
            export_perfetto([str(run)], output, Selection(start_ms=time_ms))
    with pytest.raises(UsageError, match="the profiled steps are 0 to"):
        export_perfetto([str(run)], output, Selection(start_ms=1e6))
    with pytest.raises(DataError):
        export_perfetto([str(run)], tmp_path / "none" / "trace.json")
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=40))
def test_slices_of_a_lane_lie_in_or_beside_each_other(spans: list[tuple[int, int]]) -> None:
    slices = sorted(((start, start + length) for start, length in spans), key=lambda one: (one[0], -one[1]))
    start, end = (np.array([one[place] for one in slices], np.int64) for place in (0, 1))
    lanes = nested_lanes(start, end, 64)
    for i, (begins, ends) in enumerate(slices):
        for j in range(i):
            if lanes[i] == lanes[j]:
                assert begins >= slices[j][1] or ends <= slices[j][1]


def test_events_are_the_same_in_batches_of_any_size(
    run: Path, events: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.workflow.export.perfetto._BATCH", 7)
    export_perfetto([str(run)], tmp_path / "trace.json")
    assert _events(tmp_path / "trace.json") == events
