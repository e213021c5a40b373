"""Private pools: what is free in them is not for other tensors, and no advice about pieces helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.documents.memory import OomCause, PrivatePool
from tests.analyzer.memory.snapshots import GIB, MIB, report_of
from tests.collectors.fake_allocator import Allocator

_GRAPHS, _OTHER = (1, 0), (2, 0)
_CAPTURE = 7
"""A CUDA stream that is captured."""


def _job() -> Allocator:
    """62 GiB allocated, and 14 of a graph's pool free again."""
    allocator = Allocator()
    allocator.segment(0, 62 * GIB)
    allocator.alloc(0, 62 * GIB, "forward")
    for number in range(14):
        allocator.segment((100 + number) * GIB, GIB, _GRAPHS, _CAPTURE)
        allocator.alloc((100 + number) * GIB, GIB, "forward")
    for number in range(14):
        allocator.free((100 + number) * GIB)
    return allocator


def test_a_graph_s_pool_holds_what_the_optimizer_cannot_get(tmp_path: Path) -> None:
    """pytorch#121932."""
    allocator = _job()
    allocator.fail(2 * GIB, 700 * MIB, "optimizer")
    report = report_of(allocator, tmp_path)
    assert report.oom is not None
    assert (report.oom.cause, report.oom.phase) == (OomCause.PRIVATE_POOLS, "optimizer")
    assert report.oom.unreachable_bytes == 14 * GIB
    assert report.oom.evidence == [
        "asked for 2.00 GiB: 62.00 GiB allocated, 14.00 GiB more reserved, 700.00 MiB free on the GPU",
        "14.00 GiB of it are free in 1 private pool (CUDA graphs): tensors outside of them get none of it",
    ]
    assert report.private_pools == [PrivatePool(_GRAPHS, 14 * GIB, 0, 14 * GIB, 14)]
    assert (report.fragmentation.inactive_bytes, report.fragmentation.private_pools_bytes) == (14 * GIB, 14 * GIB)
    assert report.fragmentation.in_used_segments_bytes == 0
    assert report.remedies[0].change.startswith("free memory of CUDA graphs")
    assert report.remedies[0].saved_bytes == 14 * GIB
    assert not any("expandable_segments" in remedy.change for remedy in report.remedies)


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"pool_id": (0, 0)}, OomCause.PRIVATE_POOLS),
        ({"pool_id": list(_GRAPHS)}, OomCause.FRAGMENTATION),
        ({"stream": _CAPTURE}, OomCause.FRAGMENTATION),  # torch up to 2.11 does not say which pool
        ({"stream": _CAPTURE, "pool_id": (0, 0)}, OomCause.PRIVATE_POOLS),
        ({"stream": 99}, OomCause.PRIVATE_POOLS),
        ({"pool_id": _OTHER}, OomCause.PRIVATE_POOLS),
    ],
)
def test_the_pool_of_the_request_counts(more: dict[str, object], cause: OomCause, tmp_path: Path) -> None:
    allocator = _job()
    allocator.fail(2 * GIB, 700 * MIB, "forward", **more)
    oom = report_of(allocator, tmp_path).oom
    assert oom is not None
    assert oom.cause is cause
    assert oom.unreachable_bytes == (14 * GIB if cause is OomCause.PRIVATE_POOLS else 0)


def test_a_capture_cannot_get_what_is_free_in_another_pool(tmp_path: Path) -> None:
    allocator = _job()
    allocator.segment(200 * GIB, GIB, _OTHER, _CAPTURE)
    allocator.alloc(200 * GIB, GIB, "forward")
    allocator.fail(2 * GIB, 700 * MIB, "forward", stream=_CAPTURE)
    allocator.free(200 * GIB)  # by the exception
    oom = report_of(allocator, tmp_path).oom
    assert oom is not None
    assert (oom.cause, oom.unreachable_bytes) == (OomCause.PRIVATE_POOLS, 14 * GIB)
    assert oom.evidence[1] == "14.00 GiB of it are free in other pools than the request's, which is private"


def test_pieces_of_the_shared_pool_are_still_fragmentation(tmp_path: Path) -> None:
    allocator = _job()
    allocator.segment(300 * GIB, 5 * GIB)
    allocator.alloc(302 * GIB, GIB, "forward")
    allocator.fail(3 * GIB, 700 * MIB, "forward")
    report = report_of(allocator, tmp_path)
    assert report.oom is not None
    assert report.oom.cause is OomCause.FRAGMENTATION
    assert report.oom.evidence[1].startswith("14.00 GiB of it are free in 1 private pool")
    assert report.oom.evidence[2] == "the largest unused piece is 2.00 GiB"
    assert (report.remedies[0].change[:19], report.remedies[0].saved_bytes) == ("PYTORCH_CUDA_ALLOC_", 4 * GIB)


def test_too_little_in_private_pools_is_no_cause(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.segment(0, 62 * GIB)
    allocator.alloc(0, 62 * GIB, "forward")
    allocator.segment(100 * GIB, GIB, _GRAPHS)
    allocator.fail(4 * GIB, 700 * MIB, "forward")
    oom = report_of(allocator, tmp_path).oom
    assert oom is not None
    assert oom.cause is OomCause.CAPACITY


def test_the_largest_piece_is_that_of_the_failure_and_not_of_the_end(tmp_path: Path) -> None:
    """The exception frees tensors before the snapshot is taken."""
    allocator = Allocator()
    allocator.segment(0, 10 * GIB)
    for number in range(10):
        allocator.alloc(number * GIB, GIB // 2, "forward")
    allocator.fail(2 * GIB, 0, "forward")
    for number in range(10):
        allocator.free(number * GIB)
    oom = report_of(allocator, tmp_path).oom
    assert oom is not None
    assert oom.evidence[-1] == "the largest unused piece is 512.00 MiB"
