"""Processes as the kernel sees them: CPU time, memory, run-queue wait, I/O, context switches, and their state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepscope.collectors.host.files import Fields, Files, not_in_file
from stepscope.collectors.readings_builder import NoValue, ReadingsBuilder
from stepscope.core.metrics.readings import PROCESS, MissingReason

_SWITCHES = {"voluntary_ctxt_switches": "voluntary", "nonvoluntary_ctxt_switches": "involuntary"}
_IO = {"read_bytes": "read_bytes_total", "write_bytes": "written_bytes_total"}


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """/proc/<pid>/stat.

    Attributes:
        command: its name, at most 15 characters.
        parent, group: ids of its parent and its process group.
        num_major_faults, num_threads: as named.
        user_ticks, system_ticks: CPU time of all its threads.
        start_ticks: when it began, since boot.
    """

    command: str
    parent: int
    group: int
    num_major_faults: int
    user_ticks: int
    system_ticks: int
    num_threads: int
    start_ticks: int


_STAT_FIELDS = (1, 2, 9, 11, 12, 17, 19)
"""Places of the numbers in /proc/<pid>/stat, counted from 0 behind the command."""


def parse_process_stat(text: str) -> ProcessStat | None:
    """Read /proc/<pid>/stat, None where it is something else. A command may hold blanks and brackets."""
    before, bracket, after = text.rpartition(")")
    words = after.split()
    _, opening, command = before.partition("(")
    if not bracket or not opening:
        return None
    try:
        return ProcessStat(command, *(int(words[field]) for field in _STAT_FIELDS))
    except (ValueError, IndexError):
        return None


def parse_fields(text: str) -> dict[str, str]:
    """Read /proc/<pid>/status or io: texts by name."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def parse_run_delay(text: str) -> float | None:
    """Seconds that a thread waited for a CPU, of its schedstat; None where it is something else."""
    words = text.split()
    return int(words[1]) / 1_000_000_000 if len(words) == 3 and words[1].isascii() and words[1].isdecimal() else None


def read_process(
    files: Files, into: ReadingsBuilder, pid: int, *, ticks_per_second: float, cgroup: str
) -> dict[str, str] | None:
    """Read one process; its pid is that in the PID namespace of the files.

    Returns:
        Fields of /proc/<pid>/status, None where the process is not there.
    """
    stat = files.parse(f"proc/{pid}/stat", parse_process_stat)
    if stat is None or isinstance(stat, NoValue):
        detail = f"no process {pid} here: it ended, or is in another PID namespace (containers: hostPID)"
        into.add(PROCESS + "info", NoValue(MissingReason.GONE, detail), pid=pid)
        return None
    into.add(PROCESS + "info", 1, pid=pid, command=stat.command, cgroup=cgroup)
    into.add(PROCESS + "cpu_seconds_total", stat.user_ticks / ticks_per_second, pid=pid, mode="user")
    into.add(PROCESS + "cpu_seconds_total", stat.system_ticks / ticks_per_second, pid=pid, mode="system")
    into.add(PROCESS + "major_page_faults_total", stat.num_major_faults, pid=pid)
    into.add(PROCESS + "threads", stat.num_threads, pid=pid)
    path = f"proc/{pid}/schedstat"
    delay = files.parse(path, parse_run_delay)
    into.add(
        PROCESS + "run_queue_seconds_total", not_in_file(path, "three numbers") if delay is None else delay, pid=pid
    )
    io = files.fields(f"proc/{pid}/io", _parse_number_fields)
    for field, metric in _IO.items():
        into.add(PROCESS + metric, io[field], pid=pid)
    return _read_status(files, into, pid)


def _parse_number_fields(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in parse_fields(text).items() if value.isdecimal()}


def _read_status(files: Files, into: ReadingsBuilder, pid: int) -> dict[str, str]:
    path = f"proc/{pid}/status"
    resident, switches = PROCESS + "resident_memory_bytes", PROCESS + "context_switches_total"
    text = files.read(path)
    if isinstance(text, NoValue):
        into.miss([resident, switches], text, pid=pid)
        return {}
    fields, numbers = parse_fields(text), Fields(path, _parse_number_fields(text))
    size = fields.get("VmRSS", "").removesuffix(" kB").strip()
    into.add(resident, int(size) * 1024 if size.isdecimal() else not_in_file(path, "VmRSS: it is ending"), pid=pid)
    for field, kind in _SWITCHES.items():
        into.add(switches, numbers[field], pid=pid, kind=kind)
    return fields


def process_state(pid: int, *, proc: Path = Path("/proc")) -> str:
    """State of a process as the letter that ps shows (R, S, D, T, ...); empty when it has ended or is a zombie."""
    try:
        letter = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    return "" if letter in "ZX" else letter
