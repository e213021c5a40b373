"""Who is told of every step? One that fails is left out from then on, and neither training nor the others notice."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar, runtime_checkable

from stepscope.training.steps.telemetry import StepRecord

logger = logging.getLogger(__name__)


class _Closable(Protocol):
    def close(self) -> None:
        """No step comes any more."""


class StepListener(_Closable, Protocol):
    """Something that watches the steps from the training thread: each call must be over in microseconds.

    One that has `step_began(index)` as well is told when a step begins.
    """

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
    """Several listeners as one, which never raises.

    Args:
        told: the methods of a listener, where it has them, that are called at each step; looked up once.
    """

    def __init__(self, listeners: Iterable[ListenerT], told: Iterable[str]) -> None:
        self._listeners = list(listeners)
        self._told = tuple(told)
        self._look_up()

    def close(self) -> None:
        """Tell all, and forget them."""
        listeners, self._listeners = self._listeners, []
        self._look_up()
        for listener in listeners:
            try:
                listener.close()
            except Exception as error:  # training must never be hurt
                self._leave_out(listener, error)

    def _look_up(self) -> None:
        self._methods = {
            name: [(each, getattr(each, name)) for each in self._listeners if hasattr(each, name)]
            for name in self._told
        }

    def _tell(self, name: str, what: object) -> None:
        for listener, method in self._methods[name]:
            try:
                method(what)
            except Exception as error:  # training must never be hurt
                self._leave_out(listener, error)

    def _leave_out(self, listener: ListenerT, error: Exception) -> None:
        self._listeners = [each for each in self._listeners if each is not listener]
        self._look_up()  # a list that is being gone through stays as it is
        name = type(listener).__name__
        logger.warning("stepscope goes on without its %s: %s: %s", name, type(error).__name__, error)


class Listeners(_Several[StepListener]):
    """Those that watch the steps from the training thread."""

    def __init__(self, listeners: Iterable[StepListener] = ()) -> None:
        super().__init__(listeners, ("step_began", "step_ended"))

    def step_began(self, index: int) -> None:
        """Tell all."""
        self._tell("step_began", index)

    def step_ended(self, record: StepRecord) -> None:
        """Tell all, in their order."""
        self._tell("step_ended", record)

    def left_by(self, error: BaseException) -> None:
        """Tell those that want to know."""
        for listener in tuple(self._listeners):
            if isinstance(listener, LeaveListener):
                try:
                    listener.left_by(error)
                except Exception as failure:  # training must never be hurt
                    self._leave_out(listener, failure)


class SettledListeners(_Several[SettledListener]):
    """Those that wait for a step's late figures."""

    def __init__(self, listeners: Iterable[SettledListener] = ()) -> None:
        super().__init__(listeners, ("step_settled",))

    def step_settled(self, record: StepRecord) -> None:
        """Tell all, in their order."""
        self._tell("step_settled", record)
