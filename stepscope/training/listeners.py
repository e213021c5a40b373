"""Who is told of every step? One that fails is left out from then on, and neither training nor the others notice."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from stepscope.training.telemetry import StepRecord

logger = logging.getLogger(__name__)


class StepListener(Protocol):
    """Something that watches the steps from the training thread: each call must be over in microseconds."""

    def step_began(self, index: int) -> None:
        """Step `index` runs from now on."""

    def step_ended(self, record: StepRecord) -> None:
        """The step is over and not written yet; figures added to the record are written with it."""

    def close(self) -> None:
        """No step comes any more."""


class Listeners:
    """Several listeners as one, which never raises."""

    def __init__(self, listeners: Iterable[StepListener] = ()) -> None:
        self._listeners = list(listeners)

    def step_began(self, index: int) -> None:
        """Tell all."""
        for listener in tuple(self._listeners):
            try:
                listener.step_began(index)
            except Exception as error:  # training must never be hurt
                self._leave_out(listener, error)

    def step_ended(self, record: StepRecord) -> None:
        """Tell all, in their order."""
        for listener in tuple(self._listeners):
            try:
                listener.step_ended(record)
            except Exception as error:  # training must never be hurt
                self._leave_out(listener, error)

    def close(self) -> None:
        """Tell all, and forget them."""
        for listener in tuple(self._listeners):
            try:
                listener.close()
            except Exception as error:  # training must never be hurt
                self._leave_out(listener, error)
        self._listeners.clear()

    def _leave_out(self, listener: StepListener, error: Exception) -> None:
        self._listeners.remove(listener)
        name = type(listener).__name__
        logger.warning("stepscope goes on without its %s: %s: %s", name, type(error).__name__, error)
