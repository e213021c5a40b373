"""Which ranks are shown when there are too many for a picture?"""

from __future__ import annotations

from stepscope.core.analysis import Analysis, RankLedger


def most_different_ranks(analysis: Analysis, most: int) -> list[RankLedger]:
    """Up to `most` ranks, in order: all of them, else those whose ledgers differ most from the job's."""
    if len(analysis.ranks) <= most:
        return analysis.ranks

    def distance(rank: RankLedger) -> float:
        return sum(abs(rank.ledger.get(heading, 0.0) - share) for heading, share in analysis.ledger.items())

    return sorted(sorted(analysis.ranks, key=distance, reverse=True)[:most], key=lambda rank: rank.rank)
