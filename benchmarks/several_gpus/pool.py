"""Pool of ranks: one process for each GPU, in one process group, that serve case after case."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from benchmarks.several_gpus.rank import STACKS, STACKS_SIGNAL, Answer, RankPlace, Task, serve

_START_SECONDS = 90.0
_GRACE_SECONDS = 6.0
"""The other ranks have when one has failed: they may wait for it for ever."""
_MEET_SECONDS = 10.0
_STACKS_SECONDS, _MOST_STACKS = 0.3, 4000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a task.

    Attributes:
        result: of rank 0.
        trouble: of the ranks that failed or did not answer; None where all went well.
    """

    result: Any
    trouble: str | None
    seconds: float


class Pool:
    """Ranks of one process group.

    Args:
        place: of rank 0; the others differ in their rank.
        environment: variables with which they start.

    After a rank failed all ranks must meet; where they do not, or one hangs, all are killed and start anew with the
    next task.
    """

    def __init__(self, place: RankPlace, environment: Mapping[str, str]) -> None:
        self._place, self._environment = place, environment
        self._ranks: list[Any] = []
        self._pipes: list[Connection] = []
        self._num_starts = 0
        self._folder = place.folder
        self.missing: list[str] = []

    @property
    def is_running(self) -> bool:
        return bool(self._ranks)

    def start(self, seconds: float = _START_SECONDS) -> Outcome:
        """Start all ranks and wait until they have met."""
        self._num_starts += 1
        folder = self._place.folder / f"start{self._num_starts}"
        folder.mkdir(parents=True)
        self._folder = folder
        context = get_context("spawn")
        with _environment(self._environment):
            for rank in range(self._place.num_ranks):
                ours, theirs = context.Pipe()
                place = replace(self._place, rank=rank, folder=folder)
                process = context.Process(target=serve, args=(theirs, os.getpid(), place), name=f"rank{rank}")
                process.start()
                theirs.close()
                self._ranks.append(process)
                self._pipes.append(ours)
        outcome = self._gathered(seconds, seconds)
        if outcome.trouble is not None:
            self.kill()
        else:
            self.missing = outcome.result
        return outcome

    def run(self, task: Task, seconds: float) -> Outcome:
        """Have all ranks do a task, for so long at most."""
        if not self.is_running and (started := self.start()).trouble is not None:
            return Outcome(None, f"the pool does not start: {started.trouble}", started.seconds)
        outcome = self._asked(task, seconds, _GRACE_SECONDS)
        if outcome.trouble is not None and self.is_running:
            met = self._asked(Task("meet"), _MEET_SECONDS, 0.0)
            if met.trouble is not None:
                self.kill()
        return outcome

    def _asked(self, task: Task, seconds: float, grace_seconds: float) -> Outcome:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # its end is found below
                pipe.send(task)
        return self._gathered(seconds, grace_seconds)

    def _gathered(self, seconds: float, grace_seconds: float) -> Outcome:
        """One answer of each rank. Kills the pool where a rank died or does not answer in time."""
        began = time.monotonic()
        until = began + seconds
        answers: dict[int, Answer | None] = {}
        while len(answers) < len(self._pipes) and (left := until - time.monotonic()) > 0:
            waiting = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in answers}
            for pipe in wait(list(waiting), left):
                assert isinstance(pipe, Connection)
                rank = waiting[pipe]
                try:
                    answers[rank] = pipe.recv()
                except (EOFError, OSError):
                    answers[rank] = None
                answer = answers[rank]
                if answer is None or answer.trouble is not None:
                    until = min(until, time.monotonic() + grace_seconds)
        troubles = []
        for rank in range(len(self._pipes)):
            if rank not in answers:
                said = f"rank {rank} did not answer within {time.monotonic() - began:.0f} s"
                troubles.append(f"{said}; it is in\n{self._stacks(rank)}")
            elif (answer := answers[rank]) is None:
                troubles.append(f"rank {rank} died; {self._stacks(rank)}")
            elif answer.trouble is not None:
                troubles.append(f"rank {rank}: {answer.trouble}")
        if len(answers) < len(self._pipes) or None in answers.values():
            self.kill()
        first = answers.get(0)
        result = None if first is None else first.result
        return Outcome(result, "\n".join(troubles) or None, time.monotonic() - began)

    def _stacks(self, rank: int) -> str:
        """Where a rank is."""
        with contextlib.suppress(OSError):
            os.kill(self._ranks[rank].pid, STACKS_SIGNAL)
            time.sleep(_STACKS_SECONDS)
            return (self._folder / STACKS.format(rank)).read_text()[-_MOST_STACKS:]
        return "unknown"

    def close(self) -> None:
        """End all ranks."""
        for pipe in self._pipes:
            pipe.close()
        until = time.monotonic() + 1.0
        for process in self._ranks:
            process.join(max(until - time.monotonic(), 0.0))
        self.kill()

    def kill(self) -> None:
        """Kill all ranks with the processes that they started."""
        for process in self._ranks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._ranks, self._pipes = [], []


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
