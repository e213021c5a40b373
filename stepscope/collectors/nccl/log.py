"""NCCL log reader: lines of a job's output, whatever else the job wrote, turned into typed events with file and line.

Launchers put ranks, times and addresses before NCCL's part of a line. One row of the pattern tables is one kind of
line, as NCCL 2.4 to 2.30, RCCL, torch, nccl-tests and DeepSpeed write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from sys import intern
from typing import NamedTuple

from stepscope.collectors.nccl.job_lines import job_patterns, topology_patterns
from stepscope.collectors.nccl.pattern import Match, Pattern, first_match, pattern, without_time
from stepscope.collectors.nccl.torn_rows import TornRows
from stepscope.core.documents.nccl_facts import (
    CardEvent,
    Cards,
    Channels,
    DirectMemory,
    Driver,
    FailedTransfer,
    Join,
    JoinSeconds,
    LogEvent,
    LogPlace,
    Network,
    NoInfiniBand,
    NoPeerAccess,
    NoPlugin,
    RingPath,
    Rings,
    Setting,
    Shape,
    Version,
    Warned,
)

_LAST_ERROR = "Last error:"
LOG_MARKS = ("CCL", " WARN ", _LAST_ERROR)
"""A line of NCCL's, or of torch's about NCCL, has one of these."""


def read_log(lines: Iterable[tuple[int, str]], *, file: str) -> Iterator[LogEvent]:
    """Events of a log in their order; its lines, each with its number, may be of any length and encoding."""
    return LogReader(file).read(lines)


class LogReader:
    """Reader of the lines of one log."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._rows = TornRows()
        self._before_last_error: str | None = None

    def is_idle(self, number: int) -> bool:
        """Whether the line of this number has nothing to do with those before."""
        return self._before_last_error is None and not self._rows.awaits(number)

    def read(self, lines: Iterable[tuple[int, str]]) -> Iterator[LogEvent]:
        """Events of lines with their numbers."""
        file, rows = self._file, self._rows
        for number, raw_line in lines:
            row, line = rows.feed(number, clean_line(raw_line.rstrip("\r\n")))
            if row is not None and (event := first_match(job_patterns(row), row, file=file, number=number)) is not None:
                yield event
            if self._before_last_error is not None and line.strip():
                # torch repeats NCCL's last warning, which may be its only trace: NCCL_DEBUG is not set by default
                yield Warned(LogPlace(file, number), line.removeprefix(self._before_last_error).strip())
                self._before_last_error = None
                continue
            nccl_line = parse_nccl_line(line)
            if nccl_line is not None:
                event = _nccl_event(nccl_line, file, number)
            elif _LAST_ERROR in line:
                self._before_last_error, event = line.partition(_LAST_ERROR)[0], None
            else:
                event = first_match(job_patterns(line), line, file=file, number=number)
            if event is not None:
                yield event


def _nccl_event(line: NcclLine, file: str, number: int) -> LogEvent | None:
    text, process, thread = line.text, line.process, line.thread
    event = first_match(NCCL_PATTERNS, text, file=file, number=number, process=process, thread=thread)
    if event is None and (patterns := topology_patterns(text)):
        event = first_match(patterns, text, file=file, number=number, process=process, thread=thread)
    is_warning = event is None and line.level in ("WARN", "ABORT")
    return Warned(LogPlace(file, number, process, thread), text) if is_warning else event


_LEVELS = "(?P<level>INFO|WARN|TRACE|VERSION|ABORT) (?P<text>.*)"
_NCCL = re.compile(
    r"(?:(?P<host>[^\s:\[\]()<>]+):)?(?P<pid>\d+):(?P<tid>\d+) \[-?\d+\] (?:\S+:\d+ )?(?:\([^()]*\) )?"
    r"(?:[NR]CCL )?" + _LEVELS
)
"""NCCL 2.2 wrote the level alone."""
_MARK = " NCCL "
_NCCL_WITHOUT_PROCESS = re.compile(r"(?P<before>.*?)(?P<device>\[\d+\] )?(?:\S+:\d+ )?[NR]CCL " + _LEVELS)
_BEFORE_NCCL = re.compile(r"\[\S*|\S*\]|\(\S*\)|\d[\d:.,/TZ+-]*|\||\S+[:>]|std\w+|[A-Z]")
"""Words that a launcher puts before a line."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MAX_LINE_CHARACTERS = 4096


class NcclLine(NamedTuple):
    """One line of NCCL's: process, level, text and thread."""

    process: str
    level: str
    text: str
    thread: str = ""


