"""How well do GPUs reach each other: each pair by itself, and all of them together?"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepscope.core.preflight import CheckResult, Outcome
from stepscope.workflow.preflight import expectations
from stepscope.workflow.preflight.expectations import Expectation
from stepscope.workflow.preflight.gpus import MeasuredGpu
from stepscope.workflow.preflight.judging import judge_failure, judge_rate, with_wrong
from stepscope.workflow.preflight.sizes import Sizes
from stepscope.workflow.preflight.workers import Failure, FailureKind, Reply, Unsupported, Worker, ask, ask_all

_BYTES = "bytes/s"
_MOST_RESTARTS = 3
"""Of the process that copies between GPUs, once a pair has ended it."""


def measure_peers(
    gpus: Sequence[MeasuredGpu],
    worker: Worker | None,
    restart: Callable[[], Worker],
    sizes: Sizes,
    seconds: float,
) -> list[CheckResult]:
    """Copy between each two GPUs, one pair after the other.

    Args:
        gpus: at least two.
        worker: a process that sees them in this order; None where there is none yet. It is closed here.
        restart: starts such a process.
        sizes: how much.
        seconds: that a pair may take.
    """
    results = []
    worker = worker or restart()
    num_left = _MOST_RESTARTS
    places = list(enumerate(gpus))
    try:
        for from_place, source in places:
            for to_place, target in places:
                if from_place == to_place or not (sizes.both_ways or from_place < to_place):
                    continue
                if worker.failure is not None and num_left:
                    num_left -= 1
                    worker.close()
                    worker = restart()
                pair = (source.index, target.index)
                if worker.failure is not None:
                    why = "not made: copies between other GPUs hang or fail again and again"
                    results.append(CheckResult("peer_copy", pair, Outcome.SKIPPED, why))
                    continue
                request = {
                    "do": "copy_to_peer",
                    "source": from_place,
                    "target": to_place,
                    "bytes": sizes.peer_bytes,
                    "pace": asdict(sizes.link_pace),
                }
                reply = ask(worker, request, seconds)
                results.append(_judge_pair(source, target, reply, sizes.peer_bytes))
    finally:
        worker.close()
    return results


def measure_all_reduce(
    gpus: Sequence[MeasuredGpu], workers: Mapping[int, Worker], sizes: Sizes, seconds: float, *, is_cuda: bool
) -> CheckResult:
    """Sum up over all of them, in the processes that have measured each.

    Args:
        gpus: at least two.
        workers: by index.
        sizes: how much.
        seconds: that it may take, and meeting before it.
        is_cuda: whether expectations of GPUs hold.
    """
    members = [workers[gpu.index] for gpu in gpus]
    with tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
        path = str(Path(folder) / "rendezvous")
        joins: dict[Worker, Mapping[str, Any]] = {
            worker: {"do": "join", "rank": rank, "world_size": len(gpus), "path": path, "seconds": seconds}
            for rank, worker in enumerate(members)
        }
        replies = ask_all(joins, seconds)
        if all(isinstance(reply, dict) for reply in replies.values()):
            request = {
                "do": "all_reduce",
                "bytes": sizes.all_reduce_bytes,
                "warm": sizes.num_warm,
                "runs": sizes.num_runs,
            }
            replies = ask_all(dict.fromkeys(members, request), seconds)
    expected = _expect_all_reduce(gpus) if is_cuda else None
    return _judge_all_reduce(
        tuple(gpu.index for gpu in gpus), [replies[worker] for worker in members], sizes.all_reduce_bytes, expected
    )


def _judge_pair(source: MeasuredGpu, target: MeasuredGpu, reply: Reply, num_bytes: int) -> CheckResult:
    expected = None
    if source.model is not None and source.nvlinks is not None:
        num_links = sum(source.nvlinks.values())
        expected = expectations.expect_peer_copy(source.model, source.name, num_links, source.links_to(target))
    pair = (source.index, target.index)
    result = judge_rate(
        "peer_copy", pair, reply, amount=num_bytes, unit=_BYTES, expectation=expected, judges_spread=False
    )
    return with_wrong(result, [reply], "bytes")


def _judge_all_reduce(
    gpus: tuple[int, ...], replies: Sequence[Reply], num_bytes: int, expected: Expectation | None
) -> CheckResult:
    failed = [(index, reply) for index, reply in zip(gpus, replies, strict=True) if isinstance(reply, Failure)]
    if failed:
        # who only hangs waits for the others: who ended tells why
        _, told = next(((index, one) for index, one in failed if one.kind is not FailureKind.HUNG), failed[0])
        who = ", ".join(str(index) for index, _ in failed)
        return judge_failure("all_reduce", gpus, Failure(told.kind, f"GPU {who}: {told.detail}"))
    unsupported = next((reply for reply in replies if isinstance(reply, Unsupported)), None)
    if unsupported is not None:
        return judge_failure("all_reduce", gpus, unsupported)
    told_by_all = [reply for reply in replies if isinstance(reply, dict)]
    result = judge_rate(
        "all_reduce",
        gpus,
        min(told_by_all, key=lambda reply: float(reply["seconds"])),  # the others waited for it
        amount=expectations.bus_bytes(num_bytes, len(gpus)),
        unit=_BYTES,
        expectation=expected,
        judges_spread=False,
    )
    return with_wrong(result, replies, "sums")


def _expect_all_reduce(gpus: Sequence[MeasuredGpu]) -> Expectation | None:
    model = gpus[0].model
    if model is None or any(gpu.nvlinks is None for gpu in gpus):
        return None
    is_meshed = all(a.links_to(b) for a in gpus for b in gpus if a is not b)
    return expectations.expect_all_reduce(model, gpus[0].name, len(gpus), is_meshed=is_meshed)
