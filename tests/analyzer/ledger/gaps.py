"""The smallest trace with idle time: one gap, [100, 300) us."""

from __future__ import annotations

from tests.analyzer.build import MAIN, TraceBuilder


def gap_trace(*, launch: int | None = 290, launch_end: int | None = None, thread: int = MAIN) -> TraceBuilder:
    """Two kernels of one step; the second, launched at `launch`, ends the gap. Earlier work runs until the first."""
    trace = TraceBuilder()
    trace.step(5, 0, 1000)
    trace.kernel(0, 50)
    trace.operator("aten::mm", 9, 12)
    trace.kernel(50, 100, launch=10)
    trace.kernel(300, 400, launch=launch, launch_end=launch_end, thread=thread)
    return trace