def parse_nccl_line(line: str) -> NcclLine | None:
    """NCCL's part of a line, also of one whose host and process were taken out; None where there is none."""
    if "CCL " not in line and " WARN " not in line:
        return None
    place = line.find(_MARK)
    if place > 0:
        end = line.find(" ", place + len(_MARK)) + 1
        head = _parse_head(line[:end])
        if head is not None:
            return NcclLine(head.process, head.level, line[end:].rstrip(), head.thread)
    match = _NCCL.search(line)
    if match is not None:
        return _of_process(match)
    match = _NCCL_WITHOUT_PROCESS.match(line)
    if match is None or not all(map(_BEFORE_NCCL.fullmatch, match["before"].split())):
        return None  # a sentence about NCCL
    return NcclLine((match["device"] or "").strip(), match["level"], match["text"].rstrip())


@lru_cache(maxsize=1024)
def _parse_head(head: str) -> NcclLine | None:
    """A line up to NCCL's text, without any; None where what follows may decide what the line is."""
    match = _NCCL.search(head)
    return None if match is None or match["text"] or "(" in head else _of_process(match)


def _of_process(match: Match) -> NcclLine:
    process = intern(f"{match['host'] or ''}:{match['pid']}")
    return NcclLine(process, match["level"], match["text"].rstrip(), intern(match["tid"]))


def clean_line(line: str) -> str:
    """The line without terminal colours and the time at its beginning, cut to the longest that any pattern needs."""
    return without_time(without_colours(line[:_MAX_LINE_CHARACTERS]))


