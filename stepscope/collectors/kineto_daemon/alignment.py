"""How do ranks start at the same step that hear of a capture seconds apart? Pure arithmetic, seconds throughout.

Each rank asks every 5 s by its own clock, and starts at the next multiple of M of its own count of steps. All start at
the same step when no multiple falls between the first rank's question and the last one's. So the text is laid out in
the longest pause between questions, and M is large against the time that the questions then take. How long a step
takes, no rank tells beforehand; the first attempt's traces do, and say whether the ranks did start together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

_FIRST_MULTIPLE = 8
_MOST_MULTIPLE = 1 << 16
_SHARE_OF_A_WINDOW = 0.1
"""That the questions may take of the time between two multiples, so how often an attempt goes apart at most; half of it
at each further attempt."""


def spread(polls: Sequence[float], interval: float) -> float:
    """From the first to the last of the polls, when asking begins in the longest pause between them.

    Args:
        polls: when each process asks, at any of its polls.
        interval: from one poll of a process to its next.
    """
    phases = sorted(poll % interval for poll in polls)
    pauses = [b - a for a, b in zip(phases, [*phases[1:], phases[0] + interval], strict=True)]
    return interval - max(pauses)


def is_time_to_offer(next_polls: Sequence[float], interval: float, slack: float) -> bool:
    """Whether the coming polls follow each other as closely as they ever do.

    Args:
        next_polls: when each process asks next.
        interval: as above.
        slack: by how much they may be further apart.
    """
    return max(next_polls) - min(next_polls) <= spread(next_polls, interval) + slack


def start_multiple(num_ranks: int, spread_seconds: float, step_seconds: float | None, num_failed: int = 0) -> int:
    """At which multiple of steps ranks should start: 1 for a rank alone, otherwise a power of two.

    Args:
        num_ranks: how many.
        spread_seconds: that their polls take.
        step_seconds: None while unknown.
        num_failed: attempts that went apart although it was known.
    """
    if num_ranks == 1:
        return 1
    if not step_seconds:
        return _FIRST_MULTIPLE
    steps = ceil(spread_seconds * 2**num_failed / _SHARE_OF_A_WINDOW / step_seconds)
    return min(max(2, 1 << (steps - 1).bit_length() if steps > 1 else 2), _MOST_MULTIPLE)


def steps_apart(starts_ns: Mapping[str, int], step_seconds: float) -> int:
    """By how many steps the earliest and the latest rank are apart; 0 when all traces are of the same steps.

    Args:
        starts_ns: the same event of each rank's trace, its first step's end, ns by the machine's clock.
        step_seconds: of a step.
    """
    return round((max(starts_ns.values()) - min(starts_ns.values())) / 1e9 / step_seconds)
