"""Samples of the node's agent during a recording: GPU metrics of its page, its CPU time and memory."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.agent.real_agent import Page, RealAgent
from benchmarks.measurement import cpu_seconds, proportional_bytes, resident_bytes

_EVERY_SECONDS = 5.0
_OF_THE_MACHINE = ("stepscope_gpu_info",)
"""Left out: serial numbers."""


class AgentSamples:
    """Thread that scrapes an agent every 5 s into a file, whole at any time, and keeps the samples."""

    def __init__(self, agent: RealAgent, path: Path) -> None:
        self._agent = agent
        self._path = path
        self._samples: list[dict[str, Any]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def between(self, began: float, ended: float) -> list[dict[str, Any]]:
        """Samples of a time, in seconds since the epoch."""
        return [one for one in list(self._samples) if began <= one["time"] <= ended]

    def close(self) -> dict[str, Any]:
        """Stop; returns what the agent took in all, of one core and of memory."""
        self._is_over.set()
        self._thread.join(20.0)
        return summary(self._samples)

    def _work(self) -> None:
        with gzip.open(self._path, "at") as file:
            while True:
                with contextlib.suppress(OSError, http.client.HTTPException, ValueError, IndexError):
                    sample = sample_of(self._agent)
                    self._samples.append(sample)
                    file.write(json.dumps(sample, separators=(",", ":")) + "\n")
                    file.flush()
                if self._is_over.wait(_EVERY_SECONDS):
                    return


def sample_of(agent: RealAgent) -> dict[str, Any]:
    """One look at the agent: its processes and the GPU metrics of its page."""
    family = agent.family()
    own, *readers = [cpu_seconds(pid) for pid in family]
    shared = [proportional_bytes(pid) for pid in family]
    at, page = agent.scrape()
    return {
        "time": round(at, 3),
        "agent_cpu_seconds": round(own, 3),
        "readers_cpu_seconds": round(sum(readers), 3),
        "resident_bytes": sum(map(resident_bytes, family)),
        "proportional_bytes": None if None in shared else sum(filter(None, shared)),
        "gpus": dict(_of_gpus(page)),
    }


def _of_gpus(page: Page) -> Iterator[tuple[str, dict[str, float]]]:
    """Of each GPU, by its index, the metrics by name, with their other labels."""
    by_gpu: dict[str, dict[str, float]] = {}
    for name, values in page.items():
        if not name.startswith("stepscope_gpu_") or name in _OF_THE_MACHINE:
            continue
        for labels, value in values.items():
            others = [f"{key}={text}" for key, text in labels if key not in ("uuid", "gpu")]
            key = name.removeprefix("stepscope_gpu_") + (f"{{{','.join(others)}}}" if others else "")
            by_gpu.setdefault(dict(labels).get("gpu", ""), {})[key] = value
    yield from by_gpu.items()


def summary(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """CPU shares between the first and the last sample, and the most memory."""
    if len(samples) < 2:
        return {"num_samples": len(samples)}
    first, last = samples[0], samples[-1]
    seconds = last["time"] - first["time"]
    memory = [one["proportional_bytes"] for one in samples if one["proportional_bytes"] is not None]
    return {
        "num_samples": len(samples),
        "seconds": round(seconds, 1),
        "agent_cpu_ratio": round((last["agent_cpu_seconds"] - first["agent_cpu_seconds"]) / seconds, 5),
        "readers_cpu_ratio": round((last["readers_cpu_seconds"] - first["readers_cpu_seconds"]) / seconds, 5),
        "most_resident_bytes": max(one["resident_bytes"] for one in samples),
        "most_proportional_bytes": max(memory) if memory else None,
        "num_gpus": len(last["gpus"]),
    }


def wait_for_gpus(agent: RealAgent, num_gpus: int, seconds: float) -> int:
    """Wait until the agent's page shows so many GPUs; returns how many it shows."""
    until = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            num_shown = len(dict(_of_gpus(agent.scrape()[1])))
            if num_shown >= num_gpus or time.monotonic() > until:
                return num_shown
        if time.monotonic() > until:
            return 0
        time.sleep(0.2)
