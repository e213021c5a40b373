"""Hang detection of training runs on this node, and stalled NCCL communicators of any job.

`RunWatch` notices a step that lasts too long, `HangQuery` has a separate process read the dumps of the ranks, and
`HangSource` reports which run hangs and which ranks cause it. The agent itself never loads the dump readers.
`NcclRasSource` reports stalls as NCCL's own RAS service sees them. A stall alone is not a hang: it looks the same while
one rank writes a checkpoint.
"""

from __future__ import annotations

import json
import logging
import subprocess
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from stepscope.collectors.host.processes import process_state
from stepscope.collectors.nccl.rank_status import ask_ras, read_ras
from stepscope.collectors.readings_builder import NoValue, ReadingsBuilder
from stepscope.core.documents.hang import HangKind, LiveHang, LiveHangState, stall_threshold_seconds
from stepscope.core.documents.nccl_rank_status import RasCommunicator, RasStatus, ranks_behind
from stepscope.core.documents.node import TrainingRank
from stepscope.core.errors import DataError, printable
from stepscope.core.metrics.agent import TRAINING
from stepscope.core.metrics.readings import Collection, MissingReason
from stepscope.core.process import module_command
from stepscope.core.protocol.fields import read_object
from stepscope.core.text.numbers import ranks_words

_log = logging.getLogger(__name__)

_FIRST_QUERY_SECONDS = 3.0
"""Ranks report their state within seconds of each other."""
_FAST_RETRY_SECONDS, _SLOW_RETRY_SECONDS, _NUM_FAST_RETRIES = 4.0, 30.0, 15
_CONFIRM_SECONDS = 2.0
"""After ranks were at work, some may be silent because the step has just ended: they leave within a second or two."""
_WITHOUT_FILES_SECONDS = 8.0
"""Without files of the run after this time, silence on the socket decides alone."""
_FIRST_STEPS_SECONDS = 600.0
"""First steps load and compile."""
_NUM_FIRST_STEPS, _NUM_STEPS = 3, 100
_SILENT_SECONDS = 8.0
"""A process sends a heartbeat once a second."""
_LATE_REPORT_SECONDS = 5.0
"""Steps that ended just before a process did are reported only after it has gone."""
_ANSWER_SECONDS, _EXIT_SECONDS = 30.0, 1.0
_MAX_ANSWER_BYTES = 1 << 20
_MAX_QUERIES = 4
_MAX_RANKS_REPORTED = 32
_STATES = {"T": "is stopped", "t": "is held by a debugger", "D": "waits for a disk or driver", "": "has ended"}

_Key = tuple[str, str, int | None]


@dataclass(frozen=True, slots=True)
class RunHang:
    """A training run on this node that hangs; `ranks` are those that cause it, as far as they are known."""

    kind: HangKind
    ranks: tuple[int, ...]
    summary: str


