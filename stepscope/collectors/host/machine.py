"""Machine-wide counters: CPU time and load, memory and NUMA nodes, pressure (PSI), disks; lists of CPUs.

- `iowait` is idle time during disk waits. The kernel's counter of it may go back a little.
- `MemAvailable` is what programs can still get; free memory leaves out what caches hold (giampaolo/psutil#2604).
- Pressure stall information: "some" is time in which at least one thread waited, "full" in which all threads that were
  not idle did, so that no work was done.
- Only whole disks with hardware behind them: what partitions, dm and md devices count, a disk counts too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.collectors.host.files import Fields, Files, not_in_file
from stepscope.collectors.readings_builder import NoValue, ReadingsBuilder
from stepscope.core.metrics.readings import HOST, MissingReason

_CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""In the order of /proc/stat; `guest` follows there and is part of `user`."""
_STAT_COUNTS = {
    "ctxt": HOST + "context_switches_total",
    "processes": HOST + "processes_started_total",
    "procs_running": HOST + "processes_running",
    "procs_blocked": HOST + "processes_blocked",
    "btime": HOST + "boot_time_seconds",
}
_LOAD_WINDOWS = ("1m", "5m", "15m")


@dataclass(frozen=True, slots=True)
class CpuStat:
    """Content of /proc/stat.

    Attributes:
        num_cpus: CPUs online, each with a line.
        counts: other lines with one number, by name.
    """

    ticks: dict[str, int]
    num_cpus: int
    counts: dict[str, int]


def parse_cpu_stat(text: str) -> CpuStat:
    """Read /proc/stat. Malformed lines are skipped."""
    ticks: dict[str, int] = {}
    counts: dict[str, int] = {}
    num_cpus = 0
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name == "cpu":
            ticks = dict(zip(_CPU_MODES, _parse_numbers(rest), strict=False))
        elif name.startswith("cpu") and name[3:].isdecimal():
            num_cpus += 1
        elif name in _STAT_COUNTS and (numbers := _parse_numbers(rest)):
            counts[name] = numbers[0]
    return CpuStat(ticks, num_cpus, counts)


def _parse_numbers(text: str) -> list[int]:
    return [int(word) for word in text.split() if word.isascii() and word.isdecimal()]


def parse_load(text: str) -> tuple[float, ...]:
    """Load averages of the host over 1, 5 and 15 minutes; empty where the text is something else."""
    words = text.split()[:3]
    try:
        return tuple(float(word) for word in words) if len(words) == 3 else ()
    except ValueError:
        return ()


def read_cpu(files: Files, into: ReadingsBuilder, *, ticks_per_second: float) -> None:
    """Read the CPU times and the load of the host; `ticks_per_second` is USER_HZ."""
    seconds = HOST + "cpu_seconds_total"
    stat = files.parse("proc/stat", parse_cpu_stat)
    if isinstance(stat, NoValue):
        into.miss([seconds, HOST + "cpus", *_STAT_COUNTS.values()], stat)
    else:
        for mode in _CPU_MODES:
            ticks = stat.ticks.get(mode)
            into.add(seconds, not_in_file("proc/stat", mode) if ticks is None else ticks / ticks_per_second, mode=mode)
        into.add(HOST + "cpus", stat.num_cpus or not_in_file("proc/stat", "single CPUs"))
        _add_fields(into, Fields("proc/stat", stat.counts), _STAT_COUNTS)
    loads = files.parse("proc/loadavg", parse_load) or not_in_file("proc/loadavg", "three numbers")
    if isinstance(loads, NoValue):
        into.add(HOST + "load_average", loads)
        return
    for window, load in zip(_LOAD_WINDOWS, loads, strict=True):
        into.add(HOST + "load_average", load, window=window)


def _add_fields(into: ReadingsBuilder, fields: Fields[int], metrics: Mapping[str, str], *, times: int = 1) -> None:
    """Add a metric for each field, in units of `times`."""
    for name, metric in metrics.items():
        value = fields[name]
        into.add(metric, value if isinstance(value, NoValue) else value * times)


