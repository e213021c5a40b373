"""How does a process's trace become a file of a run? Read once, verified and compressed on the way, whole or not.

The agent's folder belongs to the agent: users own their files in it, but no folder, so that nobody can put a link where
a later trace goes.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stepscope.collectors.kineto_daemon.proc import process_times
from stepscope.collectors.kineto_daemon.registry import Peer
from stepscope.collectors.kineto_daemon.verification import TraceReader, TraceSummary
from stepscope.core.run_layout import TRACES_FOLDER, trace_path

_BLOCK_BYTES = 1 << 18
_GZIP = 31
_LEVEL = 1
_FOLDER_MODE, _FILE_MODE = 0o755, 0o640
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_MORE_ROOM = "free some space there, or set kineto.directory"
_CAPTURE_FOLDER = re.compile(r"step(\d{1,9})")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]")


class TooLargeError(Exception):
    """The compressed trace is larger than was allowed."""


@dataclass(frozen=True, slots=True)
class Partial:
    """A compressed trace that has no rank's name yet.

    Attributes:
        path: of the file.
        num_bytes: of it.
        summary: of the trace.
    """

    path: Path
    num_bytes: int
    summary: TraceSummary


def run_name(job_id: int | None, run_id: str | None, leader: int, proc: Path = Path("/proc")) -> str:
    """What a job is called: alike for all its ranks on this node, unlike any other job's here.

    Args:
        job_id: Slurm's, None without.
        run_id: of torchrun's rendezvous, None without.
        leader: the process that started its ranks, or its only one.
        proc: where to look.
    """
    if job_id is not None:
        return f"slurm-{job_id}"
    if run_id is not None:
        return f"torchrun-{_NOT_PLAIN.sub('_', run_id)[:64]}"
    times = process_times(leader, proc)
    return f"pid-{leader}-{times.start_ticks if times else 0}"  # process ids come again


def next_capture(run: Path) -> int:
    """Make the folder of a run's next capture; k of `step<k>` counts captures, as no process tells the step.

    Raises:
        OSError: it cannot be made.
    """
    traces = run / TRACES_FOLDER
    with _placed(traces):
        traces.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        while True:
            matches = (_CAPTURE_FOLDER.match(folder.name) for folder in traces.iterdir())
            number = max((int(match[1]) + 1 for match in matches if match), default=0)
            try:
                (run / trace_path(number, 0)).parent.mkdir(mode=_FOLDER_MODE)
            except FileExistsError:  # another capture of the same run
                continue
            return number


def compress(source: int, partial: Path, owner: Peer, *, max_bytes: int | None) -> Partial:
    """Read a trace to its end, write it compressed.

    Args:
        source: descriptor of the trace.
        partial: the file to make.
        owner: the process that wrote it; its user gets the file.
        max_bytes: of the compressed trace; None without a limit.

    Raises:
        TooLargeError: it would pass the limit.
        OSError: it cannot be read or written.
    """
    reader, packer, size = TraceReader(), zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP), 0
    try:
        with _placed(partial), partial.open("xb") as file:
            os.fchmod(file.fileno(), _FILE_MODE)
            with suppress(PermissionError):  # without CAP_CHOWN it stays the agent's
                os.fchown(file.fileno(), owner.uid, owner.gid)
            is_more = True
            while is_more:
                with _placed("the process's trace"):
                    block = os.read(source, _BLOCK_BYTES)
                is_more = bool(block)
                reader.feed(block)
                size += file.write(packer.compress(block) if is_more else packer.flush())
                if max_bytes is not None and size > max_bytes:
                    raise TooLargeError(f"the compressed trace is larger than {max_bytes} bytes")
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return Partial(partial, size, reader.summary())


def keep(partial: Partial, run: Path, capture: int, rank: int) -> Path:
    """Give a compressed trace its name in the run.

    Raises:
        OSError: it cannot be renamed.
    """
    path = run / trace_path(capture, rank)
    with _placed(path):
        partial.path.replace(path)
    return path


@contextmanager
def _placed(where: Path | str) -> Iterator[None]:
    """Errors say where, as those of `write` and `fsync` do not, and what helps on a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(where)
        if error.errno in _FULL:
            error.strerror = f"{error.strerror}; {_MORE_ROOM}"
        raise
