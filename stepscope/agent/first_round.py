"""Has each GPU answered once, or was it given up? Until then the GPUs' source is not ready."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from stepscope.agent.isolation import TargetState
from stepscope.core.counting import form
from stepscope.core.readings import MissingReason
from stepscope.core.words import number_runs

_LONGEST_SECONDS = 60.0
"""GPUs that hang are found one after the other; readiness waits no longer for them."""


class FirstRound:
    """Watches the GPUs from the driver's first answer on. Once it is over, it stays so."""

    def __init__(self, quiet_seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            quiet_seconds: while no GPU has answered, how long nothing must change until no more are expected: longer
                than one that hangs takes to be given up, behind which the others are found.
            clock: seconds, only forward.
        """
        self._quiet_seconds = quiet_seconds
        self._clock = clock
        self._began: float | None = None
        self._targets: tuple[TargetState, ...] = ()
        self._changed = 0.0
        self._is_over = False

    def waits_for(self, targets: Sequence[TargetState], refusal: MissingReason | None) -> str:
        """A line on who is still waited for; empty when it is over, or the driver itself is what does not answer.

        Args:
            targets: the GPUs that are known so far.
            refusal: why no GPU can be asked; None while they can.
        """
        if self._is_over or refusal is not None:
            self._is_over |= refusal not in (None, MissingReason.NOT_YET)
            return ""
        now = self._clock()
        if self._began is None or tuple(targets) != self._targets:
            self._began = now if self._began is None else self._began
            self._targets, self._changed = tuple(targets), now
        waiting = [int(dict(one.labels)["gpu"]) for one in targets if one.reason is None and one.answered_ns is None]
        has_answered = any(one.answered_ns is not None for one in targets)
        is_quiet = now - self._changed >= self._quiet_seconds
        if now - self._began >= _LONGEST_SECONDS or (not waiting and (has_answered or is_quiet)):
            self._is_over = True
            return ""
        if not waiting:
            return "no GPU has answered yet"
        return f"GPU {number_runs(sorted(waiting), dash='-')} {form(len(waiting), 'has', 'have')} not answered yet"
