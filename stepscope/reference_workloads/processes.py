"""Processes of the local ranks: their start, and their end when one fails or the user interrupts.

On CPU the ranks are forked from this process, which has imported torch once: eight imports on two processors take
longer than the training. CUDA does not survive a fork, so there they are spawned.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, get_context, get_start_method
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

from stepscope.core.errors import StepscopeError, UnreachableError
from stepscope.core.process import about_to_fork, signal_at_parent_death
from stepscope.core.text.numbers import form
from stepscope.reference_workloads.job import TrainingJob, TrainingOutcome, TrainingProgress

_GRACE_SECONDS = 3.0  # a terminated rank has this long before it is killed


class RankFailedError(UnreachableError):
    """A rank of the workload died or raised; the others were ended. Exit code 4: the rank is out of reach."""


@dataclass(slots=True)
class _Rank:
    """A started rank as its parent sees it."""

    number: int
    process: Any
    messages: connection.Connection
    outcomes: list[TrainingOutcome] | None = None
    error: str | None = None
    refusal: StepscopeError | None = None
    """the error, where it is one that stepscope raised on purpose"""
    trace: str = ""
    ended_at: float | None = None
    """by the monotonic clock"""

    @property
    def ended(self) -> bool:
        return self.ended_at is not None


def run_ranks(job: TrainingJob, on_progress: Callable[[TrainingProgress], None]) -> list[TrainingOutcome]:
    """Start a workload's ranks on this machine and wait for all; returns their outcomes in order.

    Raises:
        RankFailedError: a rank died or raised; all have ended.
        StepscopeError: a rank raised this one, of whichever kind.
    """
    with _rendezvous_file() as file:
        ranks: list[_Rank] = []
        try:
            _start(ranks, job, f"file://{file}")
            _wait_for_ranks(ranks, on_progress, job.linger_seconds)
        finally:
            _end_all(ranks)
    for rank in ranks:
        if rank.outcomes is not None:
            return rank.outcomes
    raise RankFailedError("no rank reported a result")


@contextmanager
def _rendezvous_file() -> Iterator[str]:
    """Path of an empty file through which the ranks find each other.

    On Linux the file is in memory, reached through this process: nothing remains however this process ends.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("stepscope-rendezvous")
        try:
            path = f"/proc/{os.getpid()}/fd/{descriptor}"
            if os.access(path, os.R_OK | os.W_OK):
                yield path
                return
        finally:
            os.close(descriptor)
    with tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
        yield f"{folder}/rendezvous"


def _start(ranks: list[_Rank], job: TrainingJob, init_method: str) -> None:
    if job.device_type == "cpu":
        # Imported here, once, so that the forked ranks share it.
        import stepscope.reference_workloads.train  # noqa: F401
    if job.recipe.num_loader_workers(job.preset):
        # The folder of sockets through which batches come. Ranks take over their parent's, which removes it in the
        # end; one of a rank that is ended would stay.
        get_temp_dir()
    sys.stdout.flush()
    sys.stderr.flush()
    context: Any = get_context("fork" if job.device_type == "cpu" else "spawn")
    for number in range(job.plan.world_size):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            # Not a daemon: those may have no children, and a rank has its loader's workers.
            target=_run_rank,
            args=(job, number, init_method, theirs, os.getpid()),
            name=f"rank{number}",
        )
        with about_to_fork():
            process.start()
        theirs.close()
        ranks.append(_Rank(number, process, ours))


def _wait_for_ranks(ranks: list[_Rank], on_progress: Callable[[TrainingProgress], None], linger_seconds: float) -> None:
    """Receive messages until every rank has ended, or one has failed and the others have had time to report."""
    deadline: float | None = None
    while open_ranks := {rank.messages: rank for rank in ranks if not rank.ended}:
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = connection.wait(list(open_ranks), timeout)
        for messages in ready:
            _receive(open_ranks[messages], on_progress)  # type: ignore[index]  # we only wait for our own connections
        failed = [rank for rank in ranks if rank.ended and rank.outcomes is None]
        if failed and deadline is None:
            deadline = time.monotonic() + linger_seconds
        if deadline is not None and (not ready or time.monotonic() >= deadline):
            break
    failed = [rank for rank in ranks if rank.ended and rank.outcomes is None]
    if failed:
        _raise_first_failure(failed, len(ranks))


