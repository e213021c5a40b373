"""Files in a run directory: written atomically, appended in whole lines, resumed, closed within a deadline.

Readers never see half a file or half a line, also after a kill or on a full disk. A disk that does not respond delays
the end of a run by seconds at most.

A run that is resumed goes on from rank 0's step file, as a kill leaves the ranks' files some steps apart. Ranks that
share a store get the answer from rank 0. Others read rank 0's file and ignore what is newer than their own process:
rank 0 may have begun already.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from io import FileIO
from pathlib import Path
from typing import Any

from stepscope.core.documents import run_directory as layout
from stepscope.training.run.identity import Identity, agree_with_rank_zero, job_store, process_start

logger = logging.getLogger(__name__)

_FOLDERS_OF_RANKS = (
    f"{layout.TRACES_FOLDER}/step*",
    f"{layout.LIGHT_FOLDER}/step*",
    layout.FLIGHT_FOLDER,
    f"{layout.FLIGHT_FOLDER}/{layout.LIVE_FOLDER}",
    layout.MEMORY_FOLDER,
    f"{layout.MEMORY_FOLDER}/step*",
    layout.RANKS_FOLDER,
)
_LEFTOVER = re.compile(r"\..+?\.(\d+)(?:\.plain|\.probe)?\.part")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """In the training process: write a file of the run atomically, through a temporary path.

    It is renamed when the block ends well and removed when it does not.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = partial_path(path)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def partial_path(path: Path, kind: str = "") -> Path:
    """Where this process prepares a file of a run: hidden, and with an ending that no reader takes for a trace."""
    return path.with_name(f".{path.name}.{os.getpid()}{kind}.part")


def remove_leftovers(run_directory: Path, rank: int) -> None:
    """Remove files of a run that an earlier process of this rank left half written when it was killed.

    Only this rank's own files are looked at: a process of another rank may run on another host, where its number
    says nothing here.
    """
    own = [f"{folder}/.rank{rank}[.-]*.part" for folder in _FOLDERS_OF_RANKS]
    own += [f".{layout.RUN_FILE}.*.part"] if rank == 0 else []
    for path in (path for pattern in own for path in run_directory.glob(pattern)):
        match = _LEFTOVER.fullmatch(path.name)
        if match and not _is_alive(int(match.group(1))):
            with suppress(OSError):
                path.unlink()


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is there, but another user's
        return True
    return True


def write_manifest(run_directory: Path, manifest: layout.RunManifest) -> None:
    """In the training process: write run.json, the manifest of the run.

    Raises:
        OSError: the directory cannot be written.
    """
    with atomic_write(run_directory / layout.RUN_FILE) as temporary:
        temporary.write_text(json.dumps(asdict(manifest), indent=1) + "\n", encoding="utf-8")


