"""What do torch's communicators of this process wait for, how long will they, and what did they do last?"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any


def least_timeout_seconds() -> float | None:
    """The least patience of this process's groups: torch's watchdog ends the job when it is over. None without any."""
    found: list[float] = []
    for group in _groups():
        for device in getattr(group, "_device_types", []):
            with suppress(RuntimeError, AttributeError):  # a backend that has no options
                found.append(group._get_backend(device).options._timeout.total_seconds())
    return min(found, default=None)


def unfinished_collective() -> dict[str, Any] | None:
    """The oldest one begun and not over, as torch's flight recorder has it; None where none is, or it does not record.

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
    """torch's flight recorder as it dumps it, a pickle without code; None where there is none.

    Args:
        has_stacks: with where each call was made. The first time that takes about a second of a processor, without
            less than a millisecond.
    """
    return _call("", includeCollectives=True, includeStackTraces=has_stacks, onlyActive=False)


def _call(ending: str, **options: bool) -> bytes | None:
    recorder = getattr(getattr(sys.modules.get("torch"), "_C", None), "_distributed_c10d", None)
    if recorder is None or not list(_groups()):
        return None
    names = ("_dump_nccl_trace", "_dump_fr_trace") if _has_nccl() else ("_dump_fr_trace", "_dump_nccl_trace")
    for name in names:
        dump = getattr(recorder, name + ending, None)
        if dump is not None:
            with suppress(RuntimeError, TypeError):
                return bytes(dump(**options))
    return None


def _has_nccl() -> bool:
    return any("nccl" in str(getattr(group, "name", lambda: "")()).lower() for group in _groups())


def _groups() -> list[Any]:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return []
    with suppress(AttributeError):
        return list(distributed.distributed_c10d._world.pg_map)
    return []
