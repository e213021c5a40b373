"""Live hang check: each rank publishes the state of its long step, and one rank asks which ranks hold up the job.

All ranks write to flight/live within seconds of each other whether they wait or work; the files go when the step ends.
A rank sees only itself. The lowest rank that still writes starts a separate process, which reads all states.
"""

from __future__ import annotations

import json
import logging
import re
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepscope.core.documents.hang import RANK_STATE_SCHEMA, STALE_SECONDS, LiveHangState, RankState
from stepscope.core.documents.run_directory import FLIGHT_FOLDER, LIVE_FOLDER, RankFile
from stepscope.training.hangs import stall
from stepscope.training.hangs.device_wait import device_wait_call
from stepscope.training.hangs.stuck_report import code_location, collective_frames, flight_record
from stepscope.training.run.context import OpenStep, RunContext
from stepscope.training.run.run_files import atomic_write
from stepscope.training.run.side_process import SideProcess
from stepscope.training.steps.spans import open_phases

logger = logging.getLogger(__name__)

_STATE_EVERY_SECONDS = 4.0
_STILL_SECONDS = 6.0
_NUM_SAMPLES = 8


class LiveStateWriter:
    """Publishes this rank's state while its step is suspected of a hang; called about once a second in the background.

    A rank writes its state when its step is as old as its own limit, or when another rank writes: limits differ between
    ranks, and a rank without a state is suspected.
    """

    def __init__(self, context: RunContext, thread_id: int) -> None:
        self._context = context
        self._thread_id = thread_id
        self._folder = context.run_directory / FLIGHT_FOLDER / LIVE_FOLDER
        rank = context.identity.rank
        self._state = context.run_directory / RankFile.LIVE_STATE.path(rank)
        self._record = context.run_directory / RankFile.LIVE_RECORD.path(rank)
        self._stillness = stall.ThreadProgress(thread_id, num_samples=_NUM_SAMPLES)
        self._hang_check = LiveHangCheck(context.run_directory, rank, context.identity.world_size)
        self._step: OpenStep | None = None
        self._since_ns = 0
        self._written_at = 0.0
        self._has_written = False
        self._remove()  # left by an earlier attempt

    def look(self, now: float, step: OpenStep | None, limit: float, first_look_seconds: float) -> None:
        """Look at the open step.

        Args:
            now: monotonic seconds.
            limit: its age in seconds from which it is reported.
            first_look_seconds: age from which reports of other ranks are read.
        """
        if step != self._step:
            self._leave()
            self._step = step
        if step is None:
            return
        age = now - step.began_seconds
        if age < first_look_seconds:
            return
        still_seconds = self._stillness.look()
        if self._has_written or age >= limit or self._folder.is_dir():
            is_still = still_seconds >= min(_STILL_SECONDS, limit / 4)
            if not self._has_written or now - self._written_at >= min(_STATE_EVERY_SECONDS, limit):
                self._write_state(now, step, age, limit, is_still=is_still)
            self._hang_check.look(now, self._state, may_ask=is_still)

    def close(self, *, is_open: bool) -> None:
        """Stop; the file of a step that never ended stays."""
        self._hang_check.close()
        if not is_open:
            self._leave()

    def _write_state(self, now: float, step: OpenStep, age: float, limit: float, *, is_still: bool) -> None:
        if not self._has_written:
            self._has_written, self._since_ns = True, time.time_ns()
        self._written_at = now
        context, spans = self._context, self._context.open_spans()
        frames = list(stall.thread_frames(self._thread_id))
        is_in_collective = bool(collective_frames(frames))
        call = "" if is_in_collective else device_wait_call(frames)
        state = RankState(
            rank=context.identity.rank,
            host=context.identity.host,
            step=step.number,
            since_ns=self._since_ns,
            seen_ns=time.time_ns(),
            age_seconds=round(age, 3),
            limit_seconds=round(limit, 3),
            is_still=is_still,
            doing=self._doing(spans),
            where=code_location(spans, frames, None),
            is_in_collective=is_in_collective,
            device_wait=call and f"{call}() in {code_location([], frames, None)}",
        )
        try:
            record = flight_record(has_stacks=False)
            if record is not None:
                with atomic_write(self._record) as temporary:
                    temporary.write_bytes(record)
            with atomic_write(self._state) as temporary:
                temporary.write_text(json.dumps({"schema": RANK_STATE_SCHEMA} | asdict(state)), encoding="utf-8")
        except OSError as error:
            logger.debug("cannot say how a long step is: %s", error)

    def _doing(self, spans: list[str]) -> str:
        phases = open_phases(spans)
        if phases and phases[-1]:
            return f"phase {phases[-1]}"
        if stall.is_thread_compiling(self._thread_id):
            return "compilation"
        return "a checkpoint" if stall.is_thread_saving(self._thread_id) else ""

    def _leave(self) -> None:
        self._stillness.reset()
        self._hang_check.leave()
        if self._has_written:
            self._has_written = False
            self._remove()

    def _remove(self) -> None:
        for path in (self._state, self._record):
            with suppress(OSError):
                path.unlink()
        with suppress(OSError):  # another rank's files are in it
            self._folder.rmdir()


