"""How much memory is there, how much is left, and does the machine swap or kill for want of it?

`MemAvailable` is what programs can still get; free memory leaves out what caches hold (giampaolo/psutil#2604).
"""

from __future__ import annotations

import re

from stepscope.collectors.host.files import Files, Unread
from stepscope.collectors.host.gathering import Gathering
from stepscope.core.host_metrics import HOST

_FIELDS = {
    "MemTotal": HOST + "memory_total_bytes",
    "MemAvailable": HOST + "memory_available_bytes",
    "MemFree": HOST + "memory_free_bytes",
    "Buffers": HOST + "memory_buffers_bytes",
    "Cached": HOST + "memory_cached_bytes",
    "Shmem": HOST + "memory_shared_bytes",
    "AnonPages": HOST + "memory_anonymous_bytes",
    "Unevictable": HOST + "memory_unevictable_bytes",
    "Slab": HOST + "memory_slab_bytes",
    "Dirty": HOST + "memory_dirty_bytes",
    "Writeback": HOST + "memory_writeback_bytes",
    "Committed_AS": HOST + "memory_committed_bytes",
    "SwapTotal": HOST + "swap_total_bytes",
    "SwapFree": HOST + "swap_free_bytes",
}
_HUGE = {"HugePages_Total": HOST + "huge_pages_total_bytes", "HugePages_Free": HOST + "huge_pages_free_bytes"}
_EVENTS = {"pgmajfault": HOST + "major_page_faults_total", "oom_kill": HOST + "oom_kills_total"}
_PAGES = {"pswpin": HOST + "swapped_in_bytes_total", "pswpout": HOST + "swapped_out_bytes_total"}
_STALLS = HOST + "reclaim_stalls_total"
_LINE = re.compile(r"\s*(?:Node\s+\d+\s+)?([A-Za-z0-9_()]+):\s*(\d+)( kB)?\s*", re.ASCII)


def parse_meminfo(text: str) -> dict[str, int]:
    """Read /proc/meminfo, or a NUMA node's: bytes by name, and numbers of pages where there is no unit."""
    matches = (_LINE.fullmatch(line) for line in text.splitlines())
    return {match[1]: int(match[2]) * (1024 if match[3] else 1) for match in matches if match}


def parse_vmstat(text: str) -> dict[str, int]:
    """Read /proc/vmstat, or a NUMA node's numastat: numbers by name."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isascii() and pair[1].isdecimal()}


def read_memory(files: Files, into: Gathering, *, page_bytes: int) -> None:
    """Read the machine's memory.

    Args:
        files: of the machine.
        into: where it goes.
        page_bytes: of one page of memory.
    """
    text = files.read("proc/meminfo")
    if isinstance(text, Unread):
        into.miss([*_FIELDS.values(), *_HUGE.values()], text)
    else:
        known = parse_meminfo(text)
        for field, metric in _FIELDS.items():
            if field in known:
                into.add(metric, known[field])
            else:
                into.miss_line(metric, "proc/meminfo", field)
        for field, metric in _HUGE.items():
            if field in known and "Hugepagesize" in known:
                into.add(metric, known[field] * known["Hugepagesize"])
            else:
                into.miss_line(metric, "proc/meminfo", field)
    text = files.read("proc/vmstat")
    if isinstance(text, Unread):
        into.miss([*_EVENTS.values(), *_PAGES.values(), _STALLS], text)
        return
    counts = parse_vmstat(text)
    for field, metric in (*_EVENTS.items(), *_PAGES.items()):
        if field in counts:
            into.add(metric, counts[field] * (page_bytes if field in _PAGES else 1))
        else:
            into.miss_line(metric, "proc/vmstat", field)
    stalls = [count for field, count in counts.items() if field == "allocstall" or field.startswith("allocstall_")]
    if stalls:
        into.add(_STALLS, sum(stalls))
    else:
        into.miss_line(_STALLS, "proc/vmstat", "allocstall")


def read_numa_memory(files: Files, into: Gathering) -> None:
    """Read the memory of each NUMA node."""
    folder = "sys/devices/system/node"
    total, free, misses = (
        HOST + f"numa_{name}" for name in ("memory_total_bytes", "memory_free_bytes", "misses_total")
    )
    names = files.names(folder)
    if isinstance(names, Unread):
        into.miss([total, free, misses], names)
        return
    for node in (name[4:] for name in names if re.fullmatch(r"node\d+", name, re.ASCII)):
        text = files.read(f"{folder}/node{node}/meminfo")
        known = {} if isinstance(text, Unread) else parse_meminfo(text)
        for field, metric in (("MemTotal", total), ("MemFree", free)):
            if field in known:
                into.add(metric, known[field], node=node)
            elif isinstance(text, Unread):
                into.miss([metric], text, node=node)
            else:
                into.miss_line(metric, f"{folder}/node{node}/meminfo", field, node=node)
        text = files.read(f"{folder}/node{node}/numastat")
        count = None if isinstance(text, Unread) else parse_vmstat(text).get("numa_miss")
        if count is not None:
            into.add(misses, count, node=node)
        elif isinstance(text, Unread):
            into.miss([misses], text, node=node)
        else:
            into.miss_line(misses, f"{folder}/node{node}/numastat", "numa_miss", node=node)
