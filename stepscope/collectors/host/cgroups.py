"""Are training processes stopped at the limits of their cgroups, for want of CPU time or memory?

A limit stands at any level: a pod's, a Slurm job's. The cgroup of the process is told, and each above it with a limit.
"""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.collectors.host.cgroup_places import Mount, folder_of, mounts_of, parse_membership, place_of
from stepscope.collectors.host.files import Files, Unread
from stepscope.collectors.host.gathering import Gathering
from stepscope.collectors.host.memory import parse_vmstat
from stepscope.collectors.host.pressure import RESOURCES, parse_pressure
from stepscope.core.host_metrics import CGROUP
from stepscope.core.readings import MissingReason

_NO_LIMIT = 1 << 62
"""Bytes. Version 1 says 2^63 less a page for none."""
_CPU = ("cpu_periods_total", "cpu_throttled_periods_total", "cpu_throttled_seconds_total")
_USAGE = "cpu_seconds_total"
_EVENTS = ("low", "high", "max", "oom", "oom_kill")


def parse_cpu_limit(text: str) -> float | None:
    """CPUs of a cpu.max ("200000 100000"), None without a limit or where the text is something else."""
    words = text.split()
    if len(words) != 2 or not all(word.isascii() and word.isdecimal() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def parse_bytes(text: str) -> int | None:
    """Bytes of a memory limit, None without one."""
    word = text.strip()
    if not (word.isascii() and word.isdecimal()) or int(word) >= _NO_LIMIT:
        return None
    return int(word)


def read_cgroups(files: Files, into: Gathering, pids: Iterable[int]) -> dict[int, str]:
    """Read the cgroups of processes, each once.

    Args:
        files: of the machine.
        into: where it goes.
        pids: of the processes.

    Returns:
        The cgroup of each process, where it is known.
    """
    mounts = mounts_of(files)
    of_process: dict[int, str] = {}
    done: set[tuple[str, str]] = set()
    for pid in pids:
        text = files.read(f"proc/{pid}/cgroup")
        if isinstance(text, Unread):
            continue  # the process is told of as gone
        membership = parse_membership(text)
        for controller, read in _READERS.items():
            place = place_of(mounts, membership, controller)
            if place is None:
                continue
            mount, path = place
            of_process[pid] = max(of_process.get(pid, ""), path, key=len)  # the one that says most
            for level in _levels(path, mount):
                if (controller, level) not in done:
                    done.add((controller, level))
                    read(files, into, mount, level, is_leaf=level == path)
    return of_process


def _levels(path: str, mount: Mount) -> list[str]:
    """The cgroup and those above it, without the root, which has no limits."""
    levels: list[str] = []
    if isinstance(folder_of(mount, path), Unread):
        return [path]
    while path.strip("/") and len(path) > len(mount.root.rstrip("/")):
        levels.append(path)
        path = path.rpartition("/")[0]
    return levels or [path or "/"]


def _read_cpu(files: Files, into: Gathering, mount: Mount, path: str, *, is_leaf: bool) -> None:
    names = [CGROUP + name for name in (_CPU if not mount.is_unified else (_USAGE, *_CPU))]
    folder = folder_of(mount, path)
    if isinstance(folder, Unread):
        into.miss(names, folder, cgroup=path)
        return
    limit = _cpu_limit(files, folder, mount)
    if not is_leaf and isinstance(limit, Unread):
        return
    _add(into, "cpu_limit_cpus", limit, path)
    text = files.read(f"{folder}/cpu.stat")
    if isinstance(text, Unread):
        into.miss(names, text, cgroup=path)
        return
    counts = parse_vmstat(text)
    if mount.is_unified:
        _add(into, _USAGE, _of(counts, "usage_usec", f"{folder}/cpu.stat", 1e-6), path)
        throttled = _of(counts, "throttled_usec", f"{folder}/cpu.stat", 1e-6)
    else:
        throttled = _of(counts, "throttled_time", f"{folder}/cpu.stat", 1e-9)
    _add(into, "cpu_periods_total", _of(counts, "nr_periods", f"{folder}/cpu.stat"), path)
    _add(into, "cpu_throttled_periods_total", _of(counts, "nr_throttled", f"{folder}/cpu.stat"), path)
    _add(into, "cpu_throttled_seconds_total", throttled, path)
    if mount.is_unified:
        _read_pressure(files, into, folder, path)


def _cpu_limit(files: Files, folder: str, mount: Mount) -> float | Unread:
    if mount.is_unified:
        text = files.read(f"{folder}/cpu.max")
        name = "cpu.max"
    else:
        quota, period = files.read(f"{folder}/cpu.cfs_quota_us"), files.read(f"{folder}/cpu.cfs_period_us")
        text = quota if isinstance(quota, Unread) else period if isinstance(period, Unread) else f"{quota} {period}"
        name = "cpu.cfs_quota_us"
    if isinstance(text, Unread):
        return text
    limit = parse_cpu_limit(text)
    return Unread(MissingReason.NOT_SUPPORTED, f"/{folder}/{name}: no limit") if limit is None else limit


def _read_usage(files: Files, into: Gathering, mount: Mount, path: str, *, is_leaf: bool) -> None:
    """CPU time by version 1, where it may be a hierarchy of its own."""
    if mount.is_unified or not is_leaf:
        return
    folder = folder_of(mount, path)
    text = folder if isinstance(folder, Unread) else files.read(f"{folder}/cpuacct.usage")
    if isinstance(text, Unread):
        into.miss([CGROUP + _USAGE], text, cgroup=path)
        return
    nanoseconds = parse_bytes(text)
    if nanoseconds is None:
        into.miss_line(CGROUP + _USAGE, f"{folder}/cpuacct.usage", "a number", cgroup=path)
        return
    into.add(CGROUP + _USAGE, nanoseconds / 1_000_000_000, cgroup=path)


def _read_memory(files: Files, into: Gathering, mount: Mount, path: str, *, is_leaf: bool) -> None:
    names = ("memory_bytes", "memory_limit_bytes", "memory_events_total")
    folder = folder_of(mount, path)
    if isinstance(folder, Unread):
        into.miss([CGROUP + name for name in names], folder, cgroup=path)
        return
    used_file, limit_file = (
        ("memory.current", "memory.max") if mount.is_unified else ("memory.usage_in_bytes", "memory.limit_in_bytes")
    )
    limit = _bytes(files, f"{folder}/{limit_file}")
    if not is_leaf and isinstance(limit, Unread):
        return
    _add(into, "memory_limit_bytes", limit, path)
    _add(into, "memory_bytes", _bytes(files, f"{folder}/{used_file}"), path)
    if mount.is_unified:
        text = files.read(f"{folder}/memory.events")
        if isinstance(text, Unread):
            into.miss([CGROUP + "memory_events_total"], text, cgroup=path)
            return
        counts = parse_vmstat(text)
        for event in _EVENTS:
            _add(into, "memory_events_total", _of(counts, event, f"{folder}/memory.events"), path, event=event)
        return
    _add(into, "memory_events_total", _bytes(files, f"{folder}/memory.failcnt"), path, event="max")
    text = files.read(f"{folder}/memory.oom_control")
    kills = text if isinstance(text, Unread) else _of(parse_vmstat(text), "oom_kill", f"{folder}/memory.oom_control")
    _add(into, "memory_events_total", kills, path, event="oom_kill")


def _bytes(files: Files, path: str) -> float | Unread:
    text = files.read(path)
    if isinstance(text, Unread):
        return text
    value = parse_bytes(text)
    return Unread(MissingReason.NOT_SUPPORTED, f"/{path}: no limit") if value is None else value


def _read_pressure(files: Files, into: Gathering, folder: str, path: str) -> None:
    for resource in RESOURCES:
        text = files.read(f"{folder}/{resource}.pressure")
        if isinstance(text, Unread):
            into.miss([CGROUP + "pressure_seconds_total"], text, cgroup=path, resource=resource)
            continue
        for line in parse_pressure(text):
            into.add(CGROUP + "pressure_seconds_total", line.seconds, cgroup=path, resource=resource, share=line.share)


def _of(counts: dict[str, int], field: str, path: str, scale: float = 1.0) -> float | Unread:
    if field not in counts:
        return Unread(MissingReason.NOT_SUPPORTED, f"/{path}: without {field}")
    return counts[field] / round(1 / scale)


def _add(into: Gathering, name: str, value: float | Unread, path: str, **labels: str) -> None:
    if isinstance(value, Unread):
        into.miss([CGROUP + name], value, cgroup=path, **labels)
    else:
        into.add(CGROUP + name, value, cgroup=path, **labels)


_READERS = {"cpu": _read_cpu, "cpuacct": _read_usage, "memory": _read_memory}