class RunWatch:
    """The agent's watch for a hang of one run: steps and heartbeats of its ranks on this node."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_NUM_STEPS)
        self._steps: dict[int, int] = {}
        self._known: dict[int, tuple[TrainingRank, float]] = {}
        self._ranks: Sequence[TrainingRank] = ()
        self._now = 0.0

    def observe(self, ranks: Sequence[TrainingRank], now: float) -> None:
        """Record the state of the run's ranks, at least one; `now` in monotonic seconds."""
        self._ranks, self._now = ranks, now
        for rank in ranks:
            newest = rank.heartbeat
            if newest is None or newest.index is None or newest.ms is None:
                continue
            if self._steps.get(rank.rank) != newest.index:
                self._steps[rank.rank] = newest.index
                if newest.index >= _NUM_FIRST_STEPS:
                    self._seconds.append(newest.ms / 1e3)
        self._known |= {rank.rank: (rank, now) for rank in ranks}

    @property
    def limit_seconds(self) -> float:
        """Age from which an open step is suspected to hang."""
        return stall_threshold_seconds(self._seconds) if self._seconds else _FIRST_STEPS_SECONDS

    @property
    def age_seconds(self) -> float:
        """Age of the oldest open step of connected ranks."""
        return max((rank.step_age_ms or 0.0) / 1e3 for rank in self._ranks)

    @property
    def is_suspect(self) -> bool:
        return self.age_seconds >= self.limit_seconds

    def silent(self) -> list[TrainingRank]:
        """Ranks that took part when steps last ended, and are gone or send no heartbeats now."""
        here = {rank.rank for rank in self._ranks}
        without_heartbeat = [rank for rank in self._ranks if rank.heartbeat_age_ms >= _SILENT_SECONDS * 1e3]
        last_progress = self._now - self.age_seconds - _LATE_REPORT_SECONDS
        gone = [rank for number, (rank, seen) in self._known.items() if number not in here and seen >= last_progress]
        return sorted([*without_heartbeat, *gone], key=lambda rank: rank.rank)

    def in_phase(self) -> list[TrainingRank]:
        """Ranks that report a phase, such as a checkpoint."""
        silent = {rank.rank for rank in self.silent()}
        return [rank for rank in self._ranks if rank.doing and rank.rank not in silent]


@dataclass(slots=True)
class _Run:
    watch: RunWatch = field(default_factory=RunWatch)
    suspected_at: float | None = None
    next_query_at: float = 0.0
    num_queries: int = 0
    query: HangQuery | None = None
    has_files: bool = False
    was_busy: bool = False
    hang: RunHang | None = None


