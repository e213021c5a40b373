"""Where does each micro-batch's forward and backward run, by the marks a trace carries?"""

from __future__ import annotations

import re

import numpy as np

from stepscope.analyzer.ledger.steps import Window
from stepscope.analyzer.rank_view import MicroBatch
from stepscope.trace.columns import NONE, Category, TraceColumns

_STAGE_MARK = re.compile(r"^PP:(\d+)([FB])(\d+)$")
"""Written by torch's multi-stage schedules, and by the reference workload for all."""
_PLAIN_MARK = re.compile(r"^(Forward|Backward) (\d+)$")
"""Written by torch's GPipe, which does not name the stage."""


def marked_micro_batches(trace: TraceColumns, lane: int, window: Window) -> list[MicroBatch]:
    """The marks on the training loop's thread inside the window, by start; stage NONE where the mark does not tell."""
    rows = trace.rows_of(Category.USER_ANNOTATION)
    rows = rows[(trace.lane[rows] == lane) & (trace.start_ns[rows] >= window.start_ns)]
    rows = rows[trace.end_ns[rows] <= window.end_ns]
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    staged, plain = [], []
    for row in rows.tolist():
        name = trace.names[int(trace.name[row])]
        start, end = int(trace.start_ns[row]), int(trace.end_ns[row])
        if match := _STAGE_MARK.match(name):
            staged.append(MicroBatch(match.group(2) == "F", int(match.group(1)), int(match.group(3)), start, end))
        elif match := _PLAIN_MARK.match(name):
            plain.append(MicroBatch(match.group(1) == "Forward", NONE, int(match.group(2)), start, end))
    return staged or plain
