"""What does a rank whose step lasts long say of itself, so that someone can tell who holds up the whole job?

Told in flight/live, by every rank and all within seconds of each other, whether it waits or works; gone with the step.
Nothing is concluded here: a rank sees only itself.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from dataclasses import asdict

from stepscope.core.live_hang import RANK_STATE_SCHEMA, RankState
from stepscope.core.run_layout import FLIGHT_FOLDER, LIVE_FOLDER, live_record_path, live_state_path
from stepscope.training.run.run_directory import appearing_whole
from stepscope.training.settings import RunContext
from stepscope.training.steps.open_spans import open_phases
from stepscope.training.trouble.collectives_open import flight_record
from stepscope.training.trouble.live_judge import LiveJudge
from stepscope.training.trouble.stillness import Stillness, frames_of, is_compiling, is_saving
from stepscope.training.trouble.stuck_report import collective_frames, where_is

logger = logging.getLogger(__name__)

_AGAIN_SECONDS = 4.0
_STILL_SECONDS = 6.0
_NUM_SAMPLES = 8

OpenStep = tuple[int, float, int]
"""Its index, and when it began: monotonic seconds, and ns since the epoch."""


class LiveWatch:
    """Called about once a second, on the attendant's thread.

    A rank speaks when its step is as old as its own limit, or when another has begun to: ranks differ in what they are
    used to, and who stays silent is suspected.
    """

    def __init__(self, context: RunContext, thread_id: int) -> None:
        self._context = context
        self._thread_id = thread_id
        self._folder = context.run_directory / FLIGHT_FOLDER / LIVE_FOLDER
        rank = context.identity.rank
        self._state = context.run_directory / live_state_path(rank)
        self._record = context.run_directory / live_record_path(rank)
        self._stillness = Stillness(thread_id, num_samples=_NUM_SAMPLES)
        self._judge = LiveJudge(context.run_directory, rank, context.identity.world_size)
        self._step: OpenStep | None = None
        self._since_ns = 0
        self._told = 0.0
        self._has_told = False
        self._remove()  # left by an earlier attempt

    def look(self, now: float, step: OpenStep | None, limit: float, glance: float) -> None:
        """Look at the open step.

        Args:
            now: monotonic seconds.
            limit: its age in seconds from which it is worth telling of.
            glance: from which it is looked whether others tell of it.
        """
        if step is not self._step:
            self._leave()
            self._step = step
        if step is None:
            return
        age = now - step[1]
        if age < glance:
            return
        still_seconds = self._stillness.look()
        if self._has_told or age >= limit or self._folder.is_dir():
            is_still = still_seconds >= min(_STILL_SECONDS, limit / 4)
            if not self._has_told or now - self._told >= min(_AGAIN_SECONDS, limit):
                self._tell(now, step, age, limit, is_still=is_still)
            self._judge.look(now, self._state, may_ask=is_still)

    def close(self, *, is_open: bool) -> None:
        """No step comes any more. Of one that never ended, what was told stays."""
        self._judge.close()
        if not is_open:
            self._leave()

    def _tell(self, now: float, step: OpenStep, age: float, limit: float, *, is_still: bool) -> None:
        if not self._has_told:
            self._has_told, self._since_ns = True, time.time_ns()
        self._told = now
        context, spans = self._context, self._context.open_spans()
        frames = list(frames_of(self._thread_id))
        state = RankState(
            rank=context.identity.rank,
            host=context.identity.host,
            step=step[0],
            since_ns=self._since_ns,
            seen_ns=time.time_ns(),
            age_seconds=round(age, 3),
            limit_seconds=round(limit, 3),
            is_still=is_still,
            doing=self._doing(spans),
            where=where_is(spans, frames, None),
            is_in_collective=bool(collective_frames(frames)),
        )
        try:
            record = flight_record(has_stacks=False)
            if record is not None:
                with appearing_whole(self._record) as temporary:
                    temporary.write_bytes(record)
            with appearing_whole(self._state) as temporary:
                temporary.write_text(json.dumps({"schema": RANK_STATE_SCHEMA} | asdict(state)), encoding="utf-8")
        except OSError as error:
            logger.debug("cannot say how a long step is: %s", error)

    def _doing(self, spans: list[str]) -> str:
        phases = open_phases(spans)
        if phases and phases[-1]:
            return f"phase {phases[-1]}"
        if is_compiling(self._thread_id):
            return "compilation"
        return "a checkpoint" if is_saving(self._thread_id) else ""

    def _leave(self) -> None:
        self._stillness.reset()
        self._judge.leave()
        if self._has_told:
            self._has_told = False
            self._remove()

    def _remove(self) -> None:
        for path in (self._state, self._record):
            with suppress(OSError):
                path.unlink()
        with suppress(OSError):  # another rank's files are in it
            self._folder.rmdir()
