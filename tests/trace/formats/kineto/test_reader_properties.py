"""Reader equals the oracle on any events in any layout, and stays safe on any bytes."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepscope.core.errors import StepscopeError
from stepscope.trace.columns import TraceColumns
from stepscope.trace.formats.kineto.reader import read_kineto
from tests.trace.formats.kineto.both_ways import read_both_ways
from tests.trace.one_rank import read_trace_stream

_NAMES = st.text(max_size=12) | st.sampled_from(['a"},{"ph":"X"', "}]", "\\", "[]}"])
_CATEGORIES = st.sampled_from(
    ["cpu_op", "kernel", "cuda_runtime", "gpu_memcpy", "gpu_memset", "cuda_sync", "overhead", "Operator", "new_kind"]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_MICROSECONDS = st.integers(1, 2**61).map(lambda ns: f"{ns // 1000}.{ns % 1000:03}")
_COUNTS = st.integers(-1, 2**63 - 1)


@st.composite
def _arguments(draw: st.DrawFn) -> dict[str, Any]:
    known = {
        "External id": _COUNTS,
        "correlation": _COUNTS,
        "bytes": st.integers(0, 2**40),
        "grid": st.lists(st.integers(1, 2**20), min_size=3, max_size=3),
        "block": st.lists(st.integers(1, 1024), min_size=3, max_size=3),
        "registers per thread": st.integers(0, 255),
        "shared memory": st.integers(0, 2**18),
        "Input Dims": st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2),
        "Collective name": st.sampled_from(["allreduce", "send"]),
        "Process Group Name": st.sampled_from(["0", "1"]),
        "In msg nelems": st.integers(0, 2**40),
        "dtype": st.sampled_from(["Float", "BFloat16"]),
        "Seq": st.integers(0, 2**31),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(known)), unique=True))
    other = draw(st.dictionaries(st.text(max_size=4).map("x".__add__), _JSON, max_size=2))
    return other | {name: draw(known[name]) for name in chosen}


@st.composite
def _events(draw: st.DrawFn) -> dict[str, Any]:
    event: dict[str, Any] = {
        "ph": draw(st.sampled_from("XXXXMsfi")),
        "cat": draw(_CATEGORIES),
        "name": draw(_NAMES),
        "pid": 4,
        "tid": draw(st.integers(-9, 9) | st.just(1000007) | st.just("stream 7")),
        "ts": _Number(draw(_MICROSECONDS | st.integers(1, 2**50).map(str))),
        "dur": _Number(draw(st.integers(0, 10**12).map(lambda ns: f"{ns // 1000}.{ns % 1000:03}"))),
    }
    if draw(st.booleans()):
        event["args"] = draw(_arguments())
    return dict(draw(st.permutations(list(event.items()))))


class _Number(float):
    """A number that json writes digit by digit as given."""

    def __new__(cls, digits: str) -> _Number:
        number = super().__new__(cls, digits)
        number.digits = digits
        return number

    digits: str

    def __repr__(self) -> str:
        return self.digits


@st.composite
def _layouts(draw: st.DrawFn, events: list[dict[str, Any]]) -> str:
    base = draw(st.none() | st.integers(0, 2**60))
    document: Any = {"traceEvents": events, "schemaVersion": 1, "deviceProperties": [{"id": 0}, {"id": 1}]}
    if base is not None:
        document["baseTimeNanoseconds"] = base
    document = dict(draw(st.permutations(list(document.items()))))
    if base is None and draw(st.booleans()):
        document = events
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n ", "\t:  ")]))
    ensure_ascii = draw(st.booleans())
    return _dump(
        document, indent=draw(st.sampled_from([None, 0, 1, 4])), separators=separators, ascii_only=ensure_ascii
    )


def _dump(document: Any, *, indent: int | None, separators: tuple[str, str], ascii_only: bool) -> str:
    numbers: list[str] = []

    def put_aside(value: Any) -> Any:
        if isinstance(value, _Number):
            numbers.append(value.digits)
            return f"@number{len(numbers) - 1}@"
        if isinstance(value, dict):
            return {key: put_aside(inner) for key, inner in value.items()}
        return [put_aside(inner) for inner in value] if isinstance(value, list) else value

    text = json.dumps(put_aside(document), indent=indent, separators=separators, ensure_ascii=ascii_only)
    for place, digits in enumerate(numbers):
        text = text.replace(f'"@number{place}@"', digits)
    return text


def _read(content: bytes, block_bytes: int) -> TraceColumns:
    return read_both_ways(
        lambda: read_trace_stream(io.BytesIO(content), path="t.json", file_bytes=len(content), block_bytes=block_bytes)
    )


@given(data=st.data(), block_bytes=st.sampled_from([1, 17, 200, 3000, 1 << 20]), packed=st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_events_in_any_layout_equal_the_oracle(
    data: st.DataObject, block_bytes: int, packed: bool, rows: Any
) -> None:
    events = data.draw(st.lists(_events(), min_size=1, max_size=12))
    text = data.draw(_layouts(events))
    expected = rows.expected(text)
    content = text.encode("utf-8", errors="surrogatepass")
    try:
        trace = _read(gzip.compress(content) if packed else content, block_bytes)
    except StepscopeError:
        assert all(event["cat"] == "new_kind" for event in events if event["ph"] == "X")
        return
    assert rows.actual(trace) == expected
    quality = trace.quality
    assert (quality.num_events, quality.dropped, quality.truncated) == (len(events), 0, False)


_SEED = json.dumps(
    {
        "schemaVersion": 1,
        "distributedInfo": {"rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]},
        "traceEvents": [
            {
                "ph": "X",
                "cat": ["cpu_op", "kernel", "cuda_runtime"][i % 3],
                "name": f"n{i}",
                "pid": 1,
                "tid": i % 2,
                "ts": 1000.5 + i,
                "dur": 0.25,
                "args": {"External id": i, "Input Dims": [[i], []], "Collective name": "allreduce", "grid": [1, 2, 3]},
            }
            for i in range(12)
        ],
        "baseTimeNanoseconds": 1751410836000000000,
    },
    indent=2,
).encode()

_PATCHES = st.lists(
    st.tuples(
        st.integers(0, len(_SEED)),
        st.integers(0, 40),
        st.binary(max_size=6) | st.sampled_from([b'"', b"}", b",", b"\\", b"{"]),
    ),
    min_size=1,
    max_size=6,
)


@given(patches=_PATCHES, block_bytes=st.sampled_from([50, 700, 1 << 20]))
@example(patches=[(300, 16, b"")], block_bytes=50)
@settings(max_examples=150, deadline=None)
def test_mutated_trace_is_read_or_refused_and_all_events_are_accounted_for(
    patches: list[tuple[int, int, bytes]], block_bytes: int
) -> None:
    content = bytearray(_SEED)
    for position, length, replacement in patches:
        content[position : position + length] = replacement

    def read() -> TraceColumns:
        """The first rank: a damaged process id may make two of one."""
        stream = io.BytesIO(content)
        return read_kineto(stream, path="t.json", file_bytes=len(content), block_bytes=block_bytes)[0]

    try:
        trace = read_both_ways(read)
    except StepscopeError:
        return
    quality = trace.quality
    assert len(trace) + quality.dropped <= quality.num_events
    assert quality.repaired <= len(trace)
    assert (trace.end_ns >= trace.start_ns).all()


@given(
    content=st.binary(max_size=300) | st.binary(max_size=60).map(b'{"traceEvents": [{'.__add__), packed=st.booleans()
)
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_refused_calmly(content: bytes, packed: bool) -> None:
    try:
        _read(gzip.compress(content) if packed else content, 64)
    except StepscopeError:
        return


@given(cut=st.integers(0, 400), flip=st.integers(0, 400), value=st.integers(0, 255))
@settings(max_examples=60, deadline=None)
def test_damaged_gzip_is_read_or_refused(cut: int, flip: int, value: int) -> None:
    packed = bytearray(gzip.compress(_SEED))
    packed[flip % len(packed)] = value
    try:
        _read(bytes(packed[: len(packed) - cut % len(packed)]), 128)
    except StepscopeError:
        return
