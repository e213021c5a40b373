"""NCCL log reader: lines of a job's output, whatever else the job wrote, turned into typed events with file and line.

Launchers put ranks, times and addresses before NCCL's part of a line. One row of the pattern tables is one kind of
line, as NCCL 2.4 to 2.29, torch, nccl-tests and DeepSpeed write them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from stepscope.core.documents.nccl import (
    CardEvent,
    Cards,
    Channels,
    DirectMemory,
    FailedTransfer,
    Join,
    JoinSeconds,
    LogEvent,
    LogPlace,
    NcclTestBandwidth,
    NcclTestEnd,
    Network,
    NoInfiniBand,
    NoPlugin,
    RingPath,
    Rings,
    Setting,
    Shape,
    TimedOut,
    TopologyNode,
    TrainerTimes,
    Version,
    Warned,
)


def read_log(lines: Iterable[str], *, file: str) -> Iterator[LogEvent]:
    """Events of a log in their order; its lines may be of any length and encoding."""
    for number, line in enumerate(lines, 1):
        line = clean_line(line.rstrip("\n"))
        nccl_line = parse_nccl_line(line)
        if nccl_line is None:
            event = _first_match(OTHER_PATTERNS, line, LogPlace(file, number))
        else:
            event = _nccl_event(nccl_line, LogPlace(file, number, nccl_line.process))
        if event is not None:
            yield event


def _nccl_event(line: NcclLine, place: LogPlace) -> LogEvent | None:
    event = _first_match(NCCL_PATTERNS, line.text, place) or _first_match(OTHER_PATTERNS, line.text, place)
    return Warned(place, line.text) if event is None and line.level in ("WARN", "ABORT") else event


def _first_match(patterns: Iterable[Pattern], text: str, place: LogPlace) -> LogEvent | None:
    for pattern in patterns:
        if pattern.word in text:
            match = pattern.expression.search(text)
            event = pattern.event(place, match) if match is not None else None
            if event is not None:
                return event
    return None


_NCCL = re.compile(
    r"(?:(?P<host>[^\s:\[\]()<>]+):)?(?P<pid>\d+):\d+ \[-?\d+\] "
    r"(?:(?P<source>\S+:\d+) )?NCCL (?P<level>INFO|WARN|TRACE|VERSION|ABORT) (?P<text>.*)"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MAX_LINE_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class NcclLine:
    """One line of NCCL's: process, level and text."""

    process: str
    level: str
    text: str


def parse_nccl_line(line: str) -> NcclLine | None:
    """NCCL's part of a line; None where there is none."""
    if " NCCL " not in line:
        return None
    match = _NCCL.search(line)
    if match is None:
        return None
    return NcclLine(f"{match['host'] or ''}:{match['pid']}", match["level"], match["text"].rstrip())


def clean_line(line: str) -> str:
    """The line without terminal colours, cut to the length of the longest line that any pattern needs."""
    return _COLOUR.sub("", line[:_MAX_LINE_CHARACTERS]) if "\x1b" in line else line[:_MAX_LINE_CHARACTERS]


