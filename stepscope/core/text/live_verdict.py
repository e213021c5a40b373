"""Live verdict of a run as one line."""

from __future__ import annotations

from stepscope.core.documents.node import RunVerdict
from stepscope.core.text.verdict import BOTTLENECK, NO_BOTTLENECK, UNKNOWN


def live_verdict_line(one: RunVerdict, now_ns: int) -> str:
    """One line on a running job: its bottleneck, the step without it, and the verdict's age."""
    verdict = one.verdict
    head = UNKNOWN if verdict.bottleneck is None else BOTTLENECK if verdict.bottleneck else NO_BOTTLENECK
    fixed = verdict.fixed_step_ms if verdict.bottleneck else None
    gain = "" if fixed is None else f"; without it {fixed:,.1f} ms per step"
    age_seconds = max(now_ns - verdict.time_ns, 0) / 1e9
    return f"{verdict.run}  {head}  {verdict.summary or verdict.cause}{gain} ({age_seconds:.0f} s ago)"
