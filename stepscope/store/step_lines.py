"""What did each rank write of its steps? steps/rank{r}.jsonl of a run directory, one JSON object a line."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated

import msgspec

from stepscope.core.analysis import Notice
from stepscope.core.counting import counted
from stepscope.core.run_layout import STEPS_FOLDER
from stepscope.core.steps import RankSteps, Step
from stepscope.store.documents import is_figure

_NAME = re.compile(r"rank(\d{1,9})\.jsonl")
_Time = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_NOT_FIGURES = {
    "index",
    "start_ns",
    "end_ns",
    "data_wait_ns",
    "phases",
    "captured",
    "state",
    "non_finite",
    "anomalies",
    "attempt",
}


class _Anomaly(msgspec.Struct):
    kind: str


class _Line(msgspec.Struct):
    index: int
    start_ns: _Time
    end_ns: _Time
    data_wait_ns: _Time = 0
    phases: dict[str, _Time] = msgspec.field(default_factory=dict)
    captured: bool = False
    attempt: int = 1
    anomalies: list[str | _Anomaly] = msgspec.field(default_factory=list)
    non_finite: list[str] = msgspec.field(default_factory=list)


def read_run_steps(run_directory: Path) -> tuple[list[RankSteps], list[Notice]]:
    """All ranks' steps, and what could not be read. Nothing where the run has no steps.

    What a later start of the job does again replaces what any rank did before, also one that the job has no more.

    Raises:
        OSError: a file cannot be read.
    """
    told: dict[int, list[tuple[int, Step]]] = {}
    notices = []
    for path in sorted((run_directory / STEPS_FOLDER).glob("rank*.jsonl"), key=lambda path: (len(path.name), path)):
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        steps = told.setdefault(int(match[1]), [])
        unreadable = 0
        for text in path.read_bytes().split(b"\n")[:-1]:  # behind the last line's end stands what a kill cut short
            step = _step(text)
            if step is None:
                unreadable += 1
            else:
                steps.append(step)
        if unreadable:
            notices.append(
                Notice(
                    "unreadable_lines",
                    f"{path}: {counted(unreadable, 'line is no step and is', 'lines are no step and are')} left out",
                )
            )
    return _latest(told), notices


def _latest(told: dict[int, list[tuple[int, Step]]]) -> list[RankSteps]:
    """Of each rank's steps with their attempts, those that no later attempt of any rank has done again."""
    first: dict[int, int] = {}
    for attempt, step in (entry for steps in told.values() for entry in steps):
        first[attempt] = min(step.index, first.get(attempt, step.index))
    ends, end = {}, math.inf
    for attempt in sorted(first, reverse=True):
        ends[attempt], end = end, min(end, first[attempt])
    ranks = []
    for number, steps in told.items():
        rank = RankSteps(number)
        for attempt, step in steps:
            if step.index < ends[attempt]:
                rank.add(step)
        if rank.steps or not steps:
            ranks.append(rank)
    return ranks


def _step(text: bytes) -> tuple[int, Step] | None:
    """The attempt and the step that a line tells of."""
    try:
        line = msgspec.json.decode(text, type=_Line)
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    figures = {name: float(value) for name, value in document.items() if name not in _NOT_FIGURES and is_figure(value)}
    step = Step(
        index=line.index,
        start_ns=line.start_ns,
        end_ns=max(line.start_ns, line.end_ns),
        data_wait_ns=line.data_wait_ns,
        phases=line.phases,
        figures=figures,
        captured=line.captured,
        anomalies=[anomaly if isinstance(anomaly, str) else anomaly.kind for anomaly in line.anomalies],
        non_finite=line.non_finite,
    )
    return line.attempt, step
