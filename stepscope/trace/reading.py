"""Entry to the trace formats: recognises the format of a file and hands it to that format's reader.

To add a format, write its reader as a module of `trace/formats/` and add a row to `FORMATS`. Events of single ranks
are read into `TraceColumns`, one a rank; operations of a whole job into an `OperationTable`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from stepscope.core.errors import from_os_error
from stepscope.trace.columns import TraceColumns
from stepscope.trace.formats.kineto.reader import read_kineto
from stepscope.trace.formats.nsight import MAGIC as NSIGHT_MAGIC
from stepscope.trace.formats.nsight import read_nsight
from stepscope.trace.formats.operation_table import read_operation_table
from stepscope.trace.inflating import Readable
from stepscope.trace.operations import OperationTable

_HEAD_BYTES = 64 * 1024


class RankReader(Protocol):
    """Reads a stream from which `head` has been taken; `path` and `file_bytes` are for messages and the header."""

    def __call__(self, stream: Readable, *, path: str, file_bytes: int, head: bytes) -> list[TraceColumns]: ...


class TraceFormat(NamedTuple):
    """One format of trace files, with one of the two readers.

    Attributes:
        file_names: what its files are called in a folder.
        magic: its first bytes; empty for the format that takes every file which no other recognises.
    """

    file_names: re.Pattern[str]
    magic: bytes
    read_ranks: RankReader | None = None
    read_operations: Callable[[Path], OperationTable] | None = None


FORMATS = (
    TraceFormat(re.compile(r"^trace-.*\.parquet$"), b"PAR1", read_operations=read_operation_table),
    TraceFormat(re.compile(r"\.sqlite$", re.IGNORECASE), NSIGHT_MAGIC, read_ranks=read_nsight),
    TraceFormat(re.compile(r"\.json(\.gz)?$", re.IGNORECASE), b"", read_ranks=read_kineto),
)
"""The first that recognises a file reads it. Kineto is last: its reader also names files that are not traces."""


def has_rank_name(file_name: str) -> bool:
    """Trace reading: whether a file in a folder is called like a trace of ranks, in any format."""
    return any(known.read_ranks and known.file_names.search(file_name) for known in FORMATS)


def has_operations_name(file_name: str) -> bool:
    """Trace reading: whether a file in a folder is called like a table of a job's operations, in any format."""
    return any(known.read_operations and known.file_names.search(file_name) for known in FORMATS)


def read_ranks(path: str | os.PathLike[str]) -> list[TraceColumns]:
    """Trace: read a local file, as one trace, or one a rank where the file holds several ranks' events.

    Args:
        path: the file; its name may give the rank when the trace does not.

    Returns:
        At least one; of several each has another rank, assumed by order where the file does not give it.

    Raises:
        NotATraceError: the file is empty, or of no known format, or its ranks cannot be separated.
        TruncatedTraceError: it ends before its first event.
        DataError: it cannot be opened, or holds no complete event.
    """
    try:
        with Path(path).open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            return read_ranks_stream(stream, path=os.fspath(path), file_bytes=size)
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=os.fspath(path)) from error


def read_ranks_stream(stream: Readable, *, path: str, file_bytes: int) -> list[TraceColumns]:
    """Read from an open binary stream, for any source that can be read once from front to back.

    Args:
        stream: read to its end, not closed.
        path: its name in messages, which may give the rank.
        file_bytes: size of the source, for the header.

    Returns:
        As `read_ranks`.

    Raises:
        NotATraceError, TruncatedTraceError, DataError: as `read_ranks`.
    """
    head = stream.read(_HEAD_BYTES)
    readers = (known.read_ranks for known in FORMATS if known.read_ranks and head.startswith(known.magic))
    return next(readers)(stream, path=path, file_bytes=file_bytes, head=head)


def read_operations(path: Path) -> OperationTable:
    """Trace reading: a local table of a whole job's operations, in the format that recognises it.

    Raises:
        DataError: not such a table, or the packages that read it are missing.
    """
    return next(known.read_operations for known in FORMATS if known.read_operations)(path)
