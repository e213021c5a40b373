"""Memory snapshots: when the GPU runs out of memory and every N steps, each with the owners of its blocks.

The out-of-memory snapshot is taken at the failing allocation, before anything is unwound.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from stepscope.core.documents.run_directory import RankFile
from stepscope.training.hangs.stall import frame_entries, thread_frames
from stepscope.training.memory.owners import MemoryOwners, blocks_by_owner
from stepscope.training.run.context import RunContext
from stepscope.training.run.run_files import atomic_write, run_within
from stepscope.training.steps.telemetry import StepRecord

logger = logging.getLogger(__name__)

OOM_SCHEMA = "stepscope.oom/1"

_NUM_REMEMBERED_STEPS = 100
_MIN_PAUSE = 20.0
"""Training that catches the error and tries again is not held up by more than a twentieth of its time."""

_MAX_FRAMES = 64
_HERE = str(Path(__file__).parents[1]) + os.sep  # the whole of stepscope.training


class OutOfMemoryReporter:
    """Writes memory/rank{r}-oom.pickle, torch's snapshot, and rank{r}-oom.json, the state of the step."""

    def __init__(self, context: RunContext, plan: MemoryOptions, owners: MemoryOwners) -> None:
        self._context = context
        self._owners = owners
        self._wants_history = plan.history
        self._has_history = False
        self._is_attached, self._is_awaiting, self._is_closed = False, False, False
        self._process_id = os.getpid()
        self._thread_id = threading.get_ident()
        self._recent: deque[dict[str, Any]] = deque(maxlen=_NUM_REMEMBERED_STEPS)
        self._not_before = 0.0
        self._is_unwritten = False

    def look(self) -> None:
        """Begin to watch as soon as the training code uses CUDA."""
        if self._is_attached:
            return
        if is_cuda_in_use():
            self._attach()
        elif not self._is_awaiting:
            self._is_awaiting = when_cuda_is_used(partial(_cuda_is_used, weakref.ref(self)))

    def cuda_is_used(self) -> None:
        """Begin to watch, within the first use of CUDA; what fails there is tried again by the next look.

        Another thread's use does not count: torch notes the optimizer's steps only on the thread that asks for history.
        """
        is_here = os.getpid() == self._process_id and threading.get_ident() == self._thread_id
        if is_here and not (self._is_attached or self._is_closed):
            with suppress(Exception):  # it would be training's error
                self._attach()

    def _attach(self) -> None:
        _watch(self)
        self._has_history = self._wants_history and begin_memory_history()
        self._is_attached = True

    def steps_ended(self, records: Sequence[StepRecord]) -> None:
        """Remember the memory figures of the error."""
        for record in records:
            figures = record.figures
            if "memory_allocated_bytes" in figures:  # a few times a second, or given by the training code
                memory = {name: value for name, value in figures.items() if "memory" in name or name.startswith("num_")}
                self._recent.append({"step": record.index} | memory)

    def close(self) -> None:
        """Nothing runs out any more that concerns this run."""
        self._is_closed = True
        if _watching is not None and _watching() is self:  # else a later run's watches
            _watch(None)
        if self._has_history:
            end_memory_history()

    def ran_out(self, device: int, requested_bytes: int, total_bytes: int, free_bytes: int) -> None:
        """torch is about to raise; on the thread that asked for memory. Never raises itself."""
        if time.monotonic() < self._not_before:
            self._is_unwritten = True
            return
        self._write(
            {
                "taken": "at the allocation",
                "device": device,
                "requested_bytes": requested_bytes,
                "device_total_bytes": total_bytes,
                "device_free_bytes": free_bytes,
                "stack": _stack(thread_frames(threading.get_ident())),
            }
        )

    def left_by(self, error: BaseException) -> None:
        """The error has left the with block: write what is left to see, where it was not seen as it happened."""
        if _is_out_of_memory(error) and is_cuda_in_use() and (self._is_unwritten or not self._not_before):
            at = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
            moment = {"taken": "after unwinding", "device": None, "message": str(error)[:2000]}
            self._write(moment | {"stack": _stack(reversed(at))})

    def _write(self, moment: dict[str, Any]) -> None:
        begun = time.monotonic()
        self._is_unwritten = False
        try:
            snapshot_path = self._context.run_directory / RankFile.OOM_SNAPSHOT.path(self._context.identity.rank)
            report_path = self._context.run_directory / RankFile.OOM_REPORT.path(self._context.identity.rank)
            report = self._report(moment)
            try:
                snapshot = take_memory_snapshot()
                report["categories"] = blocks_by_owner(snapshot, self._owners.storages())
                _write_pickle(snapshot_path, snapshot)
                report["snapshot"] = snapshot_path.name
            except Exception:  # the figures alone are worth having
                logger.debug("no snapshot of the memory that ran out", exc_info=True)
            with atomic_write(report_path) as temporary:
                temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            logger.warning("the GPU's memory ran out in step %s: %s", report["step"], report_path)
        except Exception as error:  # training must never be hurt
            logger.warning("the GPU's memory ran out, which could not be written: %s", error)
        self._not_before = time.monotonic() + _MIN_PAUSE * (time.monotonic() - begun)

    def _report(self, moment: dict[str, Any]) -> dict[str, Any]:
        step = self._context.open_step()
        unwound = moment["taken"] == "after unwinding"
        main = moment["stack"] if unwound else _stack(thread_frames(self._thread_id))
        report = {
            "schema": OOM_SCHEMA,
            "rank": self._context.identity.rank,
            "host": self._context.identity.host,
            "time_ns": time.time_ns(),
            "step": None if step is None else step.number,
            "step_began_ns": None if step is None else step.began_ns,
            "open_spans": self._context.open_spans(),
            "training_phase": training_phase(main),
            "has_history": self._has_history,
            "recent_steps": list(self._recent),
            "main_stack": main,
            "snapshot": None,
            "categories": None,
        } | moment
        with suppress(Exception):
            report |= allocator_totals(0 if moment["device"] is None else moment["device"])
        return report


