"""Step times from torchtitan's structured logs: events and spans of every rank as JSON lines.

    {output_dir}/structured_logs/{source}.global_rank_{rank}.{time}-{random}.jsonl

A line has `step`, `time_us` (since the epoch) and `log_type_name`. A span of name n writes n_start, and n_end with its
length in ms as `value`; scalars are `metric_value` with `event_name` and `value`. A step begins with the first line
that carries its number. (torchtitan b5bcd76, torchtitan/observability/structured_logger.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepscope.core.documents.run_directory import RankSteps, Step
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Notice

FOLDER = "structured_logs"

_NAME = re.compile(r"(?P<source>.+)\.global_rank_(?P<rank>\d{1,9})\.(?P<started>[^.]+)\.jsonl")
_DATA_SPAN = "fetching_batch"
_END = "_end"
_SCALAR = "metric_value"
_MAX_TIME_NS = 2**62
_MAX_NUMBER = 1e15


def read_torchtitan_steps(output_directory: Path) -> tuple[list[RankSteps], list[Notice]]:
    """Steps of each rank in torchtitan's logs, and notices about lines that cannot be read.

    Raises:
        OSError: a file cannot be read.
    """
    folder = output_directory if output_directory.name == FOLDER else output_directory / FOLDER
    ranks: dict[int, RankSteps] = {}
    notices = []
    named = [(match, path) for path in folder.glob("*.jsonl") if (match := _NAME.fullmatch(path.name))]
    for match, path in sorted(named, key=lambda entry: entry[0]["started"]):
        lines, unreadable = _lines(path)
        if unreadable:
            skipped = counted(unreadable, "line is not an event and is", "lines are not events and are")
            notices.append(Notice("unreadable_lines", f"{path}: {skipped} left out"))
        rank = ranks.setdefault(int(match["rank"]), RankSteps(int(match["rank"])))
        for step in _steps(lines):
            rank.add(step)
    return [ranks[number] for number in sorted(ranks)], notices


def _lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Lines that belong to a step, and the number of unreadable ones; the last line may be incomplete."""
    lines, unreadable = [], 0
    *whole, _ = path.read_bytes().split(b"\n")
    for text in whole:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict) or not _is_count(line.get("time_us")):
            unreadable += 1
        elif _is_count(line.get("step")):
            lines.append(line)
    return lines, unreadable


def _steps(lines: Iterable[dict[str, Any]]) -> list[Step]:
    """Steps in their order; the last one ends with its last line."""
    by_step: dict[int, list[dict[str, Any]]] = {}
    for line in lines:
        by_step.setdefault(line["step"], []).append(line)
    begun = sorted(by_step, key=lambda index: _earliest(by_step[index]))
    steps = []
    for place, index in enumerate(begun):
        own = by_step[index]
        start_ns = _earliest(own)
        latest_ns = max(line["time_us"] for line in own) * 1000
        end_ns = _earliest(by_step[begun[place + 1]]) if place + 1 < len(begun) else latest_ns
        scalars = [line for line in own if line.get("log_type_name") == _SCALAR]
        numbers = {str(line.get("event_name")): _number(line.get("value")) for line in scalars}
        phases, figures = _spans(own), {name: value for name, value in numbers.items() if value is not None}
        data_wait_ns = phases.pop(_DATA_SPAN, 0)
        steps.append(Step(index, start_ns, end_ns, data_wait_ns, phases, figures))
    return steps


def _earliest(lines: list[dict[str, Any]]) -> int:
    return min(int(line["time_us"]) for line in lines) * 1000


def _spans(lines: Iterable[dict[str, Any]]) -> dict[str, int]:
    """ns by span; spans of the same name add up."""
    spans: dict[str, int] = {}
    for line in lines:
        kind, milliseconds = str(line.get("log_type_name")), _number(line.get("value"))
        if kind.endswith(_END) and milliseconds is not None and milliseconds >= 0:
            name = kind.removesuffix(_END)
            spans[name] = spans.get(name, 0) + round(milliseconds * 1e6)
    return spans


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_TIME_NS // 1000


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MAX_NUMBER
    return float(value) if is_number else None  # comparisons with NaN and infinity are false
