"""Report of a stuck step in flight/: stacks of all threads, open spans, unfinished collective, flight recorder."""

from __future__ import annotations

import faulthandler
import json
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, replace
from io import FileIO
from pathlib import Path
from types import FrameType
from typing import Any

from stepscope.core.documents.hang import STUCK_SCHEMA, StuckReport
from stepscope.core.documents.run_directory import PHASE_PREFIX, RankFile
from stepscope.training.hangs.stall import frame_entries, thread_frames
from stepscope.training.run.context import RunContext
from stepscope.training.run.identity import initialized_distributed
from stepscope.training.run.run_files import atomic_write
from stepscope.training.steps.spans import DATA_SPAN

_OWN_FOLDER = f"{Path(__file__).parents[2]}/"
"""Folder of this package; training code may be below another folder of the same name."""


def write_stuck_report(context: RunContext, report: StuckReport, thread_id: int, stacks: FileIO) -> StuckReport:
    """Write stacks, state and flight recorder of a stuck step, the most reliable first; returns the completed report.

    Args:
        report: without what the training thread does.
        thread_id: of the training thread.
        stacks: the file for the stacks of all threads.

    Raises:
        OSError: nothing can be written.
    """
    title = f"step {report.step} open for {report.age_seconds:.0f} s at {time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n"
    stacks.write(title.encode())
    faulthandler.dump_traceback(stacks, all_threads=True)
    stacks.write(b"\n")
    report = _completed(report, context, thread_id, None)
    save_stuck_report(context, report)
    collective = unfinished_collective()
    if collective is not None:
        report = _completed(report, context, thread_id, collective)
        save_stuck_report(context, report)
    record = flight_record()
    if record is not None:
        with atomic_write(context.run_directory / RankFile.FLIGHT_RECORDER.path(context.identity.rank)) as temporary:
            temporary.write_bytes(record)
    return report


def save_stuck_report(context: RunContext, report: StuckReport) -> None:
    """Write the report of a stuck step to flight/rank{r}.stuck.json.

    Raises:
        OSError: it cannot be written.
    """
    with atomic_write(context.run_directory / RankFile.STUCK_REPORT.path(context.identity.rank)) as temporary:
        document = {"schema": STUCK_SCHEMA} | asdict(report)
        temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def stacks_file_path(context: RunContext) -> Path:
    """Path of the file with the stacks of all threads of a rank whose step is stuck."""
    return context.run_directory / RankFile.STACKS.path(context.identity.rank)


def _completed(
    report: StuckReport, context: RunContext, thread_id: int, collective: dict[str, Any] | None
) -> StuckReport:
    spans = context.open_spans()
    return replace(
        report,
        seen_ns=time.time_ns(),
        open_spans=spans,
        where=code_location(spans, list(thread_frames(thread_id)), collective),
        collective=collective,
        threads=_threads(),
    )


def code_location(spans: list[str], frames: list[FrameType], collective: dict[str, Any] | None) -> str:
    """Where a stuck step is: its innermost known activity, a collective, the wait for data, a phase, or a function.

    Args:
        spans: open spans of stepscope.
        frames: of the training thread, innermost first.
        collective: the oldest unfinished one.
    """
    if in_collective := [frame.f_code.co_name for frame in collective_frames(frames)]:
        public = (name for name in in_collective if not name.startswith("_") and name != "wrapper")
        return next(public, in_collective[0])
    for span in reversed(spans):
        if span == DATA_SPAN:
            return "the wait for data"
        if span.startswith(PHASE_PREFIX):
            return f"phase {span.removeprefix(PHASE_PREFIX)}"
    if collective is not None:  # the host waits for the device, which waits in it
        return str(collective["name"]).partition(":")[2]
    for frame in frames:
        if "/torch/" not in frame.f_code.co_filename and not frame.f_code.co_filename.startswith(_OWN_FOLDER):
            return f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
    return "unknown code"


def collective_frames(frames: list[FrameType]) -> list[FrameType]:
    """Frames of a stuck thread inside calls of torch.distributed; empty where there are none."""
    return [frame for frame in frames if frame.f_code.co_filename.endswith("/distributed_c10d.py")]


def _threads() -> list[dict[str, Any]]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return [
        {
            "name": names.get(thread_id, str(thread_id)),
            "frames": frame_entries(thread_frames(thread_id)),
        }
        for thread_id in sys._current_frames()
    ]


def shortest_collective_timeout() -> float | None:
    """Shortest timeout of this process's groups, after which torch's watchdog ends the job; None without groups."""
    found: list[float] = []
    for group in _groups():
        for device in getattr(group, "_device_types", []):
            with suppress(RuntimeError, AttributeError):  # a backend that has no options
                found.append(group._get_backend(device).options._timeout.total_seconds())
    return min(found, default=None)


def unfinished_collective() -> dict[str, Any] | None:
    """Oldest unfinished collective in torch's flight recorder; None without one, or where recording is off.

    Keys: name ("nccl:all_reduce"), group, sequence number, since_ns (since the epoch), stack where it is known.
    """
    content = _call("_json", includeCollectives=True, onlyActive=False)
    if content is None:
        return None
    try:
        entries = json.loads(content).get("entries") or []
        waiting = [entry for entry in entries if not entry["retired"] and entry["state"] != "completed"]
        oldest = min(waiting, key=lambda entry: int(entry["time_created_ns"]), default=None)
        return None if oldest is None else {
            "name": str(oldest["profiling_name"]),
            "group": str(oldest["process_group"][1]),
            "sequence": int(oldest["p2p_seq_id" if oldest["is_p2p"] else "collective_seq_id"]),
            "since_ns": int(oldest["time_created_ns"]),
        }  # fmt: skip
    except (ValueError, KeyError, TypeError, IndexError):  # a newer recorder
        return None


def flight_record(*, has_stacks: bool = True) -> bytes | None:
    """Dump of torch's flight recorder for the report of a stuck step, a pickle without code; None where there is none.

    Args:
        has_stacks: include the stack of each call. The first time this takes about a second of CPU time;
            without stacks under a millisecond.
    """
    return _call("", includeCollectives=True, includeStackTraces=has_stacks, onlyActive=False)


def _call(ending: str, **options: bool) -> bytes | None:
    recorder = getattr(getattr(sys.modules.get("torch"), "_C", None), "_distributed_c10d", None)
    groups = _groups()
    if recorder is None or not groups:
        return None
    has_nccl = any("nccl" in str(getattr(group, "name", lambda: "")()).lower() for group in groups)
    names = ("_dump_nccl_trace", "_dump_fr_trace") if has_nccl else ("_dump_fr_trace", "_dump_nccl_trace")
    for name in names:
        dump = getattr(recorder, name + ending, None)
        if dump is not None:
            with suppress(RuntimeError, TypeError):
                return bytes(dump(**options))
    return None


def _groups() -> list[Any]:
    with suppress(AttributeError):  # also where torch.distributed is not initialised
        return list(initialized_distributed().distributed_c10d._world.pg_map)
    return []
