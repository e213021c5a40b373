"""Hang check of a job that still runs, as a process of its own.

The agent starts it, so that the daemon loads nothing that reads dumps. It needs the standard library alone, as training
processes do.

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
from stepscope.analyzer.hang.live import fresh_states, live_hang
from stepscope.collectors.flight_recorder import read_dump
from stepscope.core.documents.hang import FlightDump, HangReport, LiveHang, RankState
from stepscope.core.documents.run_directory import FLIGHT_FOLDER, LIVE_FOLDER, RUN_FILE, STEPS_FOLDER, live_record_path
from stepscope.core.errors import DataError
from stepscope.core.protocol.fields import any_rank, read_object

_STATE = re.compile(r"rank(\d{1,7})\.state")
_STEPS = re.compile(r"rank(\d{1,7})\.jsonl")
_NOBODY = 65534
_LARGEST_STATE = 64 << 10
_LARGEST_MANIFEST = 8 << 20
_LARGEST_RECORD = 64 << 20
_LONG_AGO_SECONDS = 120.0
"""States of which the newest is older were left by a job that is gone."""


def read_live_hang(run_directory: Path, *, owner: int | None = None, now_ns: int | None = None) -> LiveHang:
    """The answer from flight/live of a run directory. A file that is a link counts as none.

    Args:
        owner: user whose files count, and those of nobody, whose a user's may be on a server of files; None: all do.
        now_ns: ns since the epoch; the clock's where none is given.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    files = _Files(None if owner is None else frozenset({owner, _NOBODY}))
    states = list(_states(run_directory / FLIGHT_FOLDER / LIVE_FOLDER, files))
    states = [state for state in fresh_states(states) if now_ns - state.seen_ns < _LONG_AGO_SECONDS * 1e9]
    world_size = _world_size(run_directory, files)
    here = _ranks_here(run_directory)
    expected = {rank for rank in here if rank < world_size} if world_size else here
    return live_hang(states, _report(run_directory, states, world_size, files), expected=expected)


def main(arguments: Sequence[str]) -> int:
    """Print the answer; the exit code.

    Args:
        arguments: the run's directory; the user whose files count, and a process by whose view of the file system it is
            looked for; of these two each may be empty or left out.
    """
    place, owner, pid = (*arguments, "", "")[:3]
    there = Path(f"/proc/{pid}/root{place}")
    run = there if pid and there.is_dir() else Path(place)
    sys.stdout.write(json.dumps(asdict(read_live_hang(run, owner=int(owner) if owner else None))) + "\n")
    return 0


@dataclass(frozen=True, slots=True)
class _Files:
    """Plain files of some users; None: of all."""

    owners: frozenset[int] | None

    def content(self, path: Path, most: int) -> bytes:
        """One file's.

        Raises:
            OSError: it is a link, no file, another user's, or larger than `most`.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            is_plain = stat.S_ISREG(status.st_mode) and status.st_size <= most
            if not is_plain or (self.owners is not None and status.st_uid not in self.owners):
                raise OSError(f"{path} is no file of the run's user of at most {most} bytes")
            return file.read(most)


def _world_size(run_directory: Path, files: _Files) -> int:
    """0 where it is not known."""
    with suppress(OSError, ValueError, RecursionError, TypeError, KeyError):
        told = json.loads(files.content(run_directory / RUN_FILE, _LARGEST_MANIFEST))["world_size"]
        return int(any_rank(told))
    return 0


def _states(folder: Path, files: _Files) -> Iterator[RankState]:
    for rank, path in _named(folder, _STATE):
        with suppress(OSError, ValueError, RecursionError):
            state = read_object(RankState, json.loads(files.content(path, _LARGEST_STATE)))
            if state.rank == rank:
                yield state


def _report(run_directory: Path, states: Sequence[RankState], world_size: int, files: _Files) -> HangReport | None:
    """What the flight recorders of these ranks say."""
    dumps: list[FlightDump] = []
    for state in states:
        path = run_directory / live_record_path(state.rank)
        with suppress(OSError, DataError):
            dumps.append(read_dump(files.content(path, _LARGEST_RECORD), rank=state.rank, where=path.name))
    if not any(dump.operations for dump in dumps):
        return None
    return explain_hang(dumps, world_size=world_size)


def _ranks_here(run_directory: Path) -> set[int]:
    """Ranks that write into this directory: each has a file of steps from its beginning on."""
    return {rank for rank, _ in _named(run_directory / STEPS_FOLDER, _STEPS)}


def _named(folder: Path, name: re.Pattern[str]) -> Iterator[tuple[int, Path]]:
    with suppress(OSError):
        for path in folder.iterdir():
            if match := name.fullmatch(path.name):
                yield int(match[1]), path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
