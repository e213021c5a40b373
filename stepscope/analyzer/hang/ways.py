"""Which ranks went a way that none had gone before? Training repeats itself: who leaves its loop does something new.

A way is a call and the one before it: what they are, of groups of which meaning and how large. What any rank did before
counts, as groups of one meaning do the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from stepscope.core.flight_recorder import FlightDump, Operation

_Way = tuple[object, ...]


def strayed(dumps: Sequence[FlightDump], calls: Mapping[int, Operation], ranks: Iterable[int]) -> list[int]:
    """Those of the ranks whose call followed the one before it for the first time."""
    gone: Counter[_Way] = Counter()
    last: dict[int, _Way] = {}
    for dump in dumps:
        collectives = [call for call in dump.operations if not call.is_p2p]
        judged = calls.get(dump.rank)
        for before, call in pairwise(collectives):
            way = (*_kind(before), *_kind(call))
            if judged is not None and call.record == judged.record:
                last[dump.rank] = way
                break
            gone[way] += 1
    return sorted(rank for rank in ranks if rank in last and not gone[last[rank]])


def _kind(call: Operation) -> _Way:
    return call.description, call.name, call.input_sizes
