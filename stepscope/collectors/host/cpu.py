"""What did the CPUs do, and how many threads want them?

`iowait` is idle time while a disk was waited for. The kernel's counter of it may go back a little.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.collectors.host.files import Files, Unread
from stepscope.collectors.host.gathering import Gathering
from stepscope.core.host_metrics import HOST

_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""In the order of /proc/stat; `guest` follows there and is part of `user`."""
_COUNTS = {
    "ctxt": HOST + "context_switches_total",
    "processes": HOST + "processes_started_total",
    "procs_running": HOST + "processes_running",
    "procs_blocked": HOST + "processes_blocked",
    "btime": HOST + "boot_time_seconds",
}
_WINDOWS = ("1m", "5m", "15m")


@dataclass(frozen=True, slots=True)
class Stat:
    """/proc/stat.

    Attributes:
        ticks: of all CPUs, by mode.
        num_cpus: lines of single CPUs: those online.
        counts: the other lines with one number, by name.
    """

    ticks: dict[str, int]
    num_cpus: int
    counts: dict[str, int]


def parse_stat(text: str) -> Stat:
    """Read /proc/stat. Lines that make no sense are passed over."""
    ticks: dict[str, int] = {}
    counts: dict[str, int] = {}
    num_cpus = 0
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name == "cpu":
            ticks = dict(zip(_MODES, _numbers(rest), strict=False))
        elif name.startswith("cpu") and name[3:].isdecimal():
            num_cpus += 1
        elif name in _COUNTS and (numbers := _numbers(rest)):
            counts[name] = numbers[0]
    return Stat(ticks, num_cpus, counts)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split() if word.isascii() and word.isdecimal()]


def parse_load(text: str) -> tuple[float, ...]:
    """Load averages over 1, 5 and 15 minutes; empty where the text is something else."""
    words = text.split()[:3]
    try:
        return tuple(float(word) for word in words) if len(words) == 3 else ()
    except ValueError:
        return ()


def read_cpu(files: Files, into: Gathering, *, ticks_per_second: float) -> None:
    """Read the CPUs' times and the load.

    Args:
        files: of the machine.
        into: where it goes.
        ticks_per_second: USER_HZ.
    """
    text = files.read("proc/stat")
    if isinstance(text, Unread):
        into.miss([HOST + "cpu_seconds_total", HOST + "cpus", *_COUNTS.values()], text)
    else:
        stat = parse_stat(text)
        for mode in _MODES:
            if mode in stat.ticks:
                into.add(HOST + "cpu_seconds_total", stat.ticks[mode] / ticks_per_second, mode=mode)
            else:
                into.miss_line(HOST + "cpu_seconds_total", "proc/stat", mode, mode=mode)
        if stat.num_cpus:
            into.add(HOST + "cpus", stat.num_cpus)
        else:
            into.miss_line(HOST + "cpus", "proc/stat", "single CPUs")
        for name, metric in _COUNTS.items():
            if name in stat.counts:
                into.add(metric, stat.counts[name])
            else:
                into.miss_line(metric, "proc/stat", name)
    text = files.read("proc/loadavg")
    if isinstance(text, Unread):
        into.miss([HOST + "load_average"], text)
        return
    loads = parse_load(text)
    if not loads:
        into.miss_line(HOST + "load_average", "proc/loadavg", "three numbers")
    for window, load in zip(_WINDOWS, loads, strict=False):
        into.add(HOST + "load_average", load, window=window)