def training_phase(stack: list[dict[str, Any]]) -> str:
    """In the training process: phase in which GPU memory ran out, by the thread's frames.

    One of forward | backward | optimizer | unknown.
    """
    for frame in stack:
        filename = frame["filename"]
        if "/torch/optim/" in filename:
            return "optimizer"
        if frame["name"] == "backward" and "/torch/" in filename:
            return "backward"
    return "forward" if any("/torch/nn/" in frame["filename"] for frame in stack) else "unknown"


def _stack(frames: Iterable[FrameType]) -> list[dict[str, Any]]:
    """As torch's snapshots have it, the innermost first; without our own."""
    theirs = (each for each in frames if not each.f_code.co_filename.startswith(_HERE))
    return frame_entries(islice(theirs, _MAX_FRAMES))


def _write_pickle(path: Path, snapshot: dict[str, Any]) -> None:
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        pickle.dump(snapshot, file, protocol=4)


def _is_out_of_memory(error: BaseException) -> bool:
    return any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)


def _cuda_is_used(evidence: weakref.ref[OutOfMemoryReporter]) -> None:
    """torch keeps what it is to call for good."""
    one = evidence()
    if one is not None:
        one.cuda_is_used()


_watching: weakref.ref[OutOfMemoryReporter] | None = None
_is_observing = False


def _watch(evidence: OutOfMemoryReporter | None) -> None:
    """torch's observer cannot be removed, so one serves all runs of the process and forwards to the current one."""
    global _watching, _is_observing
    _watching = None if evidence is None else weakref.ref(evidence)
    if evidence is not None and not _is_observing:
        _is_observing = attach_oom_observer(_observe)


def _observe(device: int, requested_bytes: int, total_bytes: int, free_bytes: int) -> None:
    evidence = None if _watching is None else _watching()
    if evidence is not None:
        evidence.ran_out(device, requested_bytes, total_bytes, free_bytes)


_LAST_WITHIN_SECONDS = 30.0

OWNERS_SCHEMA = "stepscope.memory_owners/1"


