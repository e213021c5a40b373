"""Compute kernels that a waiting collective slowed down: how long each takes beside one that does not wait.

The kernels of a collective that waits for another rank spin on some of the GPU's multiprocessors, and what computes
meanwhile has to do without them: matrix products of DDP jobs on two H200s took up to twice as long. A profiler makes
one rank late, so that the others wait in captured steps as they do not in the unprofiled ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stepscope.trace.columns import KernelLaunch


class KernelPlace(NamedTuple):
    """What like compute kernels of other steps and ranks have in common.

    Attributes:
        place: among the kernels of this name and launch in its step.
        number: of these kernels in the step, so that ranks are compared only where they do the same.
    """

    name: str
    launch: KernelLaunch | None
    place: int
    number: int


class Span(NamedTuple):
    """Span of work as recorded; `like` of compute kernels alone."""

    start_ns: int
    end_ns: int
    like: KernelPlace | None


def kernel_places(
    names: Sequence[str], launches: Sequence[KernelLaunch | None], steps: Sequence[int]
) -> list[KernelPlace]:
    """The places of compute kernels in order of launch, by their names, launches and steps."""
    kinds = list(zip(steps, names, launches, strict=True))
    numbers, so_far = Counter(kinds), Counter[tuple[int, str, KernelLaunch | None]]()
    places = []
    for kind in kinds:
        places.append(KernelPlace(*kind[1:], so_far[kind], numbers[kind]))
        so_far[kind] += 1
    return places


def unslowed_ns(
    ranks: Sequence[Sequence[Span]], collectives: Sequence[Sequence[int]], transfer_ns: Sequence[int]
) -> list[list[int]]:
    """By rank and work, its duration; of a compute kernel during which a collective waited, at most the median of its
    like, on any rank, during which none did.

    Args:
        collectives: by rank, places of the collectives among its work, which all ranks have in the same order.
        transfer_ns: how long each of them takes once all ranks have entered it; before that it waits.
    """
    slowed = [_is_slowed(spans, of_rank, transfer_ns) for spans, of_rank in zip(ranks, collectives, strict=True)]
    alike: dict[KernelPlace, list[int]] = defaultdict(list)
    for spans, flags in zip(ranks, slowed, strict=True):
        for span, is_slowed in zip(spans, flags, strict=True):
            if span.like is not None and not is_slowed:
                alike[span.like].append(span.end_ns - span.start_ns)
    usual = {like: int(np.median(durations)) for like, durations in alike.items()}
    return [
        [
            min(span.end_ns - span.start_ns, usual[span.like])
            if is_slowed and span.like in usual
            else span.end_ns - span.start_ns
            for span, is_slowed in zip(spans, flags, strict=True)
        ]
        for spans, flags in zip(ranks, slowed, strict=True)
    ]


def _is_slowed(spans: Sequence[Span], collectives: Sequence[int], transfer_ns: Sequence[int]) -> list[bool]:
    """By work, whether it is a compute kernel during which a collective waits."""
    waits = sorted(
        (spans[place].start_ns, spans[place].end_ns - taken_ns)
        for place, taken_ns in zip(collectives, transfer_ns, strict=True)
    )
    starts = np.array([start for start, _ in waits], np.int64)
    latest = np.maximum.accumulate(np.array([end for _, end in waits], np.int64)) if waits else starts
    begun = np.searchsorted(starts, [span.end_ns for span in spans])  # waits that began before it had ended
    return [
        span.like is not None and number > 0 and int(latest[number - 1]) > span.start_ns
        for span, number in zip(spans, begun.tolist(), strict=True)
    ]
