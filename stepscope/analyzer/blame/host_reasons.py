"""The host was late, or blocked: on what?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stepscope.analyzer.rank_view import RankView
from stepscope.core.analysis import Evidence
from stepscope.core.causes import Reason

REASON_NAMED_FROM = 0.20
"""A reason is named from this share of its cause's time on, on the ranks to blame; the largest always is."""


def why_host_is_late(late: Sequence[RankView]) -> tuple[list[Reason], list[Evidence]]:
    """By what was open on the host's threads while the device idled for them, and in which phase of the script."""
    time, phases = Counter[Reason](), Counter[str]()
    for view in late:
        time.update(view.host_work.late_ns)
        phases.update(view.host_work.phases_ns)
    reasons, evidence = _named(time, "late_host_time")
    total = time.total()
    told = [
        Evidence(f"share_of_late_host_time_in_phase: {phase}", share, "ratio", REASON_NAMED_FROM)
        for phase, spent in phases.most_common()
        if (share := spent / total) >= REASON_NAMED_FROM
    ]
    return reasons, [*evidence, *told]


def why_blocked(blocked: Sequence[RankView]) -> tuple[list[Reason], list[Evidence]]:
    """By the kind of call that each idle span followed, with how often a step makes such calls."""
    time, calls = Counter[Reason](), Counter[Reason]()
    for view in blocked:
        time.update(view.host_work.blocked_ns)
        calls.update(view.host_work.num_blocking_calls)
    reasons, evidence = _named(time, "blocked_time")
    num_steps = sum(len(view.window.boundary_ns) for view in blocked)
    counts = [Evidence(f"blocking_calls_a_step: {reason}", calls[reason] / num_steps, "calls") for reason in reasons]
    return reasons, [*evidence, *counts]


def _named(time: Counter[Reason], of_what: str) -> tuple[list[Reason], list[Evidence]]:
    total = time.total()
    shares = [(reason, nanoseconds / total) for reason, nanoseconds in time.most_common() if total]
    named = [(reason, share) for place, (reason, share) in enumerate(shares) if not place or share >= REASON_NAMED_FROM]
    return (
        [reason for reason, _ in named],
        [Evidence(f"share_of_{of_what}: {reason}", share, "ratio", REASON_NAMED_FROM) for reason, share in named],
    )
