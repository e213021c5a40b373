"""How much is moved and multiplied, and for how long?"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.workflow.preflight.device import Pace

_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one preflight.

    Attributes:
        copy_bytes: of a copy within the memory; far more than the GPU's caches hold.
        host_bytes, peer_bytes, all_reduce_bytes: of the other transfers.
        product_size: rows and columns of the matrices that are timed.
        checked_size, num_repeats: of those that are compared bit by bit, and how often.
        pace: for memory and products: long enough for clocks and power to settle.
        link_pace: for transfers, which heat nothing.
        both_ways: whether each pair of GPUs is measured in both directions.
        num_warm, num_runs: all-reduces.
    """

    copy_bytes: int
    host_bytes: int
    peer_bytes: int
    all_reduce_bytes: int
    product_size: int
    checked_size: int
    num_repeats: int
    pace: Pace
    link_pace: Pace
    both_ways: bool
    num_warm: int
    num_runs: int


FULL = Sizes(
    copy_bytes=2048 * _MIB,
    host_bytes=512 * _MIB,
    peer_bytes=512 * _MIB,
    all_reduce_bytes=1024 * _MIB,
    product_size=8192,
    checked_size=8192,
    num_repeats=100,
    pace=Pace(1.0, 3.0, 20, 2000),
    link_pace=Pace(0.1, 0.4, 8, 200),
    both_ways=True,
    num_warm=5,
    num_runs=20,
)
QUICK = Sizes(
    copy_bytes=1024 * _MIB,
    host_bytes=256 * _MIB,
    peer_bytes=256 * _MIB,
    all_reduce_bytes=256 * _MIB,
    product_size=8192,
    checked_size=4096,
    num_repeats=20,
    pace=Pace(0.2, 0.4, 8, 500),
    link_pace=Pace(0.02, 0.06, 4, 50),
    both_ways=False,
    num_warm=3,
    num_runs=10,
)
CPU = Sizes(
    copy_bytes=64 * _MIB,
    host_bytes=_MIB,
    peer_bytes=_MIB,
    all_reduce_bytes=4 * _MIB,
    product_size=256,
    checked_size=256,
    num_repeats=5,
    pace=Pace(0.05, 0.15, 5, 200),
    link_pace=Pace(0.05, 0.15, 5, 200),
    both_ways=False,
    num_warm=2,
    num_runs=10,
)
"""Small: what is tried there is this code, not the machine."""


def sizes_for(device_type: str, *, quick: bool) -> Sizes:
    """What to measure with."""
    return CPU if device_type == "cpu" else QUICK if quick else FULL
