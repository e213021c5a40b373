"""Lines of a job's output that other programs write: torch, nccl-tests, DeepSpeed; and NCCL's topology dump."""

from __future__ import annotations

import re
from math import isfinite

from stepscope.collectors.nccl.pattern import TIME, Match, Pattern, pattern
from stepscope.collectors.nccl.torn_rows import TYPES
from stepscope.core.documents.nccl_facts import (
    BenchmarkBegun,
    Benchmarked,
    BenchmarkFailed,
    BenchmarkRank,
    BenchmarkRow,
    CallFailed,
    GroupProgress,
    LogEvent,
    LogPlace,
    Measured,
    OutOfBounds,
    TimedOut,
    TopologyNode,
    TrainerTimes,
    Version,
    Warned,
    WatchdogStuck,
)

_JOB_RANK = re.compile(r"\[rank(\d+)\]")
_OWN_RANK = re.compile(r"\[(?:PG (?:ID \d+ PG GUID )?(?P<group>[^\s\]]+) )?Rank (?P<rank>\d+)\]")


def _speaker(match: Match) -> tuple[int, str | None] | None:
    """Rank of the process that wrote a line of torch's, and the process group it is about; None without a rank.

    torch writes the rank within the group in brackets of its own, the job's rank at the beginning of the line.
    """
    before = match.string[: match.start()]
    job_rank, own_ranks = _JOB_RANK.search(before), list(_OWN_RANK.finditer(before))
    if not own_ranks:
        return None
    rank = int(job_rank[1] if job_rank is not None else own_ranks[-1]["rank"])
    return rank, next((one["group"] for one in own_ranks if one["group"]), None)


def _timed_out(place: LogPlace, match: Match) -> LogEvent | None:
    speaker = _speaker(match)
    if speaker is None:
        return None
    rank, group = speaker
    smaller, larger = sorted(int(match[name] or 0) for name in ("input", "output"))
    is_by_rank = ("GATHER" in match["kind"] or "SCATTER" in match["kind"]) and smaller and larger % smaller == 0
    return TimedOut(
        place,
        rank,
        int(match["number"]) if match["number"] else None,
        match["kind"],
        int(match["ms"]),
        group,
        larger // smaller if is_by_rank and larger > smaller else None,
    )


def _progress(place: LogPlace, match: Match) -> LogEvent | None:
    speaker = _speaker(match)
    if speaker is None:
        return None
    numbers = [int(match[name] or -1) for name in ("enqueued", "completed")]
    enqueued, completed = (number if number >= 0 else None for number in numbers)
    failed = match["failed"] or match["failed_before"]
    return GroupProgress(place, *speaker, int(failed) if failed else None, enqueued, completed)


def _stuck(place: LogPlace, match: Match) -> LogEvent:
    job_rank = _JOB_RANK.search(match.string[: match.start()])
    return WatchdogStuck(place, None if job_rank is None else int(job_rank[1]), int(match[1]))


_LAST_CALLS = (
    r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)"
)

_OF_RANKS: tuple[Pattern, ...] = (
    pattern(
        "Watchdog caught",
        r"Watchdog caught collective operation timeout: WorkNCCL\((?:SeqNum=(?P<number>\d+), )?"
        r"OpType=(?P<kind>\w+)(?:, NumelIn=(?P<input>\d+), NumelOut=(?P<output>\d+))?.*?"
        r"ran for (?P<ms>\d+) milliseconds",
        _timed_out,
    ),
    pattern(
        "ast enqueued",
        r"(?:failure detected by watchdog at work sequence id: (?P<failed>\d+) PG status: "
        r"|(?:Timeout at NCCL work|detected by watchdog at work): (?P<failed_before>\d+), |dump signal.*?)"
        + _LAST_CALLS,
        _progress,
    ),
    pattern("dump signal", r"dump signal(?P<failed>)(?P<failed_before>)(?P<enqueued>)(?P<completed>)", _progress),
    pattern(
        " Pid ",
        r"Rank +(\d+) (?:Group +\d+ )?Pid +\d+ on +(\S+) device +\d+ \[[^\]]*\] (\S.*)",
        lambda place, m: BenchmarkRank(place, int(m[1]), m[2], m[3].strip()),
    ),
)
"""Of torch and nccl-tests, with the number of the rank that each is about."""

_OF_TORCH: tuple[Pattern, ...] = (
    pattern("watchdog got stuck", r"watchdog got stuck for (\d+) seconds", _stuck),
    pattern(
        "NCCL error in:",
        r"NCCL error in: ?\S+? (?P<error>[^,(]+?)(?: \(run with[^)]*\))?"
        r"(?:, NCCL version (?P<version>\d[\d.]*\d))?\.?$",
        lambda place, m: CallFailed(place, m["error"], m["version"] or ""),
    ),
)

_HINTS = (
    ("socket has", r"(The client socket has .*|The server socket has failed to .*)"),
    ("shared memory", r"((?:Bus error|insufficient shared memory|unable to allocate shared memory).*)"),
    ("undefined symbol: nccl", r"(undefined symbol: nccl\w+)"),
)
"""Lines of torch that tell the cause of what NCCL reports; the analysis names it."""


_ROW_WORD = "  "
_NUMBERS_OF_A_TABLE = 4
"""Time, algorithm bandwidth, bus bandwidth, wrong values; with times of each iteration twice as many."""