_MEMINFO_METRICS = {
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
_HUGE_PAGES = {"HugePages_Total": HOST + "huge_pages_total_bytes", "HugePages_Free": HOST + "huge_pages_free_bytes"}
_VMSTAT_METRICS = {
    "pgmajfault": HOST + "major_page_faults_total",
    "oom_kill": HOST + "oom_kills_total",
    "allocstall": HOST + "reclaim_stalls_total",
}
_SWAP_METRICS = {"pswpin": HOST + "swapped_in_bytes_total", "pswpout": HOST + "swapped_out_bytes_total"}
_MEMINFO_LINE = re.compile(r"\s*(?:Node\s+\d+\s+)?([A-Za-z0-9_()]+):\s*(\d+)( kB)?\s*", re.ASCII)


def parse_meminfo(text: str) -> dict[str, int]:
    """Read /proc/meminfo, or a NUMA node's: bytes by name, and numbers of pages where there is no unit."""
    matches = (_MEMINFO_LINE.fullmatch(line) for line in text.splitlines())
    return {match[1]: int(match[2]) * (1024 if match[3] else 1) for match in matches if match}


def parse_counts(text: str) -> dict[str, int]:
    """Read /proc/vmstat, or a NUMA node's numastat: numbers by name."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isascii() and pair[1].isdecimal()}


def read_machine_memory(files: Files, into: ReadingsBuilder, *, page_bytes: int) -> None:
    """Read the memory of the host."""
    meminfo = files.fields("proc/meminfo", parse_meminfo)
    _add_fields(into, meminfo, _MEMINFO_METRICS)
    huge_page_bytes = meminfo["Hugepagesize"]
    if isinstance(huge_page_bytes, NoValue):
        into.miss(_HUGE_PAGES.values(), huge_page_bytes)
    else:
        _add_fields(into, meminfo, _HUGE_PAGES, times=huge_page_bytes)
    vmstat = files.fields("proc/vmstat", _parse_vmstat)
    _add_fields(into, vmstat, _VMSTAT_METRICS)
    _add_fields(into, vmstat, _SWAP_METRICS, times=page_bytes)


def _parse_vmstat(text: str) -> dict[str, int]:
    """/proc/vmstat, with the sum of all zones' `allocstall_*` as `allocstall`."""
    counts = parse_counts(text)
    stalls = [count for field, count in counts.items() if field == "allocstall" or field.startswith("allocstall_")]
    return {**counts, "allocstall": sum(stalls)} if stalls else counts


def read_numa_memory(files: Files, into: ReadingsBuilder) -> None:
    """Read the memory of each NUMA node of the host."""
    folder = "sys/devices/system/node"
    total, free, misses = (
        HOST + f"numa_{name}" for name in ("memory_total_bytes", "memory_free_bytes", "misses_total")
    )
    names = files.names(folder)
    if isinstance(names, NoValue):
        into.miss([total, free, misses], names)
        return
    for node in (name[4:] for name in names if re.fullmatch(r"node\d+", name, re.ASCII)):
        meminfo = files.fields(f"{folder}/node{node}/meminfo", parse_meminfo)
        into.add(total, meminfo["MemTotal"], node=node)
        into.add(free, meminfo["MemFree"], node=node)
        into.add(misses, files.fields(f"{folder}/node{node}/numastat", parse_counts)["numa_miss"], node=node)


RESOURCES = ("cpu", "memory", "io")
_PRESSURE_LINE = re.compile(r"(some|full) avg10=(\d+\.\d+) avg60=(\d+\.\d+) avg300=(\d+\.\d+) total=(\d+)", re.ASCII)
_PRESSURE_WINDOWS = ("10s", "60s", "300s")
_PSI_OFF = NoValue(MissingReason.NOT_SUPPORTED, "the kernel has no PSI (before 4.20), or it is off: boot with psi=1")


@dataclass(frozen=True, slots=True)
class Pressure:
    """One line of a pressure file of the host.

    Attributes:
        ratios: share of the last 10, 60 and 300 s.
        seconds: total since boot.
    """

    share: str
    ratios: tuple[float, float, float]
    seconds: float


def parse_pressure(text: str) -> list[Pressure]:
    """Read a pressure file of /proc or of a cgroup. Malformed lines are skipped."""
    matches = (_PRESSURE_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return [
        Pressure(match[1], (_ratio(match[2]), _ratio(match[3]), _ratio(match[4])), int(match[5]) / 1_000_000)
        for match in matches
        if match
    ]


def _ratio(percent: str) -> float:
    return round(float(percent) / 100, 6)  # two decimals of a percentage: 0.6985, not 0.6984999999999999


def read_pressure(files: Files, into: ReadingsBuilder) -> None:
    """Read the pressure (PSI) of the host."""
    total, ratio = HOST + "pressure_seconds_total", HOST + "pressure_ratio"
    for resource in RESOURCES:
        lines = files.parse(f"proc/pressure/{resource}", parse_pressure) or _PSI_OFF
        if isinstance(lines, NoValue):
            why = _PSI_OFF if lines.reason is MissingReason.NOT_SUPPORTED else lines
            into.miss([total, ratio], why, resource=resource)
            continue
        for line in lines:
            into.add(total, line.seconds, resource=resource, share=line.share)
            for window, value in zip(_PRESSURE_WINDOWS, line.ratios, strict=True):
                into.add(ratio, value, resource=resource, share=line.share, window=window)


_SECTOR_BYTES = 512
"""Of /proc/diskstats, whatever the disk's own."""
_DISK_METRICS = tuple(
    HOST + f"disk_{name}"
    for name in (
        *("reads_total", "read_bytes_total", "read_seconds_total"),
        *("writes_total", "written_bytes_total", "write_seconds_total"),
        *("in_flight", "busy_seconds_total"),
    )
)
_NOT_A_DISK = re.compile(
    r"(loop|ram|zram|dm-|md|sr|fd|nbd)\d+.*|(sd|vd|xvd|hd)[a-z]+\d+|(nvme\d+n|mmcblk)\d+p\d+", re.ASCII
)
"""Names that are not whole disks, where /sys/block cannot be read."""


def parse_diskstats(text: str) -> list[tuple[str, tuple[float, ...]]]:
    """Read /proc/diskstats of any kernel since 2.6 (11 numbers a disk, then more). Other lines are skipped.

    Returns:
        Name of each disk, and its values in the order of `_DISK_METRICS`.
    """
    disks: list[tuple[str, tuple[float, ...]]] = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 14 or not all(word.isascii() and word.isdecimal() for word in words[3:14]):
            continue
        reads, _, read_sectors, read_ms, writes, _, written_sectors, write_ms, in_flight, busy_ms, _ = map(
            int, words[3:14]
        )
        read = reads, read_sectors * _SECTOR_BYTES, read_ms / 1000
        written = writes, written_sectors * _SECTOR_BYTES, write_ms / 1000
        disks.append((words[2], (*read, *written, in_flight, busy_ms / 1000)))
    return disks


def read_disks(files: Files, into: ReadingsBuilder) -> None:
    """Read all disks of the host."""
    disks = files.parse("proc/diskstats", parse_diskstats)
    if isinstance(disks, NoValue):
        into.miss(_DISK_METRICS, disks)
        return
    blocks = files.names("sys/block")
    for name, values in disks:
        if isinstance(blocks, NoValue):
            is_disk = _NOT_A_DISK.fullmatch(name) is None
        else:
            is_disk = files.exists(f"sys/block/{name.replace('/', '!')}/device")
        for metric, value in zip(_DISK_METRICS, values, strict=True) if is_disk else ():
            into.add(metric, value, device=name)


_CPU_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


def parse_cpu_list(text: str) -> frozenset[int] | None:
    """CPUs of the kernel's "0-3,8,64-67"; none of an empty text; None where it is not a list."""
    cpus: set[int] = set()
    words = [word.strip() for word in text.strip().split(",")] if text.strip() else []
    for word in words:
        match = _CPU_RANGE.fullmatch(word)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            return None
        cpus.update(range(first, last + 1))
    return frozenset(cpus)