def without_colours(text: str) -> str:
    """The text without terminal colours."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def _cards(place: LogPlace, match: Match) -> LogEvent | None:
    """ "[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:..": each has its number before it; joined ones are "={...}"."""
    cards = re.findall(r"\[\d+\]\s*([^\s;,\[\]={}]+)", match["cards"])
    return Cards(place, match["kind"], tuple(card.partition("<")[0] for card in cards)) if cards else None


def _seconds_by_part(parts: str) -> dict[str, float]:
    """ "kernels 0.25, alloc 0.86" -> {"kernels": 0.25, "alloc": 0.86}."""
    return {name: float(seconds) for name, seconds in re.findall(r"([a-z]\w*) (\d+\.\d+)", parts)}


NCCL_PATTERNS: tuple[Pattern, ...] = (
    pattern(
        " via ",  # first: most lines
        r"(?:Channel|Ring) \d+(?:/\d+)? ?: (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?(?: \[(?:send|receive)\])?"
        r" via (direct shared memory|NET/[^/]+/\S+|\S+(?: pointer)?)",
        lambda place, m: RingPath(place, int(m[1]), int(m[2]), "SHM" if m[3] == "direct shared memory" else m[3]),
    ),
    pattern("CCL version", r"[NR]CCL version ?:? ?(\d\S*)", lambda place, m: Version(place, m[1])),
    pattern("cudaDriverVersion", r"cudaDriverVersion (\d+)", lambda place, m: Driver(place, int(m[1]))),
    pattern("set ", r"(NCCL_\w+) set (?:by environment )?to (\S.*?)\.?$", lambda place, m: Setting(place, m[1], m[2])),
    pattern("reset to NCCL_", r"reset to (NCCL_\w+)=(\S+)", lambda place, m: Setting(place, m[1], m[2])),
    pattern(
        "environment variable to",  # by a network plugin
        r"Setting (NCCL_\w+) environment variable to (\S+)",
        lambda place, m: Setting(place, m[1], m[2]),
    ),
    pattern("No device found", r"NET/IB ?: No device found", lambda place, _: NoInfiniBand(place)),
    pattern(
        "libibverbs",
        r"Failed to open libibverbs",
        lambda place, _: NoInfiniBand(place, "libibverbs.so cannot be opened"),
    ),
    pattern(
        "NET/Plugin",
        r"NET/Plugin ?: ?(?:Could not find|No plugin found|Failed to find ncclNetPlugin symbol)"
        r".*?(?:(lib[\w.-]+\.so)|$)",
        lambda place, m: NoPlugin(place, m[1] or "libnccl-net.so"),
    ),
    pattern(": Using [", r"NET/(?P<kind>IB|Socket) ?: Using (?P<cards>.*)", _cards),
    pattern(
        "Bootstrap",
        r"Bootstrap ?: Using (?:\[0\] ?)?([^\s:<]+)",
        lambda place, m: Cards(place, "Bootstrap", (m[1],)),
    ),
    pattern("Using ", r"Using (?:network|internal [Nn]etwork) (\S.*)", lambda place, m: Network(place, m[1].strip())),
    pattern(
        "GPU Direct RDMA",
        r"NET/IB\w* ?: GPU Direct RDMA (Enabled|Disabled) for HCA \d+ '?([\w.-]+)",
        lambda place, m: DirectMemory(place, m[2], m[1] == "Enabled"),
    ),
    pattern(
        "P2P is disabled between connected",
        r"P2P is disabled between connected GPUs (\d+) and (\d+)",
        lambda place, m: NoPeerAccess(place, int(m[1]), int(m[2])),
    ),
    pattern(
        "Init ",
        r"comm \S+ rank (\d+) nranks (\d+) cudaDev (-?\d+).*?commId (\S+) - Init (START|COMPLETE)",
        lambda place, m: Join(place, m[4], int(m[1]), int(m[2]), int(m[3]), m[5] == "COMPLETE"),
    ),
    pattern(
        "Count ",
        r"comm \S+ rank (\d+) nranks (\d+) cudaDev (-?\d+).*? (?:split|child)Count (\d+) color (-?\d+)"
        r".*?Init (START|COMPLETE)",
        lambda place, m: Join(place, f"split {m[4]} color {m[5]}", int(m[1]), int(m[2]), int(m[3]), m[6] == "COMPLETE"),
    ),
    pattern(
        "Init COMPLETE",
        r"comm (\S+) rank (\d+) nranks (\d+) cudaDev (-?\d+).*- Init COMPLETE",
        lambda place, m: Join(place, "", int(m[2]), int(m[3]), int(m[4]), is_complete=True),
    ),
    pattern(
        "Init timings",
        r"Init timings.*?rank (\d+) nranks (\d+) total (\d+\.\d+)(?: \((.*))?",
        lambda place, m: JoinSeconds(place, int(m[1]), int(m[2]), float(m[3]), _seconds_by_part(m[4] or "")),
    ),
    pattern(
        "nNodes",
        r"comm \S+ rank (\d+) nRanks (\d+) nNodes (\d+) localRanks (\d+)",
        lambda place, m: Shape(place, int(m[1]), int(m[2]), int(m[3]), int(m[4])),
    ),
    pattern(
        "Connected all rings",
        r"Connected all rings, use ring PXN \d+ GDR (\d+)",
        lambda place, m: Rings(place, m[1] != "0"),
    ),
    pattern(
        "coll channels",
        r"(\d+) coll channels, (?:\d+ collnet channels, )?(?:(\d+) nvls channels, )?\d+ p2p channels",
        lambda place, m: Channels(place, int(m[1]), int(m[2] or 0)),
    ),
    pattern(
        "coll channels:",  # RCCL
        r"coll channels:(\d+) .*?(?:nvls channels:(\d+))?, p2p channels:",
        lambda place, m: Channels(place, int(m[1]), int(m[2] or 0)),
    ),
    pattern(
        "Got completion",
        r"Got completion (?:from peer (\S+) )?with (?:status=|error )(?:\w+\()?(\d+)\b.*? vendor[_ ]err[ =](\d+)"
        r"(?:.*? hca (\S+))?",
        lambda place, m: FailedTransfer(place, m[1] or "", int(m[2]), int(m[3]), m[4] or ""),
    ),
    pattern(
        "async ",
        r"(?:Got (?:non-fatal )?async (?:fatal |error )?event|async fatal event(?: on [^:]*)?) ?: ?(.+?)(?:\(\d+\))?$",
        lambda place, m: CardEvent(place, m[1].strip()),
    ),
    pattern("speed change", r"(speed change detected.*)", lambda place, m: CardEvent(place, m[1].strip())),
)
"""Of NCCL's own lines; a row whose event is None leaves the line to the next row."""