class PeriodicMemorySnapshots:
    """Takes a CUDA memory snapshot at every Nth step's end, some 10 us a block; it is written beside training."""

    def __init__(self, context: RunContext, every: int, owners: MemoryOwners) -> None:
        self._context = context
        self._every = every
        self._owners = owners
        self._waiting: list[tuple[int, dict[str, Any], dict[str, Any]]] = []

    def due_step(self, index: int) -> int:
        """The step at whose beginning this has to be called next, after `index` has begun: a snapshot's is over."""
        return index + -index % self._every + 1

    def steps_ended(self, records: Sequence[StepRecord]) -> None:
        record = records[-1]
        if record.index == 0 or record.index % self._every or not is_cuda_in_use():
            return
        begun_ns = time.monotonic_ns()
        snapshot = take_memory_snapshot()
        owners = {
            "schema": OWNERS_SCHEMA,
            "rank": self._context.identity.rank,
            "step": record.index,
            "time_ns": record.end_ns,
            "categories": blocks_by_owner(snapshot, self._owners.storages()),
        }
        self._waiting.append((record.index, snapshot, owners))
        record.figures["memory_snapshot_ns"] = time.monotonic_ns() - begun_ns

    def run_task(self) -> None:
        while self._waiting:
            self._write(*self._waiting.pop(0))

    def close(self) -> None:
        """Write the last one, if the disk answers."""
        run_within(_LAST_WITHIN_SECONDS, self.run_task, "the last memory snapshot")

    def _write(self, step: int, snapshot: dict[str, Any], owners: dict[str, Any]) -> None:
        rank = self._context.identity.rank
        _write_pickle(self._context.run_directory / RankFile.PERIODIC_SNAPSHOT.path(rank, step), snapshot)
        with atomic_write(self._context.run_directory / RankFile.MEMORY_OWNERS.path(rank, step)) as temporary:
            temporary.write_text(json.dumps(owners) + "\n", encoding="utf-8")


_HISTORY = "+history"


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """Options of CUDA memory snapshots: when they are written.

    Attributes:
        when_out: when the memory runs out.
        every: at each so many steps; None for never.
        history: with the stacks of the allocations before.
    """

    when_out: bool = True
    every: int | None = None
    history: bool = False


def parse_memory_option(memory: str | int) -> MemoryOptions:
    """Memory snapshots by "off", "oom" or a number of steps, the latter two also with "+history" behind.

    Raises:
        ValueError: it is none of these.
    """
    what = str(memory).strip().lower()
    history = what.endswith(_HISTORY)
    what = what.removesuffix(_HISTORY)
    if what == "off" and not history:
        return MemoryOptions(when_out=False)
    if what == "oom":
        return MemoryOptions(history=history)
    if what.isascii() and what.isdigit() and int(what) > 0:
        return MemoryOptions(every=int(what), history=history)
    raise ValueError(f'memory is "off", "oom", a number of steps, or one of the latter with "+history", not {memory!r}')


# Calls into torch's CUDA allocator: all are made through these functions, so that tests can replace them.

HISTORY_ENTRIES = 100_000
"""Allocations and frees remembered, several steps of a large model; torch keeps its own buffer for each device."""


def is_cuda_in_use() -> bool:
    """In the training process, memory snapshots: whether it has used CUDA; nothing here may be the first to do so."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def when_cuda_is_used(begin: Callable[[], None]) -> bool:
    """Have `begin`, which must not raise, called by this process's first use of CUDA, before anything is allocated.

    False where this torch has no such thing, or none is imported yet.
    """
    torch = sys.modules.get("torch")
    call_later = None if torch is None else getattr(torch.cuda, "_lazy_call", None)
    if call_later is None:
        return False
    call_later(begin)
    return True


def take_memory_snapshot() -> dict[str, Any]:
    """torch's memory snapshot: segments and blocks, and the history where it is recorded."""
    import torch

    found: dict[str, Any] = torch.cuda.memory._snapshot()
    return found


def begin_memory_history() -> bool:
    """Have torch remember allocations with Python's stacks, 2 us each; False where it does already."""
    import torch

    is_on = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if is_on is not None and is_on():
        return False
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=HISTORY_ENTRIES)
    return True


def end_memory_history() -> None:
    """Have torch forget allocations again."""
    import torch

    torch.cuda.memory._record_memory_history(None)


def allocator_totals(device: int) -> dict[str, int]:
    """Totals of torch's CUDA allocator: what it has given out, holds, and held at most."""
    import torch

    stats = torch.cuda.memory_stats_as_nested_dict(device)
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return {
        "allocated_bytes": allocated["current"],
        "reserved_bytes": reserved["current"],
        "peak_allocated_bytes": allocated["peak"],
        "num_alloc_retries": stats["num_alloc_retries"],
        "num_ooms": stats["num_ooms"],
    }


def attach_oom_observer(observer: Callable[[int, int, int, int], None]) -> bool:
    """Have `observer` called when the memory of a device runs out, before torch raises.

    It is given the device, the bytes asked for, the bytes torch may have of the device, and those free on it. It can
    never be taken away. False where this torch has no such thing.
    """
    import torch

    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is None:
        return False
    attach(observer)
    return True
