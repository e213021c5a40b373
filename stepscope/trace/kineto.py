"""How is a Kineto trace read? As a stream, in bounded memory, whatever its age, layout or damage."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import BinaryIO

from stepscope.core.errors import DataError, NotATraceError
from stepscope.trace.building import ColumnsBuilder
from stepscope.trace.clipping import is_rocm
from stepscope.trace.columns import ReadQuality, TraceColumns
from stepscope.trace.header import build_header, parse_metadata
from stepscope.trace.splitting import EventSplitter
from stepscope.trace.text import TraceText

_BLOCK_BYTES = 512 * 1024
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_LONGEST_KEY_BYTES = 4096
_BLANK = b" \t\r\n\x00"
_MOST_METADATA_BYTES = 64 * 1024 * 1024
_OTHER_KINDS = {
    b"nodes": "a PyTorch execution trace",
    b"pg_status": "a flight-recorder dump",
    b"entries": "a flight-recorder dump",
    b"device_traces": "a memory snapshot",
}
_WHAT_NEXT = "give the JSON (or .json.gz) that torch.profiler exports"


def read_trace(path: str | os.PathLike[str], *, keep_python_functions: bool = False) -> TraceColumns:
    """Read one rank's trace from a local file, gzip or plain.

    Args:
        path: the file; its name may tell the rank when the trace does not.
        keep_python_functions: also keep the rows of Python frames that are no modules, often nine tenths of a trace
            with stacks.

    Raises:
        NotATraceError: the file is empty, no JSON, or JSON of another kind.
        DataError: it cannot be opened, or holds no complete event.
    """
    try:
        with Path(path).open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            return read_trace_stream(
                stream, path=os.fspath(path), file_bytes=size, keep_python_functions=keep_python_functions
            )
    except OSError as error:
        why = error.strerror or str(error)
        raise DataError(f"cannot be read ({why})", where=os.fspath(path), what_next="check the path") from error


def read_trace_stream(
    stream: BinaryIO,
    *,
    path: str,
    file_bytes: int,
    keep_python_functions: bool = False,
    block_bytes: int = _BLOCK_BYTES,
) -> TraceColumns:
    """Read one rank's trace from an open binary stream, for any source that can be read once from front to back.

    Args:
        stream: gzip or plain text; read to its end, not closed.
        path: what to call it in messages, and where to look for a rank in its name.
        file_bytes: size of the source, for the header.
        keep_python_functions: as in `read_trace`.
        block_bytes: text decoded at a time; memory beyond the columns is a small multiple of it.

    Raises:
        NotATraceError, DataError: as `read_trace`.
    """
    source = TraceText(stream, block_bytes=block_bytes)
    before, beginning = _find_events(source, path)
    splitter = EventSplitter(source, beginning)
    builder = ColumnsBuilder(keep_python_functions=keep_python_functions)
    for batch in splitter.batches():
        builder.add(batch)
    after = _read_tail(source, splitter)
    metadata = parse_metadata(before, after)
    if not builder.num_rows:
        raise _nothing_complete(splitter, builder, path)
    header = build_header(
        metadata,
        path=path,
        file_bytes=file_bytes,
        text_bytes=source.num_bytes,
        saw_shapes=len(builder.shapes) > 1,
        saw_stacks=builder.saw_stacks,
    )
    num_in_holes = _events_in_holes(source, splitter)
    quality = ReadQuality(
        num_events=splitter.num_events + num_in_holes,
        repaired=splitter.repaired,
        dropped=splitter.dropped + builder.dropped + num_in_holes,
        clipped=0,
        truncated=source.truncated or not splitter.array_closed or not _is_complete(before, after),
    )
    return builder.build(header, quality, may_clip=is_rocm(header, metadata))


def _find_events(source: TraceText, path: str) -> tuple[bytes, bytes]:
    """The text before the key traceEvents (empty for a bare list), and what is read so far behind its bracket."""
    text = source.read()
    opening = text.lstrip(_BLANK)[:1]
    if not opening:
        what = "cannot be inflated" if source.truncated else "is empty"
        raise NotATraceError(what, where=path, what_next=_WHAT_NEXT)
    if opening == b"[":
        return b"", text.lstrip(_BLANK)[1:]
    searched = 0
    while True:
        matches = list(_EVENTS_KEY.finditer(text, max(0, searched - _LONGEST_KEY_BYTES)))
        if matches:
            match = next((match for match in matches if _is_top_level(text[: match.start()])), matches[0])
            return text[: match.start()], text[match.end() :]
        searched = len(text)
        block = source.read() if opening == b"{" and searched < _MOST_METADATA_BYTES else b""
        if not block:
            raise NotATraceError(_what_it_is(text, opening), where=path, what_next=_WHAT_NEXT)
        text += block


def _is_top_level(before: bytes) -> bool:
    try:
        return isinstance(json.loads(before.rstrip().rstrip(b",") + b"}", strict=False), dict)
    except (ValueError, RecursionError):
        return False


def _what_it_is(text: bytes, opening: bytes) -> str:
    if opening != b"{":
        return "is not JSON"
    for key, kind in _OTHER_KINDS.items():
        if re.search(rb'"%s"\s*:' % key, text[:_BLOCK_BYTES]):
            return f"is {kind}, not a profiler trace"
    return "is no profiler trace (it has no list traceEvents)"


def _read_tail(source: TraceText, splitter: EventSplitter) -> bytes:
    tail = splitter.tail
    while splitter.array_closed and (block := source.read()):
        if len(tail) < _MOST_METADATA_BYTES:
            tail += block
    return tail


def _events_in_holes(source: TraceText, splitter: EventSplitter) -> int:
    """How many events the holes have swallowed whole, by the mean size of those that are left."""
    return round(source.hole_bytes * splitter.num_events / max(splitter.num_bytes, 1))


def _is_complete(before: bytes, after: bytes) -> bool:
    return not before or after.rstrip(_BLANK).endswith(b"}")


def _nothing_complete(splitter: EventSplitter, builder: ColumnsBuilder, path: str) -> DataError:
    lost = splitter.dropped + builder.dropped
    if splitter.num_events and lost == splitter.num_events:
        return NotATraceError(
            f"holds no readable event (all {lost} entries are broken or no events)", where=path, what_next=_WHAT_NEXT
        )
    what = f'holds no complete event ("ph": "X") among {splitter.num_events} entries'
    if builder.dropped:
        what = f"holds no usable event: {builder.dropped} are without time, or their times overflow"
    return DataError(what, where=path, what_next="check that the profiler recorded at least one step")