def _receive(rank: _Rank, on_progress: Callable[[TrainingProgress], None]) -> None:
    try:
        kind, content = rank.messages.recv()
    except (EOFError, OSError):
        rank.ended_at = time.monotonic()
        return
    if kind == "progress":
        on_progress(content)
    elif kind == "outcomes":
        rank.outcomes = content
    elif kind == "refusal":
        rank.refusal, rank.trace = content
        rank.error = str(rank.refusal)
    else:
        rank.error, rank.trace = content


def _raise_first_failure(failed: list[_Rank], num_ranks: int) -> None:
    """Name the rank that failed by itself, not one that only lost its peer or waited for it in vain."""
    for rank in failed:
        rank.process.join(_GRACE_SECONDS)

    def is_victim(rank: _Rank) -> tuple[bool, bool, float]:
        text = rank.error or ""
        lost_peer = rank.refusal is None and ("onnection" in text or "peer" in text)
        return bool(rank.error), lost_peer, rank.ended_at or 0.0

    culprit = min(failed, key=is_victim)
    code = culprit.process.exitcode
    if culprit.error is not None:
        what = f"rank {culprit.number} failed: {culprit.error}"
    elif code is not None and code < 0:
        what = f"rank {culprit.number} was killed by {signal.Signals(-code).name}"
    else:
        what = f"rank {culprit.number} ended with exit code {code} before the training was over"
    error: StepscopeError = RankFailedError(
        f"{what}; {form(num_ranks, 'the job was', f'all {num_ranks} ranks were')} ended"
    )
    error = culprit.refusal or error  # what stepscope refuses is the user's to mend, whichever process found it
    if culprit.trace:
        error.add_note(culprit.trace)
    raise error


def _end_all(ranks: list[_Rank]) -> None:
    """End every rank's process; none is left when this returns."""
    finished = all(rank.outcomes is not None for rank in ranks)
    deadline = time.monotonic() + _GRACE_SECONDS
    if not finished:
        for rank in ranks:
            rank.process.terminate()
    for rank in ranks:
        rank.process.join(max(0.0, deadline - time.monotonic()))
        if rank.process.is_alive():
            rank.process.kill()
            rank.process.join()
        rank.messages.close()
        rank.process.close()


def die_with(parent: int) -> None:
    """End a workload's process when its parent is gone, so that a killed parent leaves no orphans."""
    signal_at_parent_death(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def die_with_rank(rank: int, _worker: int) -> None:
    """End a workload's DataLoader worker when the process of its rank is gone.

    A fork server, where Python puts one between the two, ends with the rank and is the parent that counts.
    """
    die_with(os.getppid() if get_start_method() == "forkserver" else rank)


def _run_rank(job: TrainingJob, number: int, init_method: str, messages: Any, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C reaches the whole group; the parent ends its ranks
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with(parent)
    os.environ.update(
        RANK=str(number),
        LOCAL_RANK=str(number),
        WORLD_SIZE=str(job.plan.world_size),
        LOCAL_WORLD_SIZE=str(job.plan.world_size),
    )
    if Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are here; a host name may not resolve
    try:
        from stepscope.reference_workloads.train import train_rank

        outcomes = train_rank(job, lambda progress: messages.send(("progress", progress)), init_method=init_method)
        messages.send(("outcomes", outcomes))
    except StepscopeError as error:
        messages.send(("refusal", (error, traceback.format_exc())))
        sys.exit(1)
    except BaseException as error:  # whatever ends a rank is the parent's to report
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        messages.send(("error", (text, traceback.format_exc())))
        sys.exit(1)
    finally:
        messages.close()
