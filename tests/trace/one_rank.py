"""Traces of one rank, read from a path or a stream."""

from __future__ import annotations

import os
from typing import Any, BinaryIO

from stepscope.trace.columns import TraceColumns
from stepscope.trace.formats.kineto.reader import read_kineto
from stepscope.trace.reading import read_ranks


def read_trace(path: str | os.PathLike[str]) -> TraceColumns:
    """The only trace in a file."""
    (trace,) = read_ranks(path)
    return trace


def read_trace_stream(stream: BinaryIO, **options: Any) -> TraceColumns:
    """The only trace in a stream; the options are those of `read_kineto`."""
    (trace,) = read_kineto(stream, **options)
    return trace
