"""Kineto reader: the columns of each rank from a stream of torch.profiler's JSON, in bounded memory.

Blocks of text are cut between two events (`splitting`) and decoded or scanned (`events`, `scanning`) into growing
columns (`building`); damaged blocks are repaired event by event (`repair`). The text before and behind the events is
the header; a file of several ranks is split at the end (`merged_ranks`).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from stepscope.core.errors import DataError, NotATraceError, TruncatedTraceError
from stepscope.core.text.numbers import counted, form
from stepscope.trace.columns import RankSource, ReadQuality, TraceColumns
from stepscope.trace.formats.foreign_files import ANALYZE, is_memory_timeline, kind_of_file, kind_of_object
from stepscope.trace.formats.foreign_traces import check_is_pytorchs
from stepscope.trace.formats.kineto.building import ColumnsBuilder
from stepscope.trace.formats.kineto.header import build_header, listed_ranks, parse_metadata
from stepscope.trace.formats.kineto.identity import with_identities
from stepscope.trace.formats.kineto.merged_ranks import split_ranks
from stepscope.trace.formats.kineto.repair import clip_overruns, is_rocm
from stepscope.trace.formats.kineto.splitting import (
    EVENTS_KEY,
    MAX_KEY_BYTES,
    EventSplitter,
    is_top_level,
    next_document,
)
from stepscope.trace.formats.kineto.text import TraceText
from stepscope.trace.inflating import Readable

_LOG = logging.getLogger(__name__)

_BLOCK_BYTES = 2 * 1024 * 1024
"""With half of it the Python decoder takes 3 % longer; the C scanner takes the same time."""
_BLANK = b" \t\r\n\x00"
_MAX_METADATA_BYTES = 64 * 1024 * 1024
_WHAT_NEXT = "give the JSON (or .json.gz) that torch.profiler exports"


def read_kineto(
    stream: Readable,
    *,
    path: str,
    file_bytes: int,
    head: bytes = b"",
    keep_python_functions: bool = False,
    block_bytes: int = _BLOCK_BYTES,
) -> list[TraceColumns]:
    """Read the JSON that torch.profiler exports, plain or gzip.

    Args:
        stream: read to its end, not closed.
        path: its name in messages, which may give the rank.
        file_bytes: size of the source, for the header.
        head: what has been taken from the stream already.
        keep_python_functions: keep the rows of all Python frames, also those of built-in functions and torch's files,
            often nine tenths of a trace with stacks.
        block_bytes: text decoded at a time; memory beyond the columns is a small multiple of it.

    Returns:
        One trace, or one a rank where the file holds several ranks' events.

    Raises:
        NotATraceError, TruncatedTraceError, DataError: as `stepscope.trace.reading.read_ranks`.
    """
    source = TraceText(stream, block_bytes=block_bytes, head=head, path=path)
    before, beginning = _find_events(source, path, source.read())
    traces: list[TraceColumns] = []
    rest: bytes | None = b""
    while rest is not None:
        try:
            found, rest = _read_document(
                source, before, beginning, path=path, file_bytes=file_bytes, keep_python_functions=keep_python_functions
            )
        except DataError as error:
            if not traces:
                raise
            _LOG.warning("document %d of the file is left out: %s", len(traces) + 1, error)
            break
        traces += found
        if rest is not None:
            before, beginning = _find_events(source, path, rest)
    return traces if len(traces) == 1 else _with_distinct_ranks(traces)


def _read_document(
    source: TraceText, before: bytes, beginning: bytes, *, path: str, file_bytes: int, keep_python_functions: bool
) -> tuple[list[TraceColumns], bytes | None]:
    """One document's ranks, and the text of the next document in the file, or None at the end."""
    builder = ColumnsBuilder(keep_python_functions=keep_python_functions)
    splitter = EventSplitter(source, beginning, builder.scanner(), watches_all=not before)
    for batch in splitter.batches():
        builder.add(batch)
        del batch  # its memory, still in the CPU cache, is reused for the next one
    after = _read_tail(source, splitter)
    next_start = next_document(after)
    after, rest = (after, None) if next_start is None else (after[:next_start], after[next_start:])
    metadata = parse_metadata(before, after)
    kinds = list(dict.fromkeys(kind for kind, _, _ in builder.tracks))
    if splitter.accelerator is None:
        check_is_pytorchs(kinds, beginning, path=path)
    if not builder.num_rows:
        has_its_end = splitter.array_closed or beginning.rstrip(_BLANK).endswith(b"]}")
        is_cut = source.truncated or (bool(before) and not has_its_end)
        raise _truncated_early(path) if is_cut else _no_usable_event(splitter, builder, path)
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
        damaged_at_byte=splitter.damaged_at_byte,
    )
    ranks = split_ranks(builder.build(header, quality), listed_ranks(metadata))
    ranks = with_identities(ranks, kinds, splitter.accelerator)
    return list(map(clip_overruns, ranks)) if is_rocm(header, metadata) else ranks, rest


