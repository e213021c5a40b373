"""Dumps of a run directory for its analysis: flight recorders, memory snapshots, NCCL logs, in bounded time and memory.

A dump that cannot be read is a notice, never an error: the verdict on the steps stays.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from stepscope.analyzer.dumps.hang import FlightRecords
from stepscope.analyzer.dumps.joined import RunDumps
from stepscope.analyzer.dumps.out_of_memory import RankSnapshot
from stepscope.analyzer.dumps.stuck import StuckStep
from stepscope.analyzer.dumps.transports import JobLog
from stepscope.analyzer.hang.live import device_waits
from stepscope.analyzer.memory import explain_memory
from stepscope.collectors.flight_recorder import find_flight_dumps, read_flight_dumps
from stepscope.collectors.memory_snapshot import read_memory_snapshot, read_out_of_memory_note
from stepscope.core.documents.memory import AllocatorAction, MemorySnapshot
from stepscope.core.documents.run_directory import (
    FLIGHT_FOLDER,
    LIVE_FOLDER,
    MEMORY_FOLDER,
    NCCL_FOLDER,
    Attempt,
    RunManifest,
)
from stepscope.core.errors import DataError
from stepscope.core.text.numbers import counted, plain_size
from stepscope.core.vocabulary import Notice
from stepscope.store.step_records import read_stuck_steps
from stepscope.workflow.live_hang import MAX_STATE_AGE_SECONDS, read_live_hang, read_rank_states
from stepscope.workflow.memory import SNAPSHOT_SUFFIXES
from stepscope.workflow.nccl import read_job_log

_MAX_FLIGHT_BYTES = 64 << 20
"""Of all ranks, half a minute of CPU time. Left out ranks would count as missing, so that all are read or none."""
_MAX_SNAPSHOT_BYTES = 32 << 20
"""Of all that are read, 10 s."""
_MAX_LOG_BYTES = 64 << 20
"""10 s."""
_GZIP_RATIO = 20
"""Recorded snapshots and logs shrink to a twentieth."""
_RANK = re.compile(r"rank(\d{1,7})(?!\d)")


def read_dumps(run_directory: Path, world_size: int, manifest: RunManifest | None) -> RunDumps:
    """Dumps in flight/, memory/ and nccl/ of a run directory."""
    notices: list[Notice] = []
    attempts = [] if manifest is None else manifest.attempts
    flight = _flight(run_directory, attempts, notices)
    stuck = [
        StuckStep(one.rank, one.step, one.began_ns, one.place, one.is_still, one.collective is not None)
        for one in read_stuck_steps(run_directory, manifest)
    ]
    snapshots = _snapshots(run_directory / MEMORY_FOLDER, notices)
    nccl = _nccl(run_directory / NCCL_FOLDER, world_size, attempts, notices)
    return RunDumps(flight._replace(stuck=stuck), snapshots, nccl, notices)


def _flight(run_directory: Path, attempts: Sequence[Attempt], notices: list[Notice]) -> FlightRecords:
    """Dumps of ranks that failed or whose step did not end; of a step that is long just now, if those are older."""
    folder = run_directory / FLIGHT_FOLDER
    states = read_rank_states(folder / LIVE_FOLDER)
    seen_ns = max((state.seen_ns for state in states), default=0)
    states = [] if attempts and seen_ns < attempts[-1].start_ns else states
    is_running = bool(states) and time.time_ns() - seen_ns < MAX_STATE_AGE_SECONDS * 1e9
    live = read_live_hang(run_directory) if is_running else None
    at_work = {state.rank: state.doing for state in states if state.doing}
    since_ns = min((state.since_ns for state in states), default=0)
    flight = _dumps(folder, notices)
    if not flight.dumps or max(dump.written_ns or 0 for dump in flight.dumps) < since_ns:
        of_live = _dumps(folder / LIVE_FOLDER, notices)
        flight = of_live if of_live.dumps else flight
    return flight._replace(device_waits=device_waits(states), at_work=at_work, live=live)


def _dumps(folder: Path, notices: list[Notice]) -> FlightRecords:
    """Flight recorder dumps in one folder."""
    try:
        files, left_out = find_flight_dumps([folder] if folder.is_dir() else [])
        num_bytes = sum(file.path.stat().st_size for file in files)
        if num_bytes > _MAX_FLIGHT_BYTES:
            what = f"{counted(len(files), 'flight recorder dump')} of {plain_size(num_bytes)} are not read here"
            raise DataError(what, where=str(folder), what_next=f"run: stepscope hang {folder}")
        dumps, unusable = read_flight_dumps(files)
    except (DataError, OSError) as error:
        notices.append(_unreadable(folder, error))
        return FlightRecords()
    notices += [*left_out, *unusable]
    return FlightRecords(dumps, unreadable={file.rank for file in files} - {dump.rank for dump in dumps})


def _snapshots(folder: Path, notices: list[Notice]) -> list[RankSnapshot]:
    """Snapshots of ranks that ran out of memory; without such the latest periodic one."""
    try:
        files = [file for file in folder.rglob("rank*") if file.name.endswith(SNAPSHOT_SUFFIXES) and file.is_file()]
        failed = sorted(file for file in files if file.parent == folder)
        periodic = sorted(files, key=lambda file: (-_step_of(file.parent), file.name))[:1]
        sizes = {file: _unpacked_bytes(file) for file in failed or periodic}
    except OSError as error:
        notices.append(_unreadable(folder, error))
        return []
    snapshots, num_bytes = [], 0
    for file, size in sizes.items():
        rank = _rank_of(file)
        if rank is None:
            continue
        is_read = num_bytes + size <= _MAX_SNAPSHOT_BYTES
        num_bytes += size if is_read else 0
        try:
            if not is_read:
                text = f"is not read here, it has {plain_size(size)}"
                raise DataError(text, where=str(file), what_next=f"run: stepscope memory {file}")
            snapshots.append(_snapshot(file, rank))
        except (DataError, OSError) as error:
            notices.append(_unreadable(file, error))
            note = read_out_of_memory_note(file)
            if note is not None and note.requested_bytes is not None:
                snapshots.append(RankSnapshot(rank, None, note.time_ns, note))
    return snapshots


def _snapshot(file: Path, rank: int) -> RankSnapshot:
    snapshot, note = read_memory_snapshot(file), read_out_of_memory_note(file)
    report = explain_memory(snapshot, note)
    time_ns = None if note is None else note.time_ns
    written_ns = time_ns or _failure_ns(snapshot, report.device) or file.stat().st_mtime_ns
    return RankSnapshot(rank, report, written_ns, note)


def _failure_ns(snapshot: MemorySnapshot, device: int) -> int | None:
    """When the last allocation failed on a GPU, by the events of the allocator."""
    events = snapshot.events.get(device)
    if events is None:
        return None
    failed = [place for place, action in enumerate(events.actions) if action == AllocatorAction.OOM]
    return events.times_us[failed[-1]] * 1000 if failed else None


def _rank_of(file: Path) -> int | None:
    match = _RANK.match(file.name)
    return int(match[1]) if match else None


def _step_of(folder: Path) -> int:
    digits = folder.name.removeprefix("step")
    return int(digits) if digits.isdecimal() else -1


class _Log(NamedTuple):
    path: Path
    num_bytes: int
    written_ns: int


def _nccl(folder: Path, world_size: int, attempts: Sequence[Attempt], notices: list[Notice]) -> JobLog | None:
    """The job's NCCL files, without those that an earlier attempt wrote."""
    try:
        logs = [
            _Log(file, _unpacked_bytes(file), file.stat().st_mtime_ns)
            for file in sorted(folder.iterdir() if folder.is_dir() else ())
            if file.is_file()
        ]
    except OSError as error:
        notices.append(_unreadable(folder, error))
        return None
    since_ns = _end_of_earlier_attempts(attempts)
    latest = [log for log in logs if log.written_ns > since_ns]
    if logs and not latest:
        notices.append(Notice("nccl_log", f"{folder}: all files are of an earlier attempt; not used for the verdict"))
    read, num_bytes = [], 0
    for log in latest:
        if num_bytes + log.num_bytes <= _MAX_LOG_BYTES:
            read.append(str(log.path))
            num_bytes += log.num_bytes
    if num_left := len(latest) - len(read):
        what = f"{folder}: {num_left} of {counted(len(latest), 'file')} not read here: more than"
        notices.append(
            Notice("unread_files", f"{what} {plain_size(_MAX_LOG_BYTES)}; run: stepscope nccl {folder.parent}")
        )
    if not read:
        return None
    try:
        transports = read_job_log(read, world_size)
    except DataError as error:
        notices.append(Notice("unusable_file", str(error)))
        return None
    notices += transports.report.warnings
    return transports


def _end_of_earlier_attempts(attempts: Sequence[Attempt]) -> int:
    """Latest time known of the attempts before the last one: NCCL may write before `profile()` begins an attempt."""
    return max((time for one in attempts[:-1] for time in (one.end_ns, one.last_step_ns) if time), default=0)


def _unpacked_bytes(file: Path) -> int:
    """Size of a file; of a gzipped one about what it unpacks to."""
    return file.stat().st_size * (_GZIP_RATIO if file.suffix == ".gz" else 1)


def _unreadable(path: Path, error: Exception) -> Notice:
    text = str(error) if isinstance(error, DataError) else f"{path}: cannot be read ({error})"
    return Notice("unusable_file", text)
