"""Python API: runs, comparisons, dumps and metric history as pandas frames and plotly figures.

import stepscope
run = stepscope.load("runs/gpt-7b")
run.verdict.summary
run.breakdown(by="rank")
"""

from __future__ import annotations

try:
    import pandas as pd  # noqa: F401
except ModuleNotFoundError:
    raise ImportError('the Python API needs pandas: pip install "stepscope[notebook]"') from None

from stepscope.api.history import History, history
from stepscope.api.reports import (
    Report,
    compare,
    compare_memory,
    doctor,
    goodput,
    hang,
    health,
    memory,
    nccl,
    preflight,
    runs,
    status,
    top,
    trace_info,
)
from stepscope.api.run import Run, load

__all__ = [
    "History",
    "Report",
    "Run",
    "compare",
    "compare_memory",
    "doctor",
    "goodput",
    "hang",
    "health",
    "history",
    "load",
    "memory",
    "nccl",
    "preflight",
    "runs",
    "status",
    "top",
    "trace_info",
]