def _with_distinct_ranks(traces: list[TraceColumns]) -> list[TraceColumns]:
    """The traces of several documents; their order gives the ranks where the documents lack distinct ones."""
    parts = [trace.header.part or f"document {place + 1}" for place, trace in enumerate(traces)]
    headers = [replace(trace.header, part=part) for trace, part in zip(traces, parts, strict=True)]
    ranks = [header.rank for header in headers]
    if None in ranks or len(set(ranks)) < len(ranks):
        headers = [replace(header, rank=rank, rank_source=RankSource.ORDER) for rank, header in enumerate(headers)]
    return [replace(trace, header=header) for trace, header in zip(traces, headers, strict=True)]


def _find_events(source: TraceText, path: str, text: bytes) -> tuple[bytes, bytes]:
    """The text before the key traceEvents (empty for a bare list), and the text read so far behind its bracket."""
    opening = text.lstrip(_BLANK)[:1]
    if not opening:
        if source.truncated and not source.broken:
            raise _truncated_early(path)
        what = "cannot be inflated" if source.truncated else "is empty"
        raise NotATraceError(what, where=path, what_next=_WHAT_NEXT)
    if opening == b"[":
        if is_memory_timeline(text.lstrip(_BLANK)):
            raise NotATraceError("is a memory timeline, not a profiler trace", where=path, what_next=_WHAT_NEXT)
        return b"", text.lstrip(_BLANK)[1:]
    searched = 0
    while True:
        matches = list(EVENTS_KEY.finditer(text, max(0, searched - MAX_KEY_BYTES)))
        if matches:
            match = next((match for match in matches if is_top_level(text[: match.start()])), matches[0])
            return text[: match.start()], text[match.end() :]
        searched = len(text)
        block = source.read() if opening == b"{" and searched < _MAX_METADATA_BYTES else b""
        if not block and source.truncated and opening == b"{" and kind_of_object(text) is None:
            raise _truncated_early(path)
        if not block:
            raise _other_file(text, opening, path)
        text += block


def _read_tail(source: TraceText, splitter: EventSplitter) -> bytes:
    """The text behind the event array, as far as the start of another document's events."""
    tail = splitter.tail
    searched = 0
    while splitter.array_closed and next_document(tail, searched) is None and (block := source.read()):
        if len(tail) < _MAX_METADATA_BYTES:
            searched = max(0, len(tail) - MAX_KEY_BYTES)
            tail += block
    return tail


def _events_in_holes(source: TraceText, splitter: EventSplitter) -> int:
    """Estimate of the events lost in holes of zeros, by the mean size of the others."""
    return round(source.hole_bytes * splitter.num_events / max(splitter.num_bytes, 1))


def _is_complete(before: bytes, after: bytes) -> bool:
    return not before or after.rstrip(_BLANK).endswith(b"}")


def _other_file(text: bytes, opening: bytes, path: str) -> NotATraceError:
    is_object = opening == b"{"
    kind = kind_of_object(text) if is_object else kind_of_file(text, path)
    if kind is not None:
        if kind.what_next == ANALYZE:  # read where it is not packed
            return NotATraceError(
                f"is {kind.what}, compressed", where=path, what_next="unpack it, and give what is in it"
            )
        what = f"is {kind.what}, not a profiler trace of PyTorch"
        return NotATraceError(what, where=path, what_next=kind.what_next.replace("FILE", path))
    what = "is not a profiler trace (it has no list traceEvents)" if is_object else "is not JSON"
    return NotATraceError(what, where=path, what_next=_WHAT_NEXT)


def _truncated_early(path: str) -> TruncatedTraceError:
    return TruncatedTraceError(
        "ends too early, before its first event", where=path, what_next="copy it whole or record it again"
    )


def _no_usable_event(splitter: EventSplitter, builder: ColumnsBuilder, path: str) -> DataError:
    lost = splitter.dropped + builder.dropped
    if splitter.num_events and lost == splitter.num_events:
        entries = form(lost, "its one entry is broken or no event", f"all {lost} entries are broken or no events")
        return NotATraceError(f"holds no readable event ({entries})", where=path, what_next=_WHAT_NEXT)
    what = f'holds no complete event ("ph": "X") among {counted(splitter.num_events, "entry")}'
    if builder.dropped:
        what = f"holds no usable event: of {builder.dropped} the time is missing or overflows"
    return DataError(what, where=path, what_next="check that the profiler recorded at least one step")
