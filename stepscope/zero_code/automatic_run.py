"""Automatic run: starts a profile at the first optimizer update, ends a step at each, prints one line at exit.

Profiling begins at the first update, as rank and world size are known by then, on the thread that makes it. All methods
are called from wrappers around torch's own methods: an error here is logged once and ends the profiling.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from stepscope.core.loader_waits import LoaderWaits
from stepscope.core.text.numbers import counted
from stepscope.zero_code.step_detection import StepCycle

if TYPE_CHECKING:
    from stepscope.core.loader_waits import Instant
    from stepscope.training.profiling_session import Profile


logger = logging.getLogger(__name__)

_FOREIGN_THREAD: Any = getattr(threading, "_DummyThread", ())

P = ParamSpec("P")
T = TypeVar("T")
Method = Callable[Concatenate["AutomaticRun", P], T]


def _harmless(otherwise: T) -> Callable[[Method[P, T]], Method[P, T]]:
    """An error in the method ends the measuring, and training gets this answer instead."""

    def guard(method: Method[P, T]) -> Method[P, T]:
        @functools.wraps(method)
        def guarded(self: AutomaticRun, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:  # training must never be hurt
                self._give_up(error)
                return otherwise

        return guarded

    return guard


class AutomaticRun:
    """Measures a process of `stepscope run` through `stepscope.profile`, of which there is one a process.

    Attributes:
        hides_updates: updates made now train nothing.
        has_unseen_update: an update was made where no step can end: inside a compiled function, of which no Python is
            left, or on one of autograd's threads. The next batch asked for or gradient cleared ends the step. A
            compiled function may set this attribute and do nothing else: so much is free of recompilation.
    """

    def __init__(self) -> None:
        self.hides_updates = False
        self.has_unseen_update = False
        self._counts_unseen = False
        self._is_step_due = False
        self._profile: Profile | None = None
        self._is_off = False
        self._thread: int | None = None
        self._depth = 0
        self._is_asking = False
        self._waits = LoaderWaits()
        self._cycle = StepCycle()
        self._num_steps = 0
        self._speaks = True
        self._has_optimizer = False
        self._ends_at_exit = False

    @_harmless(None)
    def optimizer_made(self) -> None:
        """An optimizer of a new class is there, so this process may be about to train."""
        self._has_optimizer = True
        self._end_at_exit()

    @_harmless(None)
    def gradients_made(self) -> None:
        """Gradients were computed, so this process may train with an optimizer that is not torch's."""
        self._end_at_exit()

    def _end_at_exit(self) -> None:
        if not self._ends_at_exit:
            self._ends_at_exit = True
            _at_exit(self._end)
            os.register_at_fork(after_in_child=self._in_child)

    @_harmless(False)
    def update_begins(self, optimizer: Any) -> bool:
        """Whether the update that begins is recorded."""
        if self._is_off or self.hides_updates:
            return False
        if threading.get_ident() != self._thread and not self._is_on_training_thread():
            self.has_unseen_update |= _is_autograds()
            return False
        if self._profile is None and not self._begin(optimizer):
            return False
        if self._is_step_due and self._depth == 0 and self._cycle.counts(optimizer):
            self.end_due_step()
        self._depth += 1
        return True

    @_harmless(None)
    def update_ended(self, optimizer: Any, *, is_last: bool = True) -> None:
        """The update is made; what wraps another optimizer counts, and not the one inside it.

        Args:
            is_last: else something follows that belongs to the step, and calls `end_due_step`.
        """
        self._depth -= 1
        if self._is_off:
            return
        if self._depth == 0 and not self._counts_unseen and self._cycle.ends_with(optimizer):
            self._is_step_due = not is_last
            if is_last:
                self._end_step()

    def update_failed(self) -> None:
        self._depth -= 1

    @_harmless(None)
    def end_due_step(self) -> None:
        """End the step whose update was made, if it is not ended yet."""
        if self._is_step_due and not self._is_off and threading.get_ident() == self._thread:
            self._is_step_due = False
            self._end_step()

    @_harmless(None)
    def end_unseen_step(self) -> None:
        """End the step of an update that was not seen, unless others are seen and counted."""
        if not self.has_unseen_update or self._is_off or not self._is_on_training_thread():
            return
        self.has_unseen_update = False
        if self._profile is None:
            self._counts_unseen = True
            self._begin()
        if self._counts_unseen and not self._is_off:
            self._end_step()

    def batch_asked(self) -> Instant | None:
        """When the wait for a batch begins; None where it is not recorded."""
        return self._profile.now() if self._is_wait_recorded() and self._profile is not None else None

    @_harmless(False)
    def _is_wait_recorded(self) -> bool:
        """Whether the wait that begins is recorded; of nested loaders the outer one's is."""
        if self._is_off or self._is_asking or (self._profile is None and not self.has_unseen_update):
            return False
        if threading.get_ident() != self._thread and not self._is_on_training_thread():
            return False
        if self.has_unseen_update:
            self.end_unseen_step()
        if self._is_step_due:
            self.end_due_step()
        self._is_asking = self._profile is not None
        return self._is_asking

    def loader_began(self, iterator: Any, asked: Instant) -> None:
        self._record_wait(self._waits.began, iterator, asked)

    def batch_came(self, iterator: Any, asked: Instant) -> None:
        learns = sys.modules["torch"].is_grad_enabled()
        self._record_wait(functools.partial(self._waits.gave, learns=learns), iterator, asked)

    def loader_ran_out(self, iterator: Any, asked: Instant) -> None:
        self._record_wait(self._waits.ran_out, iterator, asked)

    def loader_failed(self) -> None:
        self._is_asking = False

    @_harmless(None)
    def _record_wait(self, record: Callable[..., None], iterator: Any, asked: Instant) -> None:
        self._is_asking = False
        if self._profile is not None:
            record(iterator, asked, self._profile.now())

    def _is_on_training_thread(self) -> bool:
        """The first to update, or to ask for a batch after an update that was not seen, is the training thread."""
        if self._thread is None and not _is_autograds():
            self._thread = threading.get_ident()
        return threading.get_ident() == self._thread

    def _begin(self, optimizer: Any = None) -> bool:
        self._profile = _begun_profile()
        if self._profile is not None:
            self._profile.optimizer_seen(optimizer)
        self._is_off = self._profile is None
        self._speaks = prints_on_this_rank()
        return not self._is_off

    def _give_up(self, error: Exception) -> None:
        """Say once why, and be a no-op from now on."""
        was_off, self._is_off = self._is_off, True
        with suppress(Exception):  # a handler of the user's log may raise, too
            if self._profile is not None:
                self._profile.stop_for(error)
            elif not was_off:
                logger.warning("stepscope does not measure this process: %s: %s", type(error).__name__, error)

    def _end_step(self) -> None:
        assert self._profile is not None
        if not self._profile.is_measuring:  # a profile of the user's own has taken its place
            self._is_off = True
            return
        waits, _ = self._waits.update()  # the profile itself sees evaluations, and checkpoints
        for wait in waits:
            self._profile.count_data_wait(wait)
        self._profile.step()
        self._num_steps += 1

    def _in_child(self) -> None:
        """In a process forked from this one: what was begun is the parent's, and so is its loop."""
        self._is_off = self._is_off or self._profile is not None
        self._profile = None

    @_harmless(None)
    def _end(self) -> None:
        """The process ends."""
        was_off, self._is_off = self._is_off, True
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.__exit__(getattr(sys, "last_type", None), None, None)
            if self._speaks:
                print_next_steps(profile.where, self._num_steps)
        elif not was_off and prints_on_this_rank() and not _was_profiled():
            no_update = NO_UPDATE if self._has_optimizer else NO_OPTIMIZER
            print_line(IN_COMPILED_CODE if self.has_unseen_update else no_update)


