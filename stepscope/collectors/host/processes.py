"""Processes as the kernel sees them: CPU time, memory, run-queue wait, I/O, context switches, and their state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepscope.collectors.host.files import Files, HostReadings, Unread
from stepscope.core.metrics.host import PROCESS
from stepscope.core.metrics.readings import MissingReason

_STAT_METRICS = ("cpu_seconds_total", "major_page_faults_total", "threads")
_SWITCHES = {"voluntary_ctxt_switches": "voluntary", "nonvoluntary_ctxt_switches": "involuntary"}
_IO = {"read_bytes": "read_bytes_total", "write_bytes": "written_bytes_total"}


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """/proc/<pid>/stat.

    Attributes:
        command: its name, at most 15 characters.
        user_ticks, system_ticks: of all its threads.
        num_major_faults, num_threads: as named.
    """

    command: str
    user_ticks: int
    system_ticks: int
    num_major_faults: int
    num_threads: int


def parse_process_stat(text: str) -> ProcessStat | None:
    """Read /proc/<pid>/stat, None where it is something else. A command may hold blanks and brackets."""
    before, bracket, after = text.rpartition(")")
    words = after.split()
    _, opening, command = before.partition("(")
    if not bracket or not opening or len(words) < 18:
        return None
    try:
        return ProcessStat(command, int(words[11]), int(words[12]), int(words[9]), int(words[17]))
    except ValueError:
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
    files: Files, into: HostReadings, pid: int, *, ticks_per_second: float, cgroup: str
) -> dict[str, str] | None:
    """Read one process.

    Args:
        files: of the machine.
        into: where it goes.
        pid: of the process, in the PID namespace of the files.
        ticks_per_second: USER_HZ.
        cgroup: its cgroup, empty where it is not known.

    Returns:
        Its status, None where the process is not there.
    """
    text = files.read(f"proc/{pid}/stat")
    stat = None if isinstance(text, Unread) else parse_process_stat(text)
    if stat is None:
        detail = f"no process {pid} here: it ended, or is in another PID namespace (containers: hostPID)"
        into.miss([PROCESS + "info"], Unread(MissingReason.GONE, detail), pid=pid)
        return None
    into.add(PROCESS + "info", 1, pid=pid, command=stat.command, cgroup=cgroup)
    into.add(PROCESS + "cpu_seconds_total", stat.user_ticks / ticks_per_second, pid=pid, mode="user")
    into.add(PROCESS + "cpu_seconds_total", stat.system_ticks / ticks_per_second, pid=pid, mode="system")
    into.add(PROCESS + "major_page_faults_total", stat.num_major_faults, pid=pid)
    into.add(PROCESS + "threads", stat.num_threads, pid=pid)
    text = files.read(f"proc/{pid}/schedstat")
    delay = None if isinstance(text, Unread) else parse_run_delay(text)
    if delay is not None:
        into.add(PROCESS + "run_queue_seconds_total", delay, pid=pid)
    elif isinstance(text, Unread):
        into.miss([PROCESS + "run_queue_seconds_total"], text, pid=pid)
    else:
        into.miss_line(PROCESS + "run_queue_seconds_total", f"proc/{pid}/schedstat", "three numbers", pid=pid)
    _read_io(files, into, pid)
    return _read_status(files, into, pid)


def _read_io(files: Files, into: HostReadings, pid: int) -> None:
    text = files.read(f"proc/{pid}/io")
    if isinstance(text, Unread):
        into.miss([PROCESS + name for name in _IO.values()], text, pid=pid)
        return
    fields = parse_fields(text)
    for field, metric in _IO.items():
        if fields.get(field, "").isdecimal():
            into.add(PROCESS + metric, int(fields[field]), pid=pid)
        else:
            into.miss_line(PROCESS + metric, f"proc/{pid}/io", field, pid=pid)


def _read_status(files: Files, into: HostReadings, pid: int) -> dict[str, str]:
    text = files.read(f"proc/{pid}/status")
    resident, switches = PROCESS + "resident_memory_bytes", PROCESS + "context_switches_total"
    if isinstance(text, Unread):
        into.miss([resident, switches], text, pid=pid)
        return {}
    fields = parse_fields(text)
    size = fields.get("VmRSS", "").removesuffix(" kB").strip()
    if size.isdecimal():
        into.add(resident, int(size) * 1024, pid=pid)
    else:
        into.miss_line(resident, f"proc/{pid}/status", "VmRSS: it is ending", pid=pid)
    for field, kind in _SWITCHES.items():
        if fields.get(field, "").isdecimal():
            into.add(switches, int(fields[field]), pid=pid, kind=kind)
        else:
            into.miss_line(switches, f"proc/{pid}/status", field, pid=pid, kind=kind)
    return fields


def process_state(pid: int, *, proc: Path = Path("/proc")) -> str:
    """Its letter as ps shows it: R, S, D, T, ...; empty when it has ended or is a zombie."""
    try:
        letter = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    return "" if letter in "ZX" else letter
