"""Entry to the trace formats: the format of a file is recognised by its first bytes, its reader gets all of them."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from stepscope.core.errors import NotATraceError
from stepscope.trace import reading
from stepscope.trace.columns import TraceColumns
from stepscope.trace.inflating import Readable
from stepscope.trace.reading import FORMATS, TraceFormat, has_operations_name, has_rank_name, read_ranks_stream

EVENT = b'[{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]'


def test_a_format_that_recognises_the_first_bytes_reads_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_other(stream: Readable, *, path: str, file_bytes: int, head: bytes) -> list[TraceColumns]:
        content = head + stream.read(1 << 20)
        assert (content[:5], len(content), path) == (b"MAGIC", file_bytes, "t.other")
        return []

    other = TraceFormat(re.compile(r"\.other$"), b"MAGIC", read_ranks=read_other)
    monkeypatch.setattr(reading, "FORMATS", (other, *FORMATS))
    content = b"MAGIC" * 40_000
    assert read_ranks_stream(io.BytesIO(content), path="t.other", file_bytes=len(content)) == []
    assert has_rank_name("t.other")
    (trace,) = read_ranks_stream(io.BytesIO(EVENT), path="rank3.json", file_bytes=len(EVENT))
    assert (len(trace), trace.header.rank) == (1, 3)


def test_a_table_of_operations_is_no_trace_of_ranks() -> None:
    with pytest.raises(NotATraceError, match="is a Parquet table, not a profiler trace"):
        read_ranks_stream(io.BytesIO(b"PAR1"), path="trace-x.parquet", file_bytes=4)


@pytest.mark.parametrize(
    ("name", "ranks", "operations"),
    [
        ("rank0.json", True, False),
        ("rank0.JSON.GZ", True, False),
        ("rank0.json.tmp", False, False),
        ("trace-x.parquet", False, True),
        ("x.parquet", False, False),
    ],
)
def test_files_of_a_folder_are_told_by_their_names(name: str, ranks: bool, operations: bool) -> None:
    assert (has_rank_name(name), has_operations_name(name)) == (ranks, operations)


def test_every_format_has_one_reader() -> None:
    assert all((known.read_ranks is None) != (known.read_operations is None) for known in FORMATS)
    assert FORMATS[-1].magic == b""


def test_a_file_is_read_whole_though_its_first_bytes_were_taken(tmp_path: Path) -> None:
    events = EVENT[:-1] + b"," + b",".join([EVENT[1:-1]] * 3_000) + b"]"
    path = tmp_path / "rank0.json"
    path.write_bytes(events)
    (trace,) = reading.read_ranks(path)
    assert (len(trace), trace.header.text_bytes) == (3_001, len(events))
