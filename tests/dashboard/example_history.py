"""A synthetic metric history of a cluster for a test: racks of nodes, jobs, a slow GPU, nodes that do not answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stepscope.store.history.questions import HistoryEvent, HistoryEventKind, Labels
from stepscope.store.history.samples import SampleBlock
from stepscope.store.history.writer import HistoryWriter

GPUS_A_NODE, NODES_A_RACK, NODES_A_JOB = 8, 8, 5
SLOW, LOST = (3, 5), (6, 2)
"""Node and number of the GPU that is slower than its job, and of the one with an XID."""
XID_TEXT = "xid_79 (critical): take the node out of service"
_S = 10**9


def node_name(node: int) -> str:
    """Address of an agent."""
    return f"gpu{node:04d}:9455"


def place(node: int) -> dict[str, str]:
    """Labels of a target."""
    return {"instance": node_name(node), "rack": f"rack-{node // NODES_A_RACK + 1:03d}"}


def gpu(node: int, number: int) -> dict[str, str]:
    """Labels of a GPU."""
    return {**place(node), "gpu": str(number), "uuid": f"GPU-{node:04d}-{number}"}


def write_history(
    root: Path, *, nodes: int, down: tuple[int, ...] = (), end_ns: int, minutes: int = 6, seed: int = 0
) -> Path:
    """A history that ends at a time; nodes in `down` do not answer in the last two minutes.

    The last node has no job. Jobs are named by the number of their first node.
    """
    random = np.random.default_rng(seed)
    ends = end_ns // _S * _S - np.arange(minutes * 4)[::-1] * 15 * _S
    with HistoryWriter(root) as writer:
        gpus = [(node, number) for node in range(nodes) for number in range(GPUS_A_NODE)]
        names = tuple(_labels(gpu(*one)) for one in gpus)
        answers = ends[:, None] <= np.where(np.isin(np.arange(nodes), down), end_ns - 120 * _S, end_ns)[None, :]
        entity = np.tile(np.arange(len(gpus), dtype=np.int32), len(ends))
        times = np.repeat(ends, len(gpus))
        keep = np.repeat(answers, GPUS_A_NODE, axis=1).ravel()
        load = np.clip(np.tile(_loads(gpus), len(ends)) + random.normal(0, 0.01, len(times)), 0.0, 1.0)
        columns = {
            "stepscope_gpu_up": np.ones(len(times)),
            "stepscope_gpu_sm_active_ratio": load,
            "stepscope_gpu_power_watts": 90.0 + 600.0 * load,
            "stepscope_gpu_temperature_celsius": 34.0 + 30.0 * load,
        }
        writer.append(SampleBlock(names, entity[keep], times[keep], {key: one[keep] for key, one in columns.items()}))
        held = [index for index, (node, _) in enumerate(gpus) if node != nodes - 1]
        jobs = tuple(_labels({**gpu(*gpus[index]), **_job(gpus[index][0]), "share": "exclusive"}) for index in held)
        keep = np.repeat(answers, GPUS_A_NODE, axis=1)[:, held].ravel()
        entity, times = np.tile(np.arange(len(held), dtype=np.int32), len(ends)), np.repeat(ends, len(held))
        ones = {"stepscope_gpu_job_info": np.ones(int(keep.sum()))}
        writer.append(SampleBlock(jobs, entity[keep], times[keep], ones))
        states = tuple(_labels({**gpu(*gpus[index]), "state": "busy"}) for index in held)
        ones = {"stepscope_gpu_use_state": np.ones(int(keep.sum()))}
        writer.append(SampleBlock(states, entity[keep], times[keep], ones))
        facts = tuple(
            _labels({**place(node), **_job(node), "user": f"user{node % 7}", "team": f"team{node % 3}"})
            for node in range(0, nodes - 1, NODES_A_JOB)
        )
        entity, times = np.tile(np.arange(len(facts), dtype=np.int32), len(ends)), np.repeat(ends, len(facts))
        writer.append(SampleBlock(facts, entity, times, {"stepscope_job_info": np.ones(len(times))}))
        targets = tuple(_labels(place(node)) for node in range(nodes))
        entity, times = np.tile(np.arange(nodes, dtype=np.int32), len(ends)), np.repeat(ends, nodes)
        writer.append(SampleBlock(targets, entity, times, {"up": answers.ravel().astype(float)}))
        if nodes > LOST[0]:
            begin = int(ends[-5])
            event = HistoryEvent(HistoryEventKind.HEALTH, begin, None, _labels(gpu(*LOST)), "xid_79", XID_TEXT)
            writer.append_events([event])
        for node in down:
            gap = (HistoryEventKind.GAP, end_ns - 120 * _S, None, _labels(place(node)), "timed_out")
            writer.append_events([HistoryEvent(*gap, "no answer within 10 s")])
        writer.flush()
    return root


def _loads(gpus: list[tuple[int, int]]) -> np.ndarray:
    number = max(node for node, _ in gpus)
    loads = [0.86 if one != SLOW else 0.31 for one in gpus]
    return np.array([0.0 if node == number else load for (node, _), load in zip(gpus, loads, strict=True)])


def _job(node: int) -> dict[str, str]:
    return {"job_kind": "slurm", "job_id": str(1000 + node // NODES_A_JOB * NODES_A_JOB)}


def _labels(values: dict[str, str]) -> Labels:
    return tuple(sorted(values.items()))
