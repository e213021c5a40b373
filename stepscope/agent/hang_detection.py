"""Hang detection of training runs on this node.

`RunWatch` notices a step that lasts too long, `HangQuery` has a separate process read the dumps of the ranks, and
`HangSource` reports which run hangs and which ranks hold it up. This process itself never loads what reads dumps.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from stepscope.collectors.host.processes import process_state
from stepscope.core.documents.hang import HangKind, LiveHang, LiveHangState, stall_threshold_seconds
from stepscope.core.documents.node import TrainingRank
from stepscope.core.errors import printable
from stepscope.core.metrics.agent import TRAINING
from stepscope.core.metrics.readings import Collection, Finding, Reading, labels_of
from stepscope.core.protocol.fields import read_object
from stepscope.core.text.numbers import ranks_words

_log = logging.getLogger(__name__)

_FIRST_QUERY_SECONDS = 3.0
"""Ranks say how they are within seconds of each other."""
_AGAIN_SECONDS, _SELDOM_SECONDS, _NUM_SOON = 4.0, 30.0, 15
_WITHOUT_FILES_SECONDS = 8.0
"""After which what is heard, and not heard, over the socket alone has to do."""
_MOST_QUESTIONS = 4
_MOST_NAMED = 32
_STATES = {"T": "is stopped", "t": "is held by a debugger", "D": "waits for a disk or driver", "": "has ended"}

_Key = tuple[str, str, int | None]


@dataclass(frozen=True, slots=True)
class Hang:
    """A run that hangs; `ranks` are the guilty, as far as they are known."""

    kind: HangKind
    ranks: tuple[int, ...]
    summary: str


class RunWatch:
    """The ranks of one run on this node."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_NUM_REMEMBERED)
        self._steps: dict[int, int] = {}
        self._known: dict[int, tuple[TrainingRank, float]] = {}
        self._ranks: Sequence[TrainingRank] = ()
        self._now = 0.0

    def look(self, ranks: Sequence[TrainingRank], now: float) -> None:
        """Take in how the run's ranks are now, at least one; `now` in monotonic seconds."""
        self._ranks, self._now = ranks, now
        for rank in ranks:
            if rank.step is not None and rank.step_ms is not None and self._steps.get(rank.rank) != rank.step:
                self._steps[rank.rank] = rank.step
                if rank.step >= _NUM_FIRST_STEPS:
                    self._seconds.append(rank.step_ms / 1e3)
        self._known |= {rank.rank: (rank, now) for rank in ranks}

    @property
    def limit_seconds(self) -> float:
        """Age from which an open step is doubted."""
        return stall_threshold_seconds(self._seconds) if self._seconds else _FIRST_STEPS_SECONDS

    @property
    def age_seconds(self) -> float:
        """Of the oldest open step of ranks that are connected."""
        return max((rank.step_age_ms or 0.0) / 1e3 for rank in self._ranks)

    @property
    def is_doubtful(self) -> bool:
        """Whether a step has lasted so long that it is worth asking."""
        return self.age_seconds >= self.limit_seconds

    def silent(self) -> list[TrainingRank]:
        """Ranks that were there when steps last ended, and have gone or say nothing any more."""
        here = {rank.rank for rank in self._ranks}
        mute = [rank for rank in self._ranks if rank.heartbeat_age_ms >= _SILENT_SECONDS * 1e3]
        stood_at = self._now - self.age_seconds - _TOLD_LATE_SECONDS
        gone = [rank for number, (rank, seen) in self._known.items() if number not in here and seen >= stood_at]
        return sorted([*mute, *gone], key=lambda rank: rank.rank)

    def at_work(self) -> list[TrainingRank]:
        """Ranks that say that they are in a phase."""
        silent = {rank.rank for rank in self.silent()}
        return [rank for rank in self._ranks if rank.doing and rank.rank not in silent]


