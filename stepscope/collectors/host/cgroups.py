"""Cgroups of training processes: CPU throttling, memory use and limits, pressure; both versions, also in containers.

A limit may be set at any level (a pod's, a Slurm job's): the cgroup of the process is reported, and each above it that
has a limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepscope.collectors.host.files import Files
from stepscope.collectors.host.machine import RESOURCES, parse_counts, parse_pressure
from stepscope.collectors.readings_builder import NoValue, ReadingsBuilder, scaled
from stepscope.core.metrics.readings import CGROUP, MissingReason

_NO_LIMIT = 1 << 62
"""Bytes. Without a limit version 1 reports 2^63 less a page."""
_CPU_SECONDS = "cpu_seconds_total"
_CPU_STAT = (("cpu_periods_total", "nr_periods", 1.0), ("cpu_throttled_periods_total", "nr_throttled", 1.0))
_CPU_STAT_V1 = (*_CPU_STAT, ("cpu_throttled_seconds_total", "throttled_time", 1e-9))
_CPU_STAT_UNIFIED = (
    (_CPU_SECONDS, "usage_usec", 1e-6),
    *_CPU_STAT,
    ("cpu_throttled_seconds_total", "throttled_usec", 1e-6),
)
"""Metric, field of cpu.stat, its unit in that of the metric."""
_MEMORY_EVENTS = ("low", "high", "max", "oom", "oom_kill")


def parse_cpu_limit(text: str) -> float | None:
    """CPUs of a cgroup's cpu.max ("200000 100000"), None without a limit or where the text is something else."""
    words = text.split()
    if len(words) != 2 or not all(word.isascii() and word.isdecimal() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def parse_limit_bytes(text: str) -> int | None:
    """Bytes of a cgroup's memory limit, None without one."""
    word = text.strip()
    if not (word.isascii() and word.isdecimal()) or int(word) >= _NO_LIMIT:
        return None
    return int(word)


def read_cgroups(files: Files, into: ReadingsBuilder, pids: Iterable[int]) -> dict[int, str]:
    """Host: read the cgroups of processes, each once; returns the cgroup of each process, where it is known."""
    mounts = cgroup_mounts(files)
    of_process: dict[int, str] = {}
    done: set[tuple[str, str]] = set()
    for pid in pids:
        text = files.read(f"proc/{pid}/cgroup")
        if isinstance(text, NoValue):
            continue  # read_process reports it as gone
        membership = parse_membership(text)
        for controller, read in _READERS.items():
            found = cgroup_hierarchy_of(mounts, membership, controller)
            if found is None:
                continue
            mount, path = found
            of_process[pid] = max(of_process.get(pid, ""), path, key=len)  # the most specific one
            for level in _levels_above(path, mount):
                if (controller, level) not in done:
                    done.add((controller, level))
                    read(files, into, mount, level, is_leaf=level == path)
    return of_process


def cgroup_with_parents(group: str) -> list[str]:
    """A cgroup and those above it: a limit may be set at any level."""
    parts = group.rstrip("/").split("/")
    return ["/".join(parts[:count]) or "/" for count in range(len(parts), 0, -1)] if group else []


def _levels_above(path: str, mount: CgroupMount) -> list[str]:
    """The cgroup and those above it, without the root, which has no limits."""
    levels: list[str] = []
    if isinstance(cgroup_folder(mount, path), NoValue):
        return [path]
    while path.strip("/") and len(path) > len(mount.root.rstrip("/")):
        levels.append(path)
        path = path.rpartition("/")[0]
    return levels or [path or "/"]


def _read_cpu(files: Files, into: ReadingsBuilder, mount: CgroupMount, path: str, *, is_leaf: bool) -> None:
    fields = _CPU_STAT_UNIFIED if mount.is_unified else _CPU_STAT_V1
    folder = cgroup_folder(mount, path)
    if isinstance(folder, NoValue):
        into.miss([CGROUP + metric for metric, _, _ in fields], folder, cgroup=path)
        return
    limit = _cpu_limit(files, folder, mount)
    if not is_leaf and isinstance(limit, NoValue):
        return
    into.add(CGROUP + "cpu_limit_cpus", limit, cgroup=path)
    stat = files.fields(f"{folder}/cpu.stat", parse_counts)
    for metric, field, scale in fields:
        count = stat[field]
        into.add(CGROUP + metric, count if isinstance(count, NoValue) else scaled(count, scale), cgroup=path)
    if mount.is_unified:
        _read_cgroup_pressure(files, into, folder, path)


def _cpu_limit(files: Files, folder: str, mount: CgroupMount) -> float | NoValue:
    if mount.is_unified:
        text = files.read(f"{folder}/cpu.max")
        name = "cpu.max"
    else:
        quota, period = files.read(f"{folder}/cpu.cfs_quota_us"), files.read(f"{folder}/cpu.cfs_period_us")
        text = quota if isinstance(quota, NoValue) else period if isinstance(period, NoValue) else f"{quota} {period}"
        name = "cpu.cfs_quota_us"
    limit = text if isinstance(text, NoValue) else parse_cpu_limit(text)
    return _no_limit(f"{folder}/{name}") if limit is None else limit


def _no_limit(path: str) -> NoValue:
    return NoValue(MissingReason.NOT_SUPPORTED, f"/{path}: no limit")


def _read_usage(files: Files, into: ReadingsBuilder, mount: CgroupMount, path: str, *, is_leaf: bool) -> None:
    """CPU time of version 1, which may be a hierarchy of its own."""
    if mount.is_unified or not is_leaf:
        return
    folder = cgroup_folder(mount, path)
    nanoseconds = folder if isinstance(folder, NoValue) else files.number(f"{folder}/cpuacct.usage")
    seconds = nanoseconds if isinstance(nanoseconds, NoValue) else nanoseconds / 1_000_000_000
    into.add(CGROUP + _CPU_SECONDS, seconds, cgroup=path)


def _read_memory(files: Files, into: ReadingsBuilder, mount: CgroupMount, path: str, *, is_leaf: bool) -> None:
    names = ("memory_bytes", "memory_limit_bytes", "memory_events_total")
    folder = cgroup_folder(mount, path)
    if isinstance(folder, NoValue):
        into.miss([CGROUP + name for name in names], folder, cgroup=path)
        return
    used_file, limit_file = (
        ("memory.current", "memory.max") if mount.is_unified else ("memory.usage_in_bytes", "memory.limit_in_bytes")
    )
    limit = _read_bytes(files, f"{folder}/{limit_file}")
    if not is_leaf and isinstance(limit, NoValue):
        return
    into.add(CGROUP + "memory_limit_bytes", limit, cgroup=path)
    into.add(CGROUP + "memory_bytes", _read_bytes(files, f"{folder}/{used_file}"), cgroup=path)
    events = CGROUP + "memory_events_total"
    if not mount.is_unified:
        into.add(events, _read_bytes(files, f"{folder}/memory.failcnt"), cgroup=path, event="max")
        kills = files.fields(f"{folder}/memory.oom_control", parse_counts)["oom_kill"]
        into.add(events, kills, cgroup=path, event="oom_kill")
        return
    counts = files.fields(f"{folder}/memory.events", parse_counts)
    if counts.why_unread is not None:
        into.add(events, counts.why_unread, cgroup=path)
        return
    for event in _MEMORY_EVENTS:
        into.add(events, counts[event], cgroup=path, event=event)


def _read_bytes(files: Files, path: str) -> int | NoValue:
    limit = files.parse(path, parse_limit_bytes)
    return _no_limit(path) if limit is None else limit


def _read_cgroup_pressure(files: Files, into: ReadingsBuilder, folder: str, path: str) -> None:
    for resource in RESOURCES:
        lines = files.parse(f"{folder}/{resource}.pressure", parse_pressure)
        if isinstance(lines, NoValue):
            into.add(CGROUP + "pressure_seconds_total", lines, cgroup=path, resource=resource)
            continue
        for line in lines:
            into.add(CGROUP + "pressure_seconds_total", line.seconds, cgroup=path, resource=resource, share=line.share)


_READERS = {"cpu": _read_cpu, "cpuacct": _read_usage, "memory": _read_memory}


_OCTAL = re.compile(r"\\([0-7]{3})")
_USUAL_MOUNTS = (
    ("sys/fs/cgroup/cgroup.controllers", frozenset[str](), "/sys/fs/cgroup"),
    *((f"sys/fs/cgroup/{name}", frozenset({name}), f"/sys/fs/cgroup/{name}") for name in ("cpu", "cpuacct", "memory")),
)
"""A file that shows that it exists, its controllers, its mount point."""


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """A mounted hierarchy of cgroups.

    Attributes:
        controllers: of version 1; empty of version 2.
        root: the cgroup that the mount point shows.
        point: where it is mounted, from the root of the files.
    """

    controllers: frozenset[str]
    root: str
    point: str

    @property
    def is_unified(self) -> bool:
        """Whether it is version 2."""
        return not self.controllers


def parse_mounts(text: str) -> list[CgroupMount]:
    """The cgroup hierarchies of /proc/<pid>/mountinfo."""
    mounts = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if not dash or len(left) < 6 or len(right) < 3 or right[0] not in ("cgroup", "cgroup2"):
            continue
        # systemd's own has a name and no controller
        is_named = any(option.startswith("name=") for option in right[2].split(","))
        controllers = frozenset() if right[0] == "cgroup2" else frozenset(right[2].split(",")) - {"rw", "ro", "xattr"}
        if right[0] == "cgroup" and (is_named or not controllers):
            continue
        mounts.append(CgroupMount(controllers, _unescaped(left[3]), _unescaped(left[4])))
    return mounts


def parse_membership(text: str) -> dict[frozenset[str], str]:
    """The cgroup of a process in each hierarchy, by its controllers (none: version 2), of /proc/<pid>/cgroup."""
    paths = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/"):
            controllers = frozenset(parts[1].split(",")) if parts[1] else frozenset[str]()
            paths[controllers] = parts[2].removesuffix(" (deleted)")
    return paths


def cgroup_folder(mount: CgroupMount, path: str) -> str | NoValue:
    """The folder of a cgroup in a hierarchy, from the root of the files."""
    root = mount.root.rstrip("/")
    if "/../" in f"{path}/" or not f"{path}/".startswith(f"{root}/"):
        detail = f"cgroup {path} is outside of what is mounted at {mount.point}"
        return NoValue(MissingReason.NOT_SUPPORTED, detail)
    return (mount.point + path[len(root) :]).strip("/")


def cgroup_mounts(files: Files) -> list[CgroupMount]:
    """The hierarchies of the machine; those at the usual places where mountinfo cannot be read."""
    for process in ("1", "self") if files.is_mounted else ("self", "1"):
        text = files.read(f"proc/{process}/mountinfo")
        mounts = [] if isinstance(text, NoValue) else parse_mounts(text)
        if mounts:
            return mounts
    return [CgroupMount(controllers, "/", point) for file, controllers, point in _USUAL_MOUNTS if files.exists(file)]


def cgroup_hierarchy_of(
    mounts: Sequence[CgroupMount], membership: dict[frozenset[str], str], controller: str
) -> tuple[CgroupMount, str] | None:
    """The hierarchy of this controller and a process's cgroup in it; None where there is none.

    Version 1 comes first: on machines with both, its controllers limit the work.
    """
    for controllers, path in membership.items():
        if controller in controllers:
            for mount in mounts:
                if controller in mount.controllers:
                    return mount, path
    for mount in mounts:
        if mount.is_unified and frozenset() in membership:
            return mount, membership[frozenset()]
    return None


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
