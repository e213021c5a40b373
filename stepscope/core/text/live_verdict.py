"""Live verdict of a run as one line."""

from __future__ import annotations

from stepscope.core.protocol.verdicts import LiveVerdict
from stepscope.core.text.verdict import BOTTLENECK, NO_BOTTLENECK, UNKNOWN


def live_verdict_line(verdict: LiveVerdict, now_ns: int) -> str:
    """One line on a running job: its bottleneck, the step without it, and the verdict's age."""
    head = UNKNOWN if verdict.bottleneck is None else BOTTLENECK if verdict.bottleneck else NO_BOTTLENECK
    fixed = verdict.fixed_step_ms if verdict.bottleneck else None
    gain = "" if fixed is None else f"; without it {fixed:,.1f} ms per step"
    return f"{head}  {verdict.summary or verdict.cause}{gain} ({_age(max(now_ns - verdict.time_ns, 0) / 1e9)} ago)"


def _age(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 36_000 else f"{seconds / 3600:,.0f} h"
