"""A pipelined job's operation table with known costs, its transfers free: made by playing each stage's order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from stepscope.trace.operations import OperationTable

Task = tuple[str, int, int]
"""Direction, global chunk, micro-batch."""

Cost = Callable[[str, int, int, int, int], float]
"""Seconds of a computation by direction, stage, replica, step, micro-batch."""

AFTER = (
    "gc",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "grads-reduce-scatter",
    "optimizer-clip-main-grad",
    "optimizer",
)


def one_forward_one_backward(stage: int, num_stages: int, num_micro_batches: int) -> list[Task]:
    warm_up = min(num_stages - stage - 1, num_micro_batches)
    forwards = [("forward", stage, m) for m in range(num_micro_batches)]
    backwards = [("backward", stage, m) for m in range(num_micro_batches)]
    order = forwards[:warm_up]
    for at in range(num_micro_batches - warm_up):
        order += [forwards[warm_up + at], backwards[at]]
    return order + backwards[num_micro_batches - warm_up :]


def all_forwards_first(stage: int, num_stages: int, num_micro_batches: int, num_chunks: int) -> list[Task]:
    """With several chunks a stage: stage s holds the global chunks s, s + P, ..."""
    mine = [stage + at * num_stages for at in range(num_chunks)]
    batches = range(num_micro_batches)
    return [("forward", g, m) for g in mine for m in batches] + [
        ("backward", g, m) for g in mine[::-1] for m in batches
    ]


def play(orders: list[list[Task]], cost: Callable[[str, int, int], float]) -> dict[Task, tuple[float, float]]:
    """Start and end of every task when each begins as soon as its stage is free and what it needs has ended."""
    num_chunks = 1 + max(chunk for order in orders for _, chunk, _ in order)
    times: dict[Task, tuple[float, float]] = {}
    free, at = [0.0] * len(orders), [0] * len(orders)
    while any(place < len(order) for place, order in zip(at, orders, strict=True)):
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                direction, chunk, batch = order[at[stage]]
                before = ("forward", chunk - 1, batch) if direction == "forward" else ("backward", chunk + 1, batch)
                if direction == "backward" and chunk + 1 == num_chunks:
                    before = ("forward", chunk, batch)
                if 0 <= before[1] < num_chunks and before not in times:
                    break
                start = max(free[stage], times[before][1] if before in times else 0.0)
                free[stage] = start + cost(direction, stage, batch)
                times[direction, chunk, batch] = (start, free[stage])
                at[stage] += 1
    return times


def operation_table(
    orders: list[list[Task]], cost: Cost, *, num_replicas: int = 2, num_steps: int = 2
) -> OperationTable:
    """The job's table; sends and receives take no time once both sides are there, and so does what follows."""
    rows: list[tuple[object, ...]] = []
    for replica, step in product(range(num_replicas), range(num_steps)):
        times = play(orders, lambda d, s, m, r=replica, k=step: cost(d, s, r, k, m))  # type: ignore[misc]
        for stage, order in enumerate(orders):
            rows += [(*row, stage, replica, step) for row in _rows(order, times, orders)]
        last = max(end for _, end in times.values())
        for stage, kind in product(range(len(orders)), AFTER):
            if kind != "embedding-grads-all-reduce" or stage in (0, len(orders) - 1):
                rows.append((kind, 0, -1, -1, last, 0.0, stage, replica, step))
    return as_table(rows, len(orders), num_replicas)


def _rows(
    order: list[Task], times: dict[Task, tuple[float, float]], orders: list[list[Task]]
) -> list[tuple[object, ...]]:
    """Computations with the send after and the receive before each of them, as far as anybody is at the other side."""
    num_chunks = 1 + max(chunk for tasks in orders for _, chunk, _ in tasks)
    several = num_chunks > len(orders)
    rows: list[tuple[object, ...]] = []
    number = {"forward": 0, "backward": 0}
    called = {"forward-send": 0, "forward-recv": 0, "backward-send": 0, "backward-recv": 0}
    for place, (direction, chunk, batch) in enumerate(order):
        start, end = times[direction, chunk, batch]
        rows.append((f"{direction}-compute", number[direction], chunk // len(orders), chunk, start, end - start))
        number[direction] += 1
        towards = 1 if direction == "forward" else -1
        idle_from = times[order[place - 1]][1] if place else 0.0
        for kind, at, since in (("recv", chunk - towards, min(idle_from, start)), ("send", chunk + towards, end)):
            exists = 0 <= at < num_chunks
            if not exists and not several:
                continue
            name, until = f"{direction}-{kind}", since
            if exists:
                peer = times[direction, at, batch]
                until = max(since, peer[1] if kind == "recv" else _asked(orders, times, direction, at, batch))
            rows.append((name, called[name], -1, -1, since, until - since))
            called[name] += 1
    return rows


def _asked(
    orders: list[list[Task]], times: dict[Task, tuple[float, float]], direction: str, chunk: int, batch: int
) -> float:
    """When the peer's stage asked for it: after its computation before."""
    order = orders[chunk % len(orders)]
    place = order.index((direction, chunk, batch))
    return min(times[order[place - 1]][1] if place else 0.0, times[direction, chunk, batch][0])


def as_table(rows: list[tuple[object, ...]], num_stages: int, num_replicas: int) -> OperationTable:
    kind, number, chunk, global_chunk, start, duration, stage, replica, step = zip(*rows, strict=True)
    kinds, codes = np.unique(np.array(kind), return_inverse=True)
    stages, replicas = np.array(stage, np.int64), np.array(replica, np.int64)
    return OperationTable(
        name="a job",
        kinds=kinds.tolist(),
        kind=codes.astype(np.int64),
        number=np.array(number, np.int64),
        stage=stages,
        dp_rank=replicas,
        rank=stages * num_replicas + replicas,
        step=np.array(step, np.int64),
        chunk=np.array(chunk, np.int64),
        global_chunk=np.array(global_chunk, np.int64),
        start_seconds=np.array(start, np.float64),
        duration_seconds=np.array(duration, np.float64),
        world_size=num_stages * num_replicas,
        shards_per_replica=1,
    )
