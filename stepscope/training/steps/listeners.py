"""Who is told of every step? One that fails is left out from then on, and neither training nor the others notice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar, runtime_checkable

from stepscope.training.steps.telemetry import StepRecord

logger = logging.getLogger(__name__)


class _Closable(Protocol):
    def close(self) -> None:
        """No step comes any more."""


class StepListener(_Closable, Protocol):
    """Something that watches the steps from the training thread: each call must be over in microseconds."""

    def step_began(self, index: int) -> None:
        """Step `index` runs from now on."""

    def step_ended(self, record: StepRecord) -> None:
        """The step is over and not written yet; figures added to the record are written with it."""


@runtime_checkable
class LeaveListener(Protocol):
    """A StepListener that also wants to know by what error the with block is left."""

    def left_by(self, error: BaseException) -> None:
        """Called once, before `close`."""


class SettledListener(_Closable, Protocol):
    """Something that is told of a step only once all its figures are there, on the training thread as well."""

    def step_settled(self, record: StepRecord) -> None:
        """The step is about to be written; what is added to the record is written with it."""


ListenerT = TypeVar("ListenerT", bound=_Closable)


class _Several(Generic[ListenerT]):
    def __init__(self, listeners: Iterable[ListenerT] = ()) -> None:
        self._listeners = list(listeners)

    def close(self) -> None:
        """Tell all, and forget them."""
        self._tell(lambda listener: listener.close())
        self._listeners.clear()

    def _tell(self, call: Callable[[ListenerT], None]) -> None:
        for listener in tuple(self._listeners):
            try:
                call(listener)
            except Exception as error:  # training must never be hurt
                self._listeners.remove(listener)
                name = type(listener).__name__
                logger.warning("stepscope goes on without its %s: %s: %s", name, type(error).__name__, error)


class Listeners(_Several[StepListener]):
    """Several listeners as one, which never raises."""

    def step_began(self, index: int) -> None:
        """Tell all."""
        self._tell(lambda listener: listener.step_began(index))

    def step_ended(self, record: StepRecord) -> None:
        """Tell all, in their order."""
        self._tell(lambda listener: listener.step_ended(record))

    def left_by(self, error: BaseException) -> None:
        """Tell those that want to know."""
        self._tell(lambda listener: listener.left_by(error) if isinstance(listener, LeaveListener) else None)


class SettledListeners(_Several[SettledListener]):
    """The same of those that wait for a step's late figures."""

    def step_settled(self, record: StepRecord) -> None:
        """Tell all, in their order."""
        self._tell(lambda listener: listener.step_settled(record))