def read_attempts(run_directory: Path) -> list[layout.Attempt]:
    """The attempts that an earlier start of the same run left in run.json; empty when unreadable."""
    try:
        document: Any = json.loads((run_directory / layout.RUN_FILE).read_text(encoding="utf-8"))
        names = {field.name for field in fields(layout.Attempt)}
        return [
            layout.Attempt(**{name: entry[name] for name in names & entry.keys()}) for entry in document["attempts"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


_LONGEST_LINE_BYTES = 1 << 16


class RunFileInUseError(OSError):
    """Another process, which is alive, appends to the file of the run."""


class WholeLinesFile:
    """A file of a run that lines are appended to. What cannot be written whole is taken back to the last whole line.

    A half line that an earlier process left at the end is removed, so that the next line does not continue it.
    The file is this process's alone until it is closed or the process ends, where the file system can say so.

    Attributes:
        last_before: the last whole lines that the file had, without newlines: 64 KiB of them at most.

    Raises:
        RunFileInUseError: when it is made, while another process has the file.
        OSError: from every method, when the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: FileIO = path.open("a+b", buffering=0)
        try:
            self._take(path)
            self.last_before = self._remove_half_line()
        except BaseException:
            self._file.close()
            raise

    def write(self, lines: bytes) -> None:
        """Append whole lines, each with its newline. They reach the kernel before this returns."""
        before = os.fstat(self._file.fileno()).st_size
        num_written = 0
        try:
            while num_written < len(lines):  # a nearly full disk writes a part without an error
                num_written += self._file.write(lines[num_written:]) or 0
        except OSError:
            with suppress(OSError):  # the error of writing is more useful
                self._file.truncate(before + lines.rfind(b"\n", 0, num_written) + 1)
            raise

    def close(self) -> None:
        """Close the file; twice is harmless."""
        self._file.close()

    def __del__(self) -> None:
        """Closed without a warning when the run that it belongs to is forgotten."""
        if hasattr(self, "_file"):
            self._file.close()

    def _take(self, path: Path) -> None:
        """By a lock of the process's own: one shared with forked loaders' workers would outlive it."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise RunFileInUseError(error.errno, "another process writes it", str(path)) from error

    def _remove_half_line(self) -> list[bytes]:
        size = os.fstat(self._file.fileno()).st_size
        tail = os.pread(self._file.fileno(), _LONGEST_LINE_BYTES, max(size - _LONGEST_LINE_BYTES, 0))
        if tail and not tail.endswith(b"\n"):
            self._file.truncate(size - len(tail) + tail.rfind(b"\n") + 1)
        return tail.split(b"\n")[:-1]


_AGAIN_SECONDS = 0.5

_late: list[threading.Thread] = []
"""What has not come back yet; while anything has not, nothing else is waited for at length."""


def run_within(seconds: float, work: Callable[[], None], what: str) -> None:
    """Do the last writes of a run on another thread within a deadline; they go on behind, and nothing waits for them.

    Args:
        what: is written, for the error.

    Raises:
        TimeoutError: it is not over.
        Exception: what it raised.
    """
    failed: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="stepscope-last-writes", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python is about to end and starts no thread any more
        work()
        return
    _late[:] = [each for each in _late if each.is_alive()]
    thread.join(min(seconds, _AGAIN_SECONDS) if _late else seconds)
    if thread.is_alive():
        _late.append(thread)
        raise TimeoutError(f"the disk does not answer; not written: {what}")
    if failed:
        raise failed[0]


_TAIL_BYTES = 1 << 16
_END_OF_TIME_NS = 1 << 63


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where an attempt resumes its run: attempts are counted from 1, steps from 0."""

    attempt: int = 1
    first_step: int = 0


def resume_point(
    run_directory: Path, identity: Identity, first_step: int | None, *, own_lines: Iterable[bytes], turn: int
) -> ResumePoint:
    """Number and first step of this attempt, by which it resumes the run.

    Args:
        own_lines: the last of this rank's file; opened once more, the file would be locked no longer.
        first_step: given by the caller, as by one that has loaded a checkpoint; None numbers on.
        turn: how often this process has asked before; ranks ask equally often.
    """
    if identity.rank == 0:
        found = _resume_point_after(run_directory, own_lines, _END_OF_TIME_NS)
    else:
        found = _resume_point_after(
            run_directory, _last_lines(run_directory / layout.RankFile.STEPS.path(0)), _process_start_ns()
        )
        if found == ResumePoint():  # nothing, or what this very process has written in a profile before
            found = _resume_point_after(run_directory, own_lines, _END_OF_TIME_NS)
    found = found if first_step is None else ResumePoint(found.attempt, first_step)
    store = job_store() if identity.world_size > 1 else None
    if store is None or (found == ResumePoint() and identity.rank != 0):
        return found
    try:
        key, own = f"stepscope/continuation/{run_directory.name}/{turn}", f"{found.attempt} {found.first_step}"
        attempt, number = agree_with_rank_zero(store, key, own, identity).split()
        return ResumePoint(int(attempt), int(number))
    except (RuntimeError, ValueError) as error:  # torch's store errors are RuntimeErrors
        logger.warning("rank 0 has not sent the number of the first step; call profile() on all ranks: %s", error)
        return found


def _resume_point_after(run_directory: Path, lines: Iterable[bytes], before_ns: int) -> ResumePoint:
    """After what was there before a time, ns since the epoch."""
    attempt = 1 + sum(attempt.start_ns < before_ns for attempt in read_attempts(run_directory))
    for line in reversed(list(lines)):
        try:
            step = json.loads(line)
            if step["end_ns"] < before_ns:
                return ResumePoint(max(attempt, int(step.get("attempt", 1)) + 1), max(int(step["index"]) + 1, 0))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue  # no step
    return ResumePoint(attempt, 0)


def _last_lines(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - _TAIL_BYTES, 0))
            return file.read().split(b"\n")
    except OSError:
        return []


def _process_start_ns() -> int:
    """When this process began, ns since the epoch."""
    ticks = process_start(os.getpid())
    if ticks is None:
        return 0
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - int(age_seconds * 1e9)