@dataclass(slots=True)
class _Run:
    watch: RunWatch = field(default_factory=RunWatch)
    doubted_at: float | None = None
    ask_at: float = 0.0
    num_asked: int = 0
    question: HangQuery | None = None
    heard_files: bool = False
    hang: Hang | None = None


class HangQuery:
    """One that is out. Nothing here waits, also where the run's file system hangs, as may be why the run does.

    Args:
        run_directory: as the process calls it.
        pid: of a process of the run, whose view of the file system counts; None: this one's.
        uid: whose files count; None: anybody's.
        now: monotonic seconds.

    Raises:
        OSError: no process can be had.
    """

    def __init__(self, run_directory: str, *, pid: int | None, uid: int | None, now: float) -> None:
        about = [run_directory, *("" if number is None else str(number) for number in (uid, pid))]
        self._until = now + _ANSWERS_WITHIN_SECONDS
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stepscope.workflow.live_hang", *about],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def is_over(self, now: float) -> bool:
        """Whether there is an answer, or will be none."""
        if self._process.poll() is None and now > self._until:
            self._process.kill()
        return self._process.poll() is not None

    def answer(self) -> LiveHang | None:
        """The answer; None where there is none. Only once it is over."""
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            content = stream.read(_LONGEST)
        with suppress(ValueError, RecursionError, TypeError):
            # reasons and evidence are for who asks by hand, and not read here
            hang = read_object(LiveHang, json.loads(content) | {"reasons": None, "evidence": None})
            return replace(hang, summary=printable(hang.summary))
        return None

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel is left behind
            self._process.wait(_GONE_WITHIN_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


class HangSource:
    """Watches the steps' ages; only once they are too high it asks what the ranks have left in their run directory.

    Args:
        ranks: the processes that speak to the agent.
        clock: monotonic seconds.
        process_state: the letter of a process's state by its id; empty when it is gone.
        ask: begins a question.
    """

    def __init__(
        self,
        ranks: Callable[[], Sequence[TrainingRank]],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock_ns: Callable[[], int] = time.time_ns,
        process_state: Callable[[int], str] = process_state,
        ask: Callable[..., HangQuery] = HangQuery,
    ) -> None:
        self._ranks = ranks
        self._clock, self._wall_clock_ns = clock, wall_clock_ns
        self._process_state, self._ask = process_state, ask
        self._runs: dict[_Key, _Run] = defaultdict(_Run)

    def collect(self) -> Collection:
        """How all runs are; waits for nothing."""
        now, now_ns = self._clock(), self._wall_clock_ns()
        by_run: dict[_Key, list[TrainingRank]] = defaultdict(list)
        for rank in self._ranks():
            by_run[rank.run, rank.run_directory, rank.uid].append(rank)
        for key in self._runs.keys() - by_run.keys():
            self._end(key, self._runs.pop(key), "its processes have ended")
        for key, ranks in by_run.items():
            self._look(key, self._runs[key], ranks, now)
        hangs = [(key[0], run.hang) for key, run in self._runs.items() if run.hang is not None]
        return Collection(
            tuple(reading for run, hang in hangs for reading in _readings(run, hang, now_ns)),
            (),
            tuple(_finding(run, hang, now_ns) for run, hang in hangs),
        )

    def _look(self, key: _Key, run: _Run, ranks: Sequence[TrainingRank], now: float) -> None:
        run.watch.look(ranks, now)
        if not run.watch.is_doubtful:
            self._end(key, run, "its steps go on")
            return
        if run.doubted_at is None:
            run.doubted_at, run.ask_at = now, now + _FIRST_QUERY_SECONDS
        if run.question is not None and run.question.is_over(now):
            question, run.question = run.question, None
            self._hear(key, run, question)
        elif run.question is None and now >= run.ask_at and self._num_out() < _MOST_QUESTIONS:
            run.num_asked += 1
            run.ask_at = now + (_AGAIN_SECONDS if run.num_asked < _NUM_SOON else _SELDOM_SECONDS)
            silent = run.watch.silent()
            asked = next((one for one in ranks if one not in silent), ranks[0])
            with suppress(OSError):
                run.question = self._ask(key[1], pid=asked.pid, uid=asked.uid, now=now)
        if not run.heard_files and now - run.doubted_at > _WITHOUT_FILES_SECONDS:
            self._by_silence(key, run)

    def _num_out(self) -> int:
        return sum(run.question is not None for run in self._runs.values())

    def _hear(self, key: _Key, run: _Run, question: HangQuery) -> None:
        told = question.answer()
        if told is None or told.state is LiveHangState.NONE:
            return
        run.heard_files = True
        if told.state is LiveHangState.HANG and told.kind is not None:
            self._begin(key, run, Hang(told.kind, tuple(told.ranks), told.summary + self._more(run, told.ranks)))
        elif told.state is LiveHangState.BUSY and run.hang is not None:
            self._say_over(key, run, told.summary)

    def _by_silence(self, key: _Key, run: _Run) -> None:
        """No file tells anything: by whom nothing is heard of."""
        silent = [rank.rank for rank in run.watch.silent()]
        if silent and not run.watch.at_work():
            summary = f"{ranks_words(silent)} fell silent while the others do not get on"
            self._begin(key, run, Hang(HangKind.UNKNOWN, tuple(silent), summary + self._more(run, silent)))

    def _more(self, run: _Run, guilty: Sequence[int]) -> str:
        """What the kernel says of silent processes among the guilty."""
        said = []
        for rank in run.watch.silent():
            if rank.rank in guilty and rank.pid is not None:
                what = _STATES.get(self._process_state(rank.pid), "lives, and its Python does not run")
                said.append(f"process {rank.pid} of rank {rank.rank} {what}")
        return f" ({'; '.join(said[:4])})" if said else ""

    def _begin(self, key: _Key, run: _Run, hang: Hang) -> None:
        known, run.hang = run.hang, hang
        if known is None or (known.kind, known.ranks) != (hang.kind, hang.ranks):
            age = run.watch.age_seconds
            _log.warning("run %s hangs for %.0f s, %s: %s", key[0], age, hang.kind, hang.summary)

    def _end(self, key: _Key, run: _Run, why: str) -> None:
        if run.hang is not None:
            self._say_over(key, run, why)
        if run.question is not None:
            run.question.close()
        run.question, run.doubted_at, run.num_asked, run.heard_files = None, None, 0, False

    @staticmethod
    def _say_over(key: _Key, run: _Run, why: str) -> None:
        run.hang = None
        _log.warning("the hang of run %s is over: %s", key[0], why)


def _readings(run: str, hang: Hang, now_ns: int) -> Iterable[Reading]:
    yield Reading(TRAINING + "hang", 1.0, labels_of(run=run, kind=hang.kind), now_ns)
    for rank in hang.ranks[:_MOST_NAMED]:
        yield Reading(TRAINING + "hang_guilty", 1.0, labels_of(run=run, rank=rank), now_ns)


def _finding(run: str, hang: Hang, now_ns: int) -> Finding:
    ranks = ",".join(map(str, hang.ranks[:_MOST_NAMED]))
    message = f"run {run} hangs, {hang.kind}: {hang.summary}"
    return Finding("training_hang", message, labels_of(run=run, kind=hang.kind, ranks=ranks), now_ns)


_ANSWERS_WITHIN_SECONDS = 30.0
_GONE_WITHIN_SECONDS = 1.0
_LONGEST = 1 << 20


_FIRST_STEPS_SECONDS = 600.0
"""First steps load and compile."""
_NUM_FIRST_STEPS, _NUM_REMEMBERED = 3, 100
_SILENT_SECONDS = 8.0
"""A process speaks once a second."""
_TOLD_LATE_SECONDS = 5.0
"""Steps that ended just before a process did are heard of only after it has gone."""
