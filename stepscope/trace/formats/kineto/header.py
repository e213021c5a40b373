"""Header of a trace: rank, devices, versions and groups, from the keys beside traceEvents."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

from stepscope.core.documents.run_directory import WHOLE_STEPS_KEY
from stepscope.trace.columns import ProcessGroup, RankSource, TraceDevice, TraceHeader
from stepscope.trace.file_names import MAX_RANK, read_file_name
from stepscope.trace.formats.kineto.repair import read_json, repairs

_LOG = logging.getLogger(__name__)

_SINGLE_NUMBERS = re.compile(rb'"(baseTimeNanoseconds|rank|world_size)"\s*:\s*(\d+)')
_DISTRIBUTED = "distributedInfo"
_MAX_BASE_NS = 2**62
_MAX_COUNT = 2**63
_MAX_DIGITS = 30
"""Python refuses to convert some thousand digits to an integer."""


def parse_metadata(before: bytes, after: bytes) -> dict[str, Any]:
    """Top-level keys of a trace from the text around its event array, repaired where needed.

    Args:
        before: from the opening brace to the key traceEvents; empty for a bare list.
        after: from the array's closing bracket on; may be truncated.
    """
    metadata: dict[str, Any] = {}
    if before.strip():
        metadata |= _parse_object(before.rstrip().rstrip(b",") + b"}")
    if after.strip(b" \t\r\n,}]\x00"):
        metadata |= _parse_object(b"{" + after.lstrip().lstrip(b","))
    return metadata


def _parse_object(text: bytes) -> dict[str, Any]:
    for candidate in (text, *repairs(text)):
        try:
            found = read_json(candidate, _keep_all_ranks)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    _LOG.warning("the trace's metadata cannot be read; only its plain numbers are used")
    numbers: dict[str, Any] = {}
    for name, value in _SINGLE_NUMBERS.findall(text):
        if name == b"baseTimeNanoseconds":
            numbers["baseTimeNanoseconds"] = int(value)
        else:
            numbers.setdefault(_DISTRIBUTED, {})[name.decode()] = int(value)
    return numbers


def _keep_all_ranks(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The last of repeated keys wins, but all distributedInfo of a merged file are kept."""
    found = dict(pairs)
    infos = [value for key, value in pairs if key == _DISTRIBUTED]
    if len(infos) > 1:
        found[_DISTRIBUTED] = infos
    return found


def listed_ranks(metadata: Mapping[str, Any]) -> list[int]:
    """The ranks of all distributedInfo of a merged file, in its order; empty unless each has one."""
    infos = metadata.get(_DISTRIBUTED)
    ranks = [_rank_number(_mapping(info).get("rank")) for info in infos] if isinstance(infos, list) else []
    known = [rank for rank in ranks if rank is not None]
    return known if len(set(known)) == len(ranks) else []


def build_header(
    metadata: Mapping[str, Any], *, path: str, file_bytes: int, text_bytes: int, saw_shapes: bool, saw_stacks: bool
) -> TraceHeader:
    """The typed header; `saw_shapes` and `saw_stacks` stand in where the metadata lacks the profiler's options."""
    distributed = metadata.get(_DISTRIBUTED)
    distributed = _mapping(distributed[0] if isinstance(distributed, list) and distributed else distributed)
    name = read_file_name(path)
    recorded = _rank_number(distributed.get("rank"))
    rank = name.rank if recorded is None else recorded
    base = _whole_number(metadata.get("baseTimeNanoseconds")) or 0
    return TraceHeader(
        path=path,
        rank=rank,
        world_size=_rank_number(distributed.get("world_size")) or None,
        backend=_text(distributed.get("backend")),
        host_name=_text(metadata.get("host_name")),
        base_time_ns=base if base < _MAX_BASE_NS else 0,
        devices=_devices(metadata),
        groups=_groups(distributed),
        versions=_versions(metadata, distributed),
        with_shapes=bool(metadata.get("record_shapes", saw_shapes)),
        with_stacks=bool(metadata.get("with_stack", saw_stacks)),
        file_bytes=file_bytes,
        text_bytes=text_bytes,
        whole_steps=_whole_steps(metadata.get(WHOLE_STEPS_KEY)),
        rank_source=None if rank is None else RankSource.FILE_NAME if recorded is None else RankSource.HEADER,
        place=name.place,
    )


def _whole_steps(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not all(isinstance(step, int) for step in value):
        return None
    return tuple(value)


def parse_ranks(value: Any) -> tuple[int, ...] | None:
    """Members of a group from a list or its text; None when truncated ("[0, 1, ...]") or not a list."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, list) or not all(isinstance(rank, int) and rank >= 0 for rank in value):
        return None
    return tuple(value) or None


def _devices(metadata: Mapping[str, Any]) -> tuple[TraceDevice, ...]:
    entries = metadata.get("deviceProperties")
    if not isinstance(entries, list):
        return ()
    return tuple(
        TraceDevice(
            index=_whole_number(entry.get("id")) or 0,
            name=_text(entry.get("name")) or "",
            num_sms=_whole_number(entry.get("numSms")),
            memory_bytes=_whole_number(entry.get("totalGlobalMem")),
            compute_capability=_capability(entry),
            warp_size=_whole_number(entry.get("warpSize")),
            max_threads_per_sm=_whole_number(entry.get("maxThreadsPerMultiprocessor")),
            registers_per_sm=_whole_number(entry.get("regsPerMultiprocessor")),
            shared_memory_per_sm_bytes=_whole_number(entry.get("sharedMemPerMultiprocessor")),
        )
        for entry in entries
        if isinstance(entry, dict)
    )


def _capability(entry: Mapping[str, Any]) -> tuple[int, int] | None:
    major, minor = _whole_number(entry.get("computeMajor")), _whole_number(entry.get("computeMinor"))
    return None if major is None or minor is None else (major, minor)


def _groups(distributed: Mapping[str, Any]) -> tuple[ProcessGroup, ...]:
    entries = distributed.get("pg_config")
    if not isinstance(entries, list):
        return ()
    return tuple(
        ProcessGroup(
            name=str(entry.get("pg_name", "")),
            description=str(entry.get("pg_desc", "")),
            ranks=parse_ranks(entry.get("ranks")),
        )
        for entry in entries
        if isinstance(entry, dict)
    )


def _versions(metadata: Mapping[str, Any], distributed: Mapping[str, Any]) -> dict[str, str]:
    named = {**metadata, **distributed}
    return {
        name: str(value)
        for name, value in named.items()
        if name.endswith("_version") and isinstance(value, (str, int, float))
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole_number(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < _MAX_DIGITS:
        value = int(value)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_COUNT
    return value if is_count else None


def _rank_number(value: Any) -> int | None:
    count = _whole_number(value)
    return count if count is not None and count <= MAX_RANK else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
