"""Real training for tests: several processes on gloo, connected to an agent."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def training(folder: Path, agent: Path, world_size: int, *options: str) -> Iterator[list[subprocess.Popen[str]]]:
    """The ranks, ended and found well at the end of the block.

    Args:
        folder: takes the runs; the file `stop` in it ends training.
        agent: the socket.
        options: of gloo_training.py.
    """
    environment = os.environ | {
        "WORLD_SIZE": str(world_size),
        "STEPSCOPE_AGENT_SOCKET": str(agent),
        "PYTHONPATH": str(_ROOT),
        "OMP_NUM_THREADS": "1",
    }
    script = Path(__file__).with_name("gloo_training.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder / "runs"), str(folder), *options],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        yield ranks
        (folder / "stop").touch()
        for rank in ranks:
            errors = rank.communicate(timeout=60)[1]
            assert rank.returncode == 0, errors
            warnings = [line for line in errors.splitlines() if line.startswith("WARNING:")]
            assert [line for line in warnings if ".anomalies." not in line] == []  # a busy machine's steps are uneven
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def steps_in(path: str | None) -> list[int]:
    """The steps that a trace says it holds whole; their marks are in it."""
    assert path is not None
    document: dict[str, Any] = json.loads(gzip.decompress(Path(path).read_bytes()))
    whole: list[int] = document["stepscope_whole_steps"]
    marks = {event["name"] for event in document["traceEvents"] if event.get("name", "").startswith("ProfilerStep#")}
    assert {f"ProfilerStep#{step}" for step in whole} <= marks
    return whole
