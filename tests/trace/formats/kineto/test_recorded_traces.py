"""Reader agrees with the oracle on recorded traces of every age and vendor."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.errors import NotATraceError
from tests.trace.formats.kineto.both_ways import read_both_ways
from tests.trace.one_rank import read_trace

pytestmark = pytest.mark.shared

_SHARED = Path(__file__).resolve().parents[4].parent / "shared" / "traces"
_OTHER_JSON = re.compile(r"(?:^|_)(?:et|fr)_|_et[._]|truth")
_FURTHER_RANKS = re.compile(r"h100x2/.*rank1|cpu3d/.*rank[1-9]|worker[2-9]")
"""Same job, same layout: they cost time and tell nothing new."""


def _recorded(*, traces: bool) -> list[Path]:
    found = sorted(path for folder in ("h100x2", "public") for path in (_SHARED / folder).rglob("*.json*"))
    return [
        path
        for path in found
        if bool(_OTHER_JSON.search(path.name)) != traces and not _FURTHER_RANKS.search(path.as_posix())
    ]


def _text(path: Path) -> str:
    content = path.read_bytes()
    return (gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content).decode()


@pytest.mark.parametrize("path", _recorded(traces=True), ids=lambda path: path.name)
def test_columns_equal_the_oracle(path: Path, rows: Any) -> None:
    expected = rows.expected(_text(path))
    if not expected:
        pytest.skip("holds no complete event")
    trace = read_both_ways(lambda: read_trace(path))
    actual = rows.actual(trace)
    assert len(actual) == len(expected)
    assert next(((i, a, e) for i, (a, e) in enumerate(zip(actual, expected, strict=True)) if a != e), None) is None
    assert (trace.quality.repaired, trace.quality.dropped, trace.quality.truncated) == (0, 0, False)


@pytest.mark.parametrize("path", _recorded(traces=False), ids=lambda path: path.name)
def test_other_json_is_refused_by_name(path: Path) -> None:
    with pytest.raises(NotATraceError, match=path.name):
        read_trace(path)
