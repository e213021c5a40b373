"""Reading of a run's counters: damage is counted, long files are sampled."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.documents.run_counters import counters_line
from stepscope.core.protocol.counters import Counters, GpuCounters, HostCounters
from stepscope.store import counter_records
from stepscope.store.counter_records import read_counters

_names = st.text("abc_é", min_size=1, max_size=8)
_samples = st.one_of(st.none(), st.floats(-1e12, 1e12))
_times = st.lists(st.integers(0, 2**62), max_size=5).map(lambda times: tuple(sorted(times)))


@st.composite
def _gpus(draw: st.DrawFn) -> GpuCounters:
    times = draw(_times)
    columns = st.dictionaries(_names, st.tuples(*[_samples for _ in times]), max_size=3)
    others = draw(st.one_of(st.none(), st.integers(0, 9)))
    return GpuCounters("GPU-0", times, draw(columns), draw(st.one_of(st.none(), columns)), other_processes=others)


def _written(folder: Path, rank: int, content: bytes) -> Path:
    path = folder / "metrics" / f"rank{rank}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


@given(st.lists(_gpus(), max_size=2), st.integers(0, 2**62))
def test_a_line_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, gpus: list[GpuCounters], at: int
) -> None:
    message = Counters(at, None, tuple(gpus), HostCounters((1,), {"a": (None,)}))
    folder = tmp_path_factory.mktemp("run")
    _written(folder, 0, counters_line(message))
    (rank,), _ = read_counters(folder)
    assert rank.messages == [message]


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff\xfe",
        b'{"time_ns": -1}',
        b'{"time_ns": 1e999}',
        b'{"time_ns": 9223372036854775807}',
        b'{"time_ns": 1, "gpus": [{"uuid": "G", "times_ns": [1], "values": {"a": [1, 2]}}]}',
        b'{"time_ns": 1, "gpus": [{"uuid": "G", "times_ns": [-5], "values": {}}]}',
        b'{"time_ns": 1, "host": {"times_ns": [1], "values": {"a": [NaN]}}}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_line_is_counted_and_the_others_are_read(tmp_path: Path, damaged: bytes) -> None:
    line = counters_line(Counters(1))
    _written(tmp_path, 0, line + damaged + b"\n" + line + b'{"time_ns"')
    _written(tmp_path, 1, b"")
    (rank,), notices = read_counters(tmp_path)
    assert len(rank.messages) == 2
    assert [notice.code for notice in notices] == (["unreadable_lines"] if damaged else [])


def test_a_file_that_cannot_be_opened_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics" / "rank0.jsonl").mkdir(parents=True)
    _written(tmp_path, 1, counters_line(Counters(1)))
    ranks, notices = read_counters(tmp_path)
    assert [rank.rank for rank in ranks] == [1]
    assert [notice.code for notice in notices] == ["unusable_file"]


def test_of_a_long_file_blocks_spread_over_the_run_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter_records, "_BLOCK_BYTES", 1 << 10)
    lines = [counters_line(Counters(number, 10.0)) for number in range(10_000)]
    path = _written(tmp_path, 0, b"".join(lines))
    assert os.path.getsize(path) > 1 << 18
    (rank,), notices = read_counters(tmp_path, max_bytes=1 << 16)
    times = [message.time_ns for message in rank.messages]
    assert not notices
    assert (times[0], times[-1]) == (0, 9_999)
    assert times == sorted(set(times))
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 400
