"""Hang check of a running job, as a process of its own.

The agent starts it, so that the daemon does not load the code that reads dumps. It needs only the standard library.

    python -m stepscope.workflow.live_hang RUN_DIRECTORY [UID]     prints one `stepscope.live-hang/1` document
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from stepscope.analyzer.hang import explain_hang
from stepscope.analyzer.hang.live import device_waits, fresh_states, live_hang
from stepscope.collectors.flight_recorder import read_flight_dump
from stepscope.core.documents.hang import FlightDump, HangReport, LiveHang, RankState
from stepscope.core.documents.run_directory import FLIGHT_FOLDER, LIVE_FOLDER, RUN_FILE, STEPS_FOLDER, RankFile
from stepscope.core.errors import DataError
from stepscope.core.protocol.fields import _read_rank, read_object

_STATE = re.compile(r"rank(\d{1,7})\.state")
_STEPS = re.compile(r"rank(\d{1,7})\.jsonl")
_NOBODY = 65534
_MAX_STATE_BYTES = 64 << 10
_MAX_MANIFEST_BYTES = 8 << 20
_MAX_RECORD_BYTES = 64 << 20
MAX_STATE_AGE_SECONDS = 120.0
"""Age of the newest state from which the states are leftovers of a job that has ended."""


def read_live_hang(run_directory: Path, *, owner: int | None = None, now_ns: int | None = None) -> LiveHang:
    """Hang state of a running job from flight/live of its run directory. Symbolic links are not followed.

    Args:
        owner: user ID whose files count, beside those of nobody (a user's files on a root-squashing file server); None:
            all files count.
        now_ns: ns since the epoch; by default the current time.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    files = _OwnedFiles(None if owner is None else frozenset({owner, _NOBODY}))
    states = list(_states(run_directory / FLIGHT_FOLDER / LIVE_FOLDER, files))
    states = [state for state in fresh_states(states) if now_ns - state.seen_ns < MAX_STATE_AGE_SECONDS * 1e9]
    world_size = _world_size(run_directory, files)
    here = _ranks_here(run_directory)
    expected = {rank for rank in here if rank < world_size} if world_size else here
    return live_hang(states, _report(run_directory, states, world_size, files), expected=expected)


def read_rank_states(folder: Path) -> list[RankState]:
    """States that ranks of a long step left in this folder, whoever owns them; none where there are no such files."""
    return list(_states(folder, _OwnedFiles(None)))


def main(arguments: Sequence[str]) -> int:
    """Workflow: print the hang state of a running job, as a process of its own; returns the exit code.

    Arguments are the run directory, a user ID whose files count, and a process ID through whose /proc/PID/root the
    directory is found. The last two may be empty or left out.
    """
    place, owner, pid = (*arguments, "", "")[:3]
    there = Path(f"/proc/{pid}/root{place}")
    run = there if pid and there.is_dir() else Path(place)
    sys.stdout.write(json.dumps(asdict(read_live_hang(run, owner=int(owner) if owner else None))) + "\n")
    return 0


@dataclass(frozen=True, slots=True)
class _OwnedFiles:
    """Regular files of some users; None: of all users."""

    owners: frozenset[int] | None

    def read(self, path: Path, max_bytes: int) -> bytes:
        """Content of one file.

        Raises:
            OSError: it is a link, not a regular file, owned by another user, or larger than `max_bytes`.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            is_regular = stat.S_ISREG(status.st_mode) and status.st_size <= max_bytes
            if not is_regular or (self.owners is not None and status.st_uid not in self.owners):
                raise OSError(f"{path} is not a regular file of the run's user of at most {max_bytes} bytes")
            return file.read(max_bytes)


def _world_size(run_directory: Path, files: _OwnedFiles) -> int:
    with suppress(OSError, ValueError, RecursionError, TypeError, KeyError):
        world_size = json.loads(files.read(run_directory / RUN_FILE, _MAX_MANIFEST_BYTES))["world_size"]
        return int(_read_rank(world_size))
    return 0


def _states(folder: Path, files: _OwnedFiles) -> Iterator[RankState]:
    for rank, path in _named(folder, _STATE):
        with suppress(OSError, ValueError, RecursionError):
            state = read_object(RankState, json.loads(files.read(path, _MAX_STATE_BYTES)))
            if state.rank == rank:
                yield state


def _report(run_directory: Path, states: Sequence[RankState], world_size: int, files: _OwnedFiles) -> HangReport | None:
    """Hang report from the flight recorders of these ranks; None without recorded operations."""
    dumps: list[FlightDump] = []
    for state in states:
        path = run_directory / RankFile.LIVE_RECORD.path(state.rank)
        with suppress(OSError, DataError):
            dumps.append(read_flight_dump(files.read(path, _MAX_RECORD_BYTES), rank=state.rank, where=path.name))
    if not any(dump.operations for dump in dumps):
        return None
    return explain_hang(dumps, world_size=world_size, device_waits=device_waits(states))


def _ranks_here(run_directory: Path) -> set[int]:
    """Ranks that write to this directory: each has a file of steps from its start."""
    return {rank for rank, _ in _named(run_directory / STEPS_FOLDER, _STEPS)}


def _named(folder: Path, name: re.Pattern[str]) -> Iterator[tuple[int, Path]]:
    with suppress(OSError):
        for path in folder.iterdir():
            if match := name.fullmatch(path.name):
                yield int(match[1]), path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
