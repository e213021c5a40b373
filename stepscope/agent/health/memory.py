"""Memory of the health checks: restores what an earlier agent knew, and keeps what this one finds.

A state of the checks and one of the counted errors are kept together. The errors are counted at least as far as the
checks have seen them, and the kernel log is read on from there: an error counts once, whenever the agent is killed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from stepscope.agent.gpus.gpu_source import KernelLogState
from stepscope.agent.health.health_store import HealthStore
from stepscope.agent.health.lasting import (
    LastingHealth,
    WatchState,
    lasting_document,
    read_events,
    read_lasting,
    stored_event,
)
from stepscope.collectors.kernel_log import boot_id
from stepscope.core.hardware.health import HealthEvent

_log = logging.getLogger(__name__)

_LOAD_SECONDS = 5.0
_KEEP_EVERY_NS = 60 * 10**9
"""Between two states without an event: energy counters, by which a reset is known, and the time of the last look."""


class CountedErrors(Protocol):
    """Source of the errors in the kernel log, which goes on where an earlier agent ended."""

    def resume(self, state: KernelLogState | None, *, is_same_boot: bool) -> None:
        """Go on from there."""

    def state(self) -> KernelLogState | None:
        """What is counted now; None if that cannot be said at once."""


@dataclass(frozen=True, slots=True)
class RestoredHealth:
    """Health that an earlier agent left.

    Attributes:
        watch: state of the checks.
        ended: events that were over, the oldest first.
        is_same_boot: the kernel was not booted since.
    """

    watch: WatchState
    ended: tuple[HealthEvent, ...]
    is_same_boot: bool


class HealthMemory:
    """Memory of one machine's health. A context manager: keeps while it is open.

    Args:
        store: where it is kept.
        errors: source of the errors in the kernel log.
    """

    def __init__(
        self, store: HealthStore, errors: CountedErrors, *, this_boot: Callable[[], str | None] = boot_id
    ) -> None:
        self._store = store
        self._errors = errors
        self._boot_id = this_boot()
        self._open = ExitStack()
        self._kept_ns: int | None = None
        self._counted: object = None
        self._changes: list[HealthEvent] = []

    def __enter__(self) -> HealthMemory:
        self._open.enter_context(self._store)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def is_kept(self) -> bool | None:
        """Whether the last state is in the store; None before the first."""
        return self._store.is_kept

    def resume(self) -> RestoredHealth | None:
        """Have the kernel log read on; what an earlier agent left, None if nothing."""
        stored = self._store.stored(_LOAD_SECONDS)
        lasting: LastingHealth | None = None
        ended: tuple[HealthEvent, ...] = ()
        if stored.state is not None:
            try:
                lasting, ended = read_lasting(stored.state), read_events(stored.ended)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                _log.warning("the stored health cannot be read (%s: %s); it begins anew", type(error).__name__, error)
        before = lasting.boot_id if lasting else None
        is_same_boot = before is None or self._boot_id is None or before == self._boot_id
        self._errors.resume(lasting.log if lasting else None, is_same_boot=is_same_boot)
        return RestoredHealth(lasting.watch, ended, is_same_boot) if lasting else None

    def keep(
        self, watch: WatchState, changes: Iterable[HealthEvent], now_ns: int, *, has_note: bool = False
    ) -> int | None:
        """Have a state of the checks written if it differs in more than its values; its number for `is_written`.

        Args:
            changes: events that began or ended since the last one.
            has_note: an operator wrote to it.
        """
        self._changes += changes
        log = self._errors.state()  # after the checks: no error that they have seen is missing in it
        if log is None:
            return None
        counted = _counted(watch, log)
        is_due = self._kept_ns is None or not 0 <= now_ns - self._kept_ns < _KEEP_EVERY_NS
        if not (self._changes or has_note or is_due or counted != self._counted):
            return None
        self._kept_ns, self._counted = now_ns, counted
        is_urgent = bool(self._changes) or has_note
        ended = [stored_event(event) for event in self._changes if event.ended_ns is not None]
        self._changes = []
        document = lasting_document(LastingHealth(now_ns, self._boot_id, watch, log))
        return self._store.put(document, ended, is_urgent=is_urgent)

    def is_written(self, number: int | None, seconds: float) -> bool:
        """Wait for a state to be written; whether it is."""
        return number is None or self._store.wait(number, seconds)


def _counted(watch: WatchState, log: KernelLogState) -> object:
    """What must be written at once when it changes: counts of errors, here and as the checks have seen them."""
    seen = {key: gpu["counts"] for key, gpu in watch.xids.get("gpus", {}).items()}
    sxids = [(one.labels, one.value) for one in log.sxids]
    return log.xids, sxids, seen, watch.xids.get("followers"), watch.switches.get("counts"), log.position is None
