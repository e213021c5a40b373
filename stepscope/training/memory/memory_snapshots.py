"""What is in the GPU's memory at every so many steps? torch's snapshot, and beside it whose each block is."""

from __future__ import annotations

import json
import logging
import pickle
import time
from typing import Any

from stepscope.core.run_layout import memory_owners_path, periodic_snapshot_path
from stepscope.training.memory import device_memory
from stepscope.training.memory.memory_owners import MemoryOwners, by_category
from stepscope.training.run.deadline import within
from stepscope.training.run.run_directory import appearing_whole
from stepscope.training.settings import RunContext
from stepscope.training.steps.telemetry import StepRecord

logger = logging.getLogger(__name__)

_LAST_WITHIN_SECONDS = 30.0

SCHEMA = "stepscope.memory_owners/1"


class MemorySnapshots:
    """Takes a snapshot when a step of the plan ends, some 10 us a block; it is written beside training."""

    def __init__(self, context: RunContext, every: int, owners: MemoryOwners) -> None:
        self._context = context
        self._every = every
        self._owners = owners
        self._waiting: list[tuple[int, dict[str, Any], dict[str, Any]]] = []

    def step_ended(self, record: StepRecord) -> None:
        """Take one when it is due."""
        if record.index == 0 or record.index % self._every or not device_memory.is_in_use():
            return
        begun_ns = time.monotonic_ns()
        snapshot = device_memory.snapshot()
        owners = {
            "schema": SCHEMA,
            "rank": self._context.identity.rank,
            "step": record.index,
            "time_ns": record.end_ns,
            "categories": by_category(snapshot, self._owners.storages()),
        }
        self._waiting.append((record.index, snapshot, owners))
        record.figures["memory_snapshot_ns"] = time.monotonic_ns() - begun_ns

    def tend(self) -> None:
        """Write those that were taken."""
        while self._waiting:
            self._write(*self._waiting.pop(0))

    def close(self) -> None:
        """Write the last one, if the disk answers."""
        within(_LAST_WITHIN_SECONDS, self.tend, "the last memory snapshot")

    def _write(self, step: int, snapshot: dict[str, Any], owners: dict[str, Any]) -> None:
        rank = self._context.identity.rank
        with (
            appearing_whole(self._context.run_directory / periodic_snapshot_path(step, rank)) as temporary,
            temporary.open("wb") as file,
        ):
            pickle.dump(snapshot, file, protocol=4)
        with appearing_whole(self._context.run_directory / memory_owners_path(step, rank)) as temporary:
            temporary.write_text(json.dumps(owners) + "\n", encoding="utf-8")
