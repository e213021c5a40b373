"""Steps in logs of frameworks that print a step and its seconds in one line: MaxText, and DeepSpeed's pipeline engine.

completed step: 49, seconds: 5.018, TFLOP/s/device: 107.127, Tokens/s/device: 6529.527, loss: 10.172
steps: 10 loss: 9.2318 iter time (s): 1.234 samples/sec: 6.482
"""

from __future__ import annotations

import re
from typing import NamedTuple

from stepscope.collectors.training_logs.rows import (
    Row,
    as_steps,
    by_attempt,
    is_plausible,
    num_before_first,
    number_at_start,
    usual_interval,
)
from stepscope.core.documents.steps import TrainingLog


class _Pattern(NamedTuple):
    source: str
    word: str
    expression: re.Pattern[str]


_PATTERNS = (
    _Pattern(
        "MaxText",
        "completed step",
        re.compile(
            r"completed step: ?(?P<step>\d{1,12}), seconds: ?(?P<seconds>[\d.]{1,20}).{0,300}?\bloss: ?(?P<loss>\S+)"
        ),
    ),
    _Pattern(
        "DeepSpeed",
        "iter time (s)",
        re.compile(r"steps: (?P<step>\d{1,12}) loss: (?P<loss>\S+) iter time \(s\): (?P<seconds>[\d.]{1,20})"),
    ),
)


class OneLineLog:
    """Collects the steps of a log line by line."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Row]] = {}

    def take(self, line: str) -> None:
        """Read the next line."""
        for source, word, expression in _PATTERNS:
            match = expression.search(line) if word in line else None
            seconds = number_at_start(match["seconds"]) if match is not None else None
            if match is None or seconds is None or not is_plausible(int(match["step"]), seconds * 1e3):
                continue
            loss = number_at_start(match["loss"])
            figures = {} if loss is None else {"loss": loss}
            self._rows.setdefault(source, []).append(Row(int(match["step"]), seconds * 1e3, figures=figures))

    def finish(self) -> TrainingLog | None:
        """The steps of the framework with most lines; None without any."""
        if not self._rows:
            return None
        source = max(self._rows, key=lambda one: len(self._rows[one]))
        attempts = list(by_attempt(self._rows[source]))
        interval = usual_interval(attempts)
        steps = []
        for attempt, rows in enumerate(attempts, 1):
            before = rows[0].index - num_before_first(rows[0].index, interval)
            for row in rows:
                steps.append(as_steps(row, max(row.index - before, 1), row.ms or 0.0, attempt))
                before = row.index
        return TrainingLog(source, steps)
