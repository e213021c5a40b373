"""Which ranks are named for something, of all that have a share in it?"""

from __future__ import annotations

from collections.abc import Mapping

CULPRIT_SHARE = 0.25
"""A rank is named from this share of the worst rank's contribution on."""


def culprits(contribution: Mapping[int, float]) -> list[int]:
    """The ranks to name, worst first.

    Args:
        contribution: by rank, in any unit.
    """
    worst = max(contribution.values(), default=0)
    named = [rank for rank, own in contribution.items() if own > 0 and own >= CULPRIT_SHARE * worst]
    return sorted(named, key=lambda rank: (-contribution[rank], rank))
