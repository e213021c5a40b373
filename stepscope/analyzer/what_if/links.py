"""What should each transfer take on the link it uses, which transfers are alike, which reduce gradients?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.call import Call
from stepscope.analyzer.alignment.call_words import P2P_KINDS
from stepscope.analyzer.collectives import link_of
from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.what_if.edge_blocks import Nodes
from stepscope.core.links import expected_seconds
from stepscope.trace.columns import NONE


def expected_transfers(views: Mapping[int, RankView]) -> Nanoseconds:
    """By communication, rank by rank: what it should take, or NONE: no size, no link known, a member without trace."""
    known: dict[tuple[tuple[int, ...], str, int | None], int] = {}
    expected = []
    for view in views.values():
        for call in view.calls:
            members = {peer for p in call.peers for peer in (p.source, p.destination)} or set(call.group or ())
            kind = "p2p" if call.kind in P2P_KINDS else call.kind
            key = tuple(sorted(members)), kind, call.num_bytes
            if key not in known:
                known[key] = _expected_ns(views, *key)
            expected.append(known[key])
    return np.array(expected, np.int64)


def _expected_ns(views: Mapping[int, RankView], members: tuple[int, ...], kind: str, num_bytes: int | None) -> int:
    if num_bytes is None or len(members) < 2 or not views.keys() >= set(members):
        return NONE
    link = link_of(views, members)
    return NONE if link is None else round(expected_seconds(link, kind, len(members), num_bytes) * 1e9)


def alike(calls_of_rank: Mapping[int, Sequence[Call]]) -> Nodes:
    """By communication, rank by rank, a number that those of the same group, kind and size share."""
    numbers: dict[tuple[object, ...], int] = {}
    result = []
    for calls in calls_of_rank.values():
        for call in calls:
            result.append(numbers.setdefault((call.group, call.kind, call.num_bytes), len(numbers)))
    return np.array(result, np.int64)


def reductions(calls_of_rank: Mapping[int, Sequence[Call]]) -> npt.NDArray[np.bool_]:
    """By communication, rank by rank, whether it sums gradients over data-parallel ranks within a step."""
    return np.array(
        [
            call.dimension == "dp" and call.kind in ("all_reduce", "reduce_scatter")
            for calls in calls_of_rank.values()
            for call in calls
        ],
        np.bool_,
    )