def _begun_profile() -> Profile | None:
    """None where this process was not asked to measure itself, or a profile of the user's own does it."""
    from stepscope.training.entry_points import profile
    from stepscope.training.profiling_session import is_measured
    from stepscope.zero_code.launch import take_options

    options = take_options(os.environ)
    if options is None or is_measured():
        return None
    prof = profile(
        options.run,
        options.out,
        options.schedule,
        options.ranks,
        with_stack=options.with_stack,
        reduce=options.reduce,
        keep_traces=options.keep_traces,
    )
    prof.gives_way = True
    return prof.__enter__()


def _was_profiled() -> bool:
    """Whether a profile of the user's own has measured this process."""
    session = sys.modules.get("stepscope.training.profiling_session")
    return session is not None and session.was_measured()


def _at_exit(end: Any) -> None:
    """Also in a process that multiprocessing forked, which leaves Python without its last rites."""
    atexit.register(end)
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, end, exitpriority=0)


def _is_autograds() -> bool:
    """Whether Python did not begin the current thread, as is so for the threads on which autograd goes backward."""
    return isinstance(threading.current_thread(), _FOREIGN_THREAD)


NO_UPDATE = (
    "an optimizer was made, but no update of it was seen, so nothing was measured; "
    "next: call prof.step() of a stepscope.profile after each update"
)
NO_OPTIMIZER = (
    "gradients were computed, but no update by an optimizer of torch was seen, so nothing was measured; "
    "next: call prof.step() of a stepscope.profile after each update"
)
IN_COMPILED_CODE = (
    "updates were made where their ends are not seen, as in a compiled step, so nothing was measured; "
    "next: call prof.step() of a stepscope.profile after each"
)


def prints_on_this_rank() -> bool:
    """Whether this rank prints for `stepscope run`: only rank 0 does; asked while torch.distributed is initialised."""
    from stepscope.training.run.identity import identify_process

    return identify_process().rank == 0


def print_next_steps(run: str, num_steps: int) -> None:
    """Print the last line of `stepscope run`: what to do next; nothing where measuring stopped, which logged why.

    Args:
        run: its directory or URL; empty where nothing is written.
    """
    if run:
        next_steps = f"stepscope analyze {run}, stepscope steps {run}"
        print_line(f"{counted(num_steps, 'step')} measured; next: {next_steps}")


def print_line(what: str) -> None:
    """Print one line of `stepscope run` on stderr, if there is one."""
    try:
        sys.stderr.write(f"stepscope: {what}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # closed, or not there
        return