_FIRST_SECONDS = 4.0
_ASK_AGAIN_SECONDS = 5.0
_LAST_AGAIN_SECONDS = 60.0
_NUM_SOON = 12
"""Questions in short succession: a minute; the job may be at work for hours."""

_ANSWERS_WITHIN_SECONDS = 60.0
_STATE = re.compile(r"rank(\d+)\.state")


class LiveHangCheck:
    """Hang check of the running job: called about once a second while this rank's step lasts long.

    The process that reads the files of all ranks takes about half a second of CPU time and 40 MB, a few seconds
    after the step was found to last long; training's own process loads nothing.
    """

    def __init__(self, run_directory: Path, rank: int, world_size: int) -> None:
        self._run_directory = run_directory
        self._rank = rank
        self._is_alone = world_size == 1
        self._process: SideProcess | None = None
        self._asked = 0.0
        self._num_asked = 0
        self._next: float | None = None
        self._reported: tuple[Any, ...] | None = None
        self._was_busy = False

    def look(self, now: float, own_state: Path, *, may_ask: bool) -> None:
        """Ask, or hear the answer.

        Args:
            now: monotonic seconds.
            own_state: this rank's file, in the folder of all ranks' files.
            may_ask: False while this rank makes progress.
        """
        if self._is_alone:
            return
        if self._process is not None:
            self._read_answer(now)
        elif self._next is None:
            self._next = now + _FIRST_SECONDS
        elif now >= self._next:
            pause = _ASK_AGAIN_SECONDS if self._num_asked < _NUM_SOON else _LAST_AGAIN_SECONDS
            self._next = now + pause
            if may_ask and self._rank == _lowest_live_rank(own_state):
                self._ask(now)

    def leave(self) -> None:
        reported, self._reported = self._reported, None
        if reported is not None:
            logger.warning("training goes on: the hang is over")
        self._next, self._num_asked, self._was_busy = None, 0, False
        self.close()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _ask(self, now: float) -> None:
        self._num_asked += 1
        self._asked = now
        try:
            run = str(self._run_directory.absolute())
            self._process = SideProcess("stepscope.workflow.live_hang", run, answers=True)
        except (OSError, RuntimeError):  # no process can be had
            logger.debug("who holds training up cannot be asked", exc_info=True)

    def _read_answer(self, now: float) -> None:
        process = self._process
        assert process is not None
        if process.exit_code is None:
            if now - self._asked > _ANSWERS_WITHIN_SECONDS:
                self.close()
            return
        self._process = None
        with suppress(ValueError, KeyError, TypeError):
            self._log_verdict(json.loads(process.answer()))

    def _log_verdict(self, raw: dict[str, Any]) -> None:
        was_busy, self._was_busy = self._was_busy, raw["state"] == LiveHangState.BUSY
        if raw["state"] != LiveHangState.HANG:
            return
        if was_busy and set(raw["ranks"]) & set(raw["silent_ranks"]):
            return  # the step may have just ended: ranks leave one after the other
        what = (raw["kind"], *raw["ranks"])
        if what == self._reported:
            return
        self._reported = what
        logger.warning(
            "training hangs in step %s for %.0f s (%s, confidence %.0f%%): %s; more: stepscope hang %s",
            raw["step"],
            raw["age_seconds"],
            raw["kind"],
            100 * raw["confidence"],
            raw["summary"],
            self._run_directory,
        )


def _lowest_live_rank(own: Path) -> int | None:
    """By the times of the files alone, which one clock has made."""
    times = {}
    for path in own.parent.glob("rank*.state"):
        if match := _STATE.fullmatch(path.name):
            with suppress(OSError):
                times[int(match[1])] = path.stat().st_mtime
    newest = max(times.values(), default=0.0)
    return min((rank for rank, time in times.items() if newest - time < STALE_SECONDS), default=None)