class HangQuery:
    """A process that reads the dumps of a run that may hang. Nothing here blocks, also where its file system hangs.

    Args:
        run_directory: path as the run's process has it.
        pid: of a process of the run, whose mount namespace is used; None: the agent's own.
        uid: owner whose files are read; None: anybody's.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, run_directory: str, *, pid: int | None, uid: int | None, now: float) -> None:
        about = [run_directory, *("" if number is None else str(number) for number in (uid, pid))]
        self._deadline = now + _ANSWER_SECONDS
        self._process = subprocess.Popen(
            module_command("stepscope.workflow.live_hang", *about),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def is_over(self, now: float) -> bool:
        """Whether the process has ended; it is killed after its deadline."""
        if self._process.poll() is None and now > self._deadline:
            self._process.kill()
        return self._process.poll() is not None

    def answer(self) -> LiveHang | None:
        """The answer, once it is over; None where there is none."""
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            content = stream.read(_MAX_ANSWER_BYTES)
        with suppress(ValueError, RecursionError, TypeError):
            # reasons and evidence are for who asks by hand, and not read here
            hang = read_object(LiveHang, json.loads(content) | {"reasons": None, "evidence": None})
            return replace(hang, summary=printable(hang.summary))
        return None

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # a process that hangs in the kernel is left behind
            self._process.wait(_EXIT_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


class HangSource:
    """The agent's source of hangs: watches the age of steps, and queries a run's dumps once a step has lasted too long.

    Args:
        process_state: letter of a process's state by its id; empty when it is gone.
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
        """State of all runs; never blocks."""
        now, now_ns = self._clock(), self._wall_clock_ns()
        by_run: dict[_Key, list[TrainingRank]] = defaultdict(list)
        for rank in self._ranks():
            by_run[rank.hello.run, rank.hello.run_directory, rank.uid].append(rank)
        for key in self._runs.keys() - by_run.keys():
            self._end(key, self._runs.pop(key), "its processes have ended")
        for key, ranks in by_run.items():
            self._observe(key, self._runs[key], ranks, now)
        into = ReadingsBuilder(now_ns)
        for key, run in self._runs.items():
            if run.hang is not None:
                _report(into, key[0], run.hang)
        return into.collection()

    def _observe(self, key: _Key, run: _Run, ranks: Sequence[TrainingRank], now: float) -> None:
        run.watch.observe(ranks, now)
        if not run.watch.is_suspect:
            self._end(key, run, "its steps go on")
            return
        if run.suspected_at is None:
            run.suspected_at, run.next_query_at = now, now + _FIRST_QUERY_SECONDS
        num_queries = sum(run.query is not None for run in self._runs.values())
        if run.query is not None and run.query.is_over(now):
            query, run.query = run.query, None
            self._take_answer(key, run, query.answer())
        elif run.query is None and now >= run.next_query_at and num_queries < _MAX_QUERIES:
            run.num_queries += 1
            is_fast = run.num_queries < _NUM_FAST_RETRIES
            run.next_query_at = now + (_FAST_RETRY_SECONDS if is_fast else _SLOW_RETRY_SECONDS)
            silent = run.watch.silent()
            through = next((one for one in ranks if one not in silent), ranks[0])
            with suppress(OSError):
                run.query = self._ask(key[1], pid=through.pid, uid=through.uid, now=now)
        if not run.has_files and now - run.suspected_at > _WITHOUT_FILES_SECONDS:
            self._judge_by_silence(key, run)

    def _take_answer(self, key: _Key, run: _Run, answer: LiveHang | None) -> None:
        if answer is None or answer.state is LiveHangState.NONE:
            return
        run.has_files = True
        was_busy, run.was_busy = run.was_busy, answer.state is LiveHangState.BUSY
        if was_busy and set(answer.ranks) & set(answer.silent_ranks):
            run.next_query_at = self._clock() + _CONFIRM_SECONDS
        elif answer.state is LiveHangState.HANG and answer.kind is not None:
            summary = answer.summary + self._silent_processes(run, answer.ranks)
            self._begin(key, run, RunHang(answer.kind, tuple(answer.ranks), summary))
        elif answer.state is LiveHangState.BUSY and run.hang is not None:
            self._log_over(key, run, answer.summary)

    def _judge_by_silence(self, key: _Key, run: _Run) -> None:
        """Without any file, ranks that sent no heartbeat are taken for the cause."""
        silent = [rank.rank for rank in run.watch.silent()]
        if silent and not run.watch.in_phase():
            summary = f"{ranks_words(silent)} fell silent while the others do not get on"
            self._begin(
                key, run, RunHang(HangKind.UNKNOWN, tuple(silent), summary + self._silent_processes(run, silent))
            )

    def _silent_processes(self, run: _Run, guilty: Sequence[int]) -> str:
        """State in the kernel of silent processes among the guilty ranks."""
        states = []
        for rank in run.watch.silent():
            if rank.rank in guilty and rank.pid is not None:
                state = _STATES.get(self._process_state(rank.pid), "is alive, but its Python code does not run")
                states.append(f"process {rank.pid} of rank {rank.rank} {state}")
        return f" ({'; '.join(states[:4])})" if states else ""

    def _begin(self, key: _Key, run: _Run, hang: RunHang) -> None:
        known, run.hang = run.hang, hang
        if known is None or (known.kind, known.ranks) != (hang.kind, hang.ranks):
            age = run.watch.age_seconds
            _log.warning("run %s hangs for %.0f s, %s: %s", key[0], age, hang.kind, hang.summary)

    def _end(self, key: _Key, run: _Run, why: str) -> None:
        if run.hang is not None:
            self._log_over(key, run, why)
        if run.query is not None:
            run.query.close()
        run.query, run.suspected_at, run.num_queries, run.has_files, run.was_busy = None, None, 0, False, False

    @staticmethod
    def _log_over(key: _Key, run: _Run, why: str) -> None:
        run.hang = None
        _log.warning("the hang of run %s is over: %s", key[0], why)


def _report(into: ReadingsBuilder, run: str, hang: RunHang) -> None:
    ranks = hang.ranks[:_MAX_RANKS_REPORTED]
    into.add(TRAINING + "hang", 1.0, run=run, kind=hang.kind)
    for rank in ranks:
        into.add(TRAINING + "hang_guilty", 1.0, run=run, rank=rank)
    message = f"run {run} hangs, {hang.kind}: {hang.summary}"
    into.note("training_hang", message, run=run, kind=hang.kind, ranks=",".join(map(str, ranks)))