_Match = re.Match[str]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of line: its expression is tried only on lines with `word` in them."""

    word: str
    expression: re.Pattern[str]
    event: Callable[[LogPlace, _Match], LogEvent | None]


def _row(word: str, expression: str, event: Callable[[LogPlace, _Match], LogEvent | None]) -> Pattern:
    return Pattern(word, re.compile(expression), event)


def _cards(place: LogPlace, match: _Match) -> LogEvent | None:
    """ "[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:..": each has its number before it; joined ones are "={...}"."""
    cards = re.findall(r"\[\d+\]\s*([^\s;,\[\]={}]+)", match["cards"])
    return Cards(place, match["kind"], tuple(card.partition("<")[0] for card in cards)) if cards else None


def _trainer_times(place: LogPlace, match: _Match) -> LogEvent | None:
    parts = {}
    for part in match["parts"].split("|"):
        name, _, value = part.partition(":")
        try:
            parts[name.strip()] = float(value)
        except ValueError:
            return None
    return TrainerTimes(place, parts)


NCCL_PATTERNS: tuple[Pattern, ...] = (
    _row("NCCL version", r"NCCL version (\d\S*)", lambda place, m: Version(place, m[1])),
    _row("set by", r"(NCCL_\w+) set (?:by environment )?to (\S+?)\.?$", lambda place, m: Setting(place, m[1], m[2])),
    _row("No device found", r"NET/IB ?: No device found", lambda place, _: NoInfiniBand(place)),
    _row(
        "NET/Plugin",
        r"NET/Plugin ?: ?(?:Could not find|No plugin found|Failed to find ncclNetPlugin symbol)"
        r".*?(?:(lib[\w.-]+\.so)|$)",
        lambda place, m: NoPlugin(place, m[1] or "libnccl-net.so"),
    ),
    _row(": Using [", r"NET/(?P<kind>IB|Socket) ?: Using (?P<cards>.*)", _cards),
    _row("Using network", r"Using network (.+)", lambda place, m: Network(place, m[1].strip())),
    _row(
        "GPU Direct RDMA",
        r"NET/IB\w* ?: GPU Direct RDMA (Enabled|Disabled) for HCA \d+ '?([\w.-]+)",
        lambda place, m: DirectMemory(place, m[2], m[1] == "Enabled"),
    ),
    _row(
        "Init ",
        r"comm \S+ rank (\d+) nranks (\d+) cudaDev (-?\d+).*?commId (\S+) - Init (START|COMPLETE)",
        lambda place, m: Join(place, m[4], int(m[1]), int(m[2]), int(m[3]), m[5] == "COMPLETE"),
    ),
    _row(
        "splitCount",
        r"comm \S+ rank (\d+) nranks (\d+) cudaDev (-?\d+).*? splitCount (\d+) color (-?\d+).*?Init (START|COMPLETE)",
        lambda place, m: Join(place, f"split {m[4]} color {m[5]}", int(m[1]), int(m[2]), int(m[3]), m[6] == "COMPLETE"),
    ),
    _row(
        "Init COMPLETE",
        r"comm (\S+) rank (\d+) nranks (\d+) cudaDev (-?\d+).*- Init COMPLETE",
        lambda place, m: Join(place, "", int(m[2]), int(m[3]), int(m[4]), is_complete=True),
    ),
    _row(
        "Init timings",
        r"Init timings.*?rank (\d+) nranks (\d+) total (\d+\.\d+)",
        lambda place, m: JoinSeconds(place, int(m[1]), int(m[2]), float(m[3])),
    ),
    _row(
        "nNodes",
        r"comm \S+ rank (\d+) nRanks (\d+) nNodes (\d+) localRanks (\d+)",
        lambda place, m: Shape(place, int(m[1]), int(m[2]), int(m[3]), int(m[4])),
    ),
    _row(
        " via ",
        r"(?:Channel|Ring) \d+(?:/\d+)? ?: (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?(?: \[(?:send|receive)\])?"
        r" via (direct shared memory|NET/[^/]+/\S+|\S+(?: pointer)?)",
        lambda place, m: RingPath(place, int(m[1]), int(m[2]), "SHM" if m[3] == "direct shared memory" else m[3]),
    ),
    _row(
        "Connected all rings",
        r"Connected all rings, use ring PXN \d+ GDR (\d+)",
        lambda place, m: Rings(place, m[1] != "0"),
    ),
    _row(
        "coll channels",
        r"(\d+) coll channels, (?:\d+ collnet channels, )?(?:(\d+) nvls channels, )?\d+ p2p channels",
        lambda place, m: Channels(place, int(m[1]), int(m[2] or 0)),
    ),
    _row(
        "Got completion",
        r"Got completion (?:from peer (\S+) )?with (?:status=|error )(?:\w+\()?(\d+)\b.*? vendor[_ ]err[ =](\d+)"
        r"(?:.*? hca (\S+))?",
        lambda place, m: FailedTransfer(place, m[1] or "", int(m[2]), int(m[3]), m[4] or ""),
    ),
    _row(
        "Got async ",
        r"Got async (?:fatal |error )?event ?: (.+)",
        lambda place, m: CardEvent(place, m[1].strip()),
    ),
    _row("speed change", r"(speed change detected.*)", lambda place, m: CardEvent(place, m[1].strip())),
)
"""Of NCCL's own lines; a row whose event is None leaves the line to the next row."""

OTHER_PATTERNS: tuple[Pattern, ...] = (
    _row(
        "Watchdog caught",
        r"(?:\[rank(?P<all>\d+)\].*?)?(?:\[PG (?:ID \d+ PG GUID )?(?P<group>[^\s\]]+) )?"
        r"\[?\bRank (?P<own>\d+)\].*?"
        r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<number>\d+), OpType=(?P<kind>\w+).*"
        r"ran for (?P<ms>\d+) milliseconds",
        lambda place, m: TimedOut(
            place, int(m["all"] or m["own"]), int(m["number"]), m["kind"], int(m["ms"]), m["group"]
        ),
    ),
    _row(
        "Avg bus bandwidth",
        r"# Avg bus bandwidth\s*: (\d+(?:\.\d+)?)",
        lambda place, m: NcclTestBandwidth(place, float(m[1])),
    ),
    _row("test concluded", r"# Collective test concluded: (\w+)", lambda place, m: NcclTestEnd(place, m[1])),
    _row("time (ms) |", r"time \(ms\) \| (?P<parts>[^|:]+:.*)", _trainer_times),
    _row(
        "] - ",
        r"^(?P<indent>\s*)\+ (\w+)\[(\d+(?:\.\d+)?)\] - (\w+)/(\S+)",
        lambda place, m: TopologyNode(place, len(m["indent"].expandtabs()) + 1, m[2], float(m[3]), m[4], m[5]),
    ),
    _row("CPU/", r"^(CPU)/(\S+)", lambda place, m: TopologyNode(place, 0, "", 0.0, m[1], m[2])),
)
"""Of all other lines, and of topology behind NCCL's prefix."""