def _benchmark_row(place: LogPlace, match: Match) -> LogEvent | None:
    words = match["rest"].split()
    if len(words) % _NUMBERS_OF_A_TABLE == 1:
        del words[0]  # the root
    width = len(words) // 2 if len(words) in (8, 16) else len(words)
    if width not in (4, 8):
        return None
    tables = [words[begin : begin + _NUMBERS_OF_A_TABLE] for begin in range(0, len(words), width)]
    try:
        times = [(float(table[0]), float(table[2])) for table in tables]
    except ValueError:
        return None
    if not all(isfinite(number) for pair in times for number in pair):
        return None
    wrong = [int(table[3]) for table in tables if table[3].isdecimal()]
    (microseconds, bus_gbs), *in_place = times
    return BenchmarkRow(
        place,
        int(match["bytes"]),
        match["type"],
        "" if match["op"] in (None, "none") else match["op"],
        microseconds,
        bus_gbs,
        in_place[0][0] if in_place else None,
        in_place[0][1] if in_place else None,
        sum(wrong) if wrong else None,
    )


def _version_of_code(place: LogPlace, match: Match) -> LogEvent:
    """22807 is 2.28.7; before 2.9 the digits were 2803."""
    code = int(match[1])
    major = 10_000 if code >= 10_000 else 1_000
    return Version(place, f"{code // major}.{code % major // 100}.{code % 100}")


_BEFORE_ROW = r"[^>:|)\n]{0,60}+[>:|)]++ ?"
_FIRST_OF_ROW = rf"\s*+\d++ ++\d++ ++(?:{TYPES}) "
ROW_IN_TEXT = re.compile(rf"\n(?:{TIME})?+(?:\[\d+\])?+(?:{_FIRST_OF_ROW}|{_BEFORE_ROW}{_FIRST_OF_ROW})")
"""Beginning of a line with a row of nccl-tests or its first part, behind the end of the line before."""

_OF_BENCHMARKS: tuple[Pattern, ...] = (
    pattern(
        _ROW_WORD,
        rf"^(?:{_BEFORE_ROW})?\s*(?P<bytes>\d+) +\d+ +(?P<type>{TYPES}) +(?:(?P<op>[a-z]+) +)?(?P<rest>[-\d.].*)$",
        _benchmark_row,
    ),
    pattern(
        ": Test ",
        r"(?:^|[\s>:])([^\s:]+): Test (?:(?:NCCL|CUDA) failure (\S+:\d+) '(.*?)[/ ]*'|timeout \((\d+)s\))",
        lambda place, m: BenchmarkFailed(place, m[1], f"{m[3]} ({m[2]})" if m[2] else f"no progress for {m[4]} s"),
    ),
    pattern("Out of bounds", r"Out of bounds values *: (\d+)", lambda place, m: OutOfBounds(place, int(m[1]))),
    pattern(
        "Avg bus bandwidth",
        r"Avg bus bandwidth *: (\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?: +(FAILED))?",
        lambda place, m: Measured(place, float(m[1]), bool(m[2])),
    ),
)

_COMMENTS_OF_BENCHMARKS: tuple[Pattern, ...] = (
    pattern("nccl-library=", r"nccl-library=(\d{4,6})\b", _version_of_code),
    pattern("test starting", r"# Collective test starting: (\S+)", lambda place, m: BenchmarkBegun(place, m[1])),
    pattern("minBytes", r"nThread \d+ nGpus \d+ minBytes \d+", lambda place, _: BenchmarkBegun(place, "")),
    pattern("test concluded", r"# Collective test concluded: (\w+)", lambda place, m: Benchmarked(place, m[1])),
)


def _trainer_times(place: LogPlace, match: Match) -> LogEvent | None:
    parts = {}
    for part in match["parts"].split("|"):
        name, _, value = part.partition(":")
        try:
            parts[name.strip()] = float(value)
        except ValueError:
            return None
    return TrainerTimes(place, parts)


_OF_TOPOLOGIES: tuple[Pattern, ...] = (
    pattern(
        "] - ",
        r"^(?P<indent>\s*)\+ (\w+)\[(\d+(?:\.\d+)?)\] - (\w+)/(\S+)",
        lambda place, m: TopologyNode(place, len(m["indent"].expandtabs()) + 1, m[2], float(m[3]), m[4], m[5]),
    ),
    pattern("CPU/", r"^(CPU)/(\S+)", lambda place, m: TopologyNode(place, 0, "", 0.0, m[1], m[2])),
)
_BEGINNINGS_OF_TOPOLOGIES = ("+ ", "CPU/")

_OF_ALL: tuple[Pattern, ...] = (
    *_OF_TORCH,
    *(pattern(word, text, lambda place, m: Warned(place, m[1].strip())) for word, text in _HINTS),
    *_OF_BENCHMARKS,
    pattern("CCL version", r"[NR]CCL version (\d[\w.+-]*)$", lambda place, m: Version(place, m[1])),
    pattern("time (ms) |", r"time \(ms\) \| (?P<parts>[^|:]+:.*)", _trainer_times),
)


_RANK_WORD, _COMMENT_WORD = "Rank ", "#"
JOB_MARKS = (
    _RANK_WORD,
    _COMMENT_WORD,
    *_BEGINNINGS_OF_TOPOLOGIES,
    *(one.word for one in _OF_ALL if one.word != _ROW_WORD),
)
"""A line that matches a pattern has one of these, or is a row of nccl-tests."""


def topology_patterns(text: str) -> tuple[Pattern, ...]:
    """Patterns of NCCL's topology dump, behind its prefix or alone, for a line that may be of one."""
    return _OF_TOPOLOGIES if text.lstrip().startswith(_BEGINNINGS_OF_TOPOLOGIES) else ()


def job_patterns(line: str) -> tuple[Pattern, ...]:
    """Patterns that a line which is not NCCL's own may match; most lines of a job match none."""
    patterns = topology_patterns(line) or _OF_ALL
    if _RANK_WORD in line:
        patterns = (*_OF_RANKS, *patterns)
    return (*_COMMENTS_OF_BENCHMARKS, *patterns) if _COMMENT_WORD in line else patterns