_MIN_STALL_SECONDS = 15.0
_MAX_REPORTED = 16
_METRIC = TRAINING + "nccl_stalled_seconds"


class NcclRasSource:
    """The agent's source of stalled NCCL communicators on this node, as NCCL's RAS service sees them.

    Args:
        ranks: processes that are connected to the agent; they give a communicator's run, and whether it is in a phase.
    """

    def __init__(
        self,
        address: tuple[str, int],
        ranks: Callable[[], Sequence[TrainingRank]],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._address = address
        self._ranks = ranks
        self._clock, self._wall_clock_ns = clock, wall_clock_ns
        self._stalled = StallHistory()

    def collect(self) -> Collection:
        """Ask once. Nobody listening is normal: no NCCL job runs here."""
        name = f"{self._address[0]}:{self._address[1]}"
        try:
            status = read_ras(ask_ras(self._address), file=name)
        except ConnectionRefusedError:
            return Collection()
        except OSError as error:
            reason = MissingReason.TIMED_OUT if isinstance(error, TimeoutError) else MissingReason.UNREACHABLE
            return NoValue(reason, f"NCCL's RAS at {name}: {error.strerror or error}").of_all()
        except DataError as error:
            return NoValue(MissingReason.UNREADABLE, str(error)).of_all()
        stalled = self._stalled.observe(status, self._clock())
        lasting = [one for one in stalled if one.seconds >= _MIN_STALL_SECONDS][:_MAX_REPORTED]
        return self._collection(lasting, self._wall_clock_ns())

    def _collection(self, stalled: Iterable[StalledCommunicator], now_ns: int) -> Collection:
        into = ReadingsBuilder(now_ns)
        ranks = self._ranks()
        for one in stalled:
            ours = [rank for rank in ranks if rank.pid in one.processes]
            if any(rank.doing for rank in ours):
                continue
            run = ours[0].hello.run if ours else ""
            message = (
                f"communicator {one.communicator}: {ranks_words(list(one.ranks))} behind the others, and no count has"
                f" moved for {one.seconds:.0f} s: a hang, unless they are at work on something else"
            )
            into.add(_METRIC, one.seconds, run=run, communicator=one.communicator)
            into.note("nccl_stalled", message, run=run, communicator=one.communicator)
        return into.collection()


@dataclass(frozen=True, slots=True)
class StalledCommunicator:
    """An NCCL communicator that makes no progress.

    Attributes:
        ranks: ranks of the communicator that are behind the others, dead, or do not answer.
        processes: process ids of all its ranks, as on their hosts.
        seconds: since this was seen first.
    """

    communicator: str
    ranks: tuple[int, ...]
    processes: frozenset[int]
    seconds: float


class StallHistory:
    """Since when each NCCL communicator on this node has made no progress."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[object, float]] = {}

    def observe(self, status: RasStatus, now: float) -> list[StalledCommunicator]:
        """Communicators with ranks behind that have not changed since the last call; `now` in monotonic seconds."""
        since, found = {}, []
        for one in status.communicators:
            ranks = ranks_behind(one)
            if not ranks:
                continue
            counts = _counts(one)
            before, began = self._since.get(one.id, (None, now))
            since[one.id] = counts, began if before == counts else now
            if before == counts:
                processes = frozenset(rank.process for rank in (*one.ranks, *one.missing))
                found.append(StalledCommunicator(one.id, tuple(ranks), processes, now - began))
        self._since = since
        return found


def _counts(one: RasCommunicator) -> object:
    counts = tuple((rank.rank, tuple(sorted(rank.counts.items()))) for rank in one.ranks)
    return counts, tuple(rank.rank for rank in one.missing), one.groups
