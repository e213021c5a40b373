"""Observed phases: checkpoints, evaluations and data waits of a training loop that does not name them.

A checkpoint is a call that writes one: of torch, of its distributed checkpoint, of safetensors. An evaluation is the
reading of a DataLoader that does not train (`loader_waits`), or the time from `model.eval()` to `model.train()` without
a backward pass; the longer of both counts. A phase of the training code's own that is named so takes precedence. The
checkpoints inside of an evaluation are not part of it. Waits for the DataLoader that trains count where neither
`prof.data` nor whoever drives the profile has timed the step's own: the loops of trainers never use `prof.data`.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from stepscope.core.documents.run_directory import CHECKPOINT_BYTES
from stepscope.core.loader_waits import (
    Instant,
    Interval,
    LoaderWaits,
    duration_ns,
    keep_interval,
    timed_batches,
    timed_beginning,
)
from stepscope.core.process import Patch
from stepscope.training.settings.observed import ObservedSettings
from stepscope.training.steps.step_log import StepNotes
from stepscope.training.steps.telemetry import StepRecord

logger = logging.getLogger(__name__)

CHECKPOINT, EVALUATION = "checkpoint", "evaluation"

SAVING_FUNCTIONS: Mapping[str, Collection[str]] = {
    "torch.serialization": ("save",),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save", "save_state_dict"),
    "safetensors.torch": ("save_file", "save_model"),
}
"""Module -> its functions that write a checkpoint. Small ones count too: of optimizer, scheduler and random state."""

_MIN_EVALUATION_NS = 100_000
"""A model that is in evaluation mode for less was not evaluated."""

_EVALUATION_NAMES = ("eval", "valid")
"""What the names of phases contain by which training code tells of evaluations itself."""
_CHECKPOINT_NAMES = ("checkpoint", "save", "saving")
"""The same of checkpoints."""


class ObservedCheckpoints:
    """Opens the phase `checkpoint` around calls that write one, made by the thread that makes this object.

    Args:
        phase: opens a phase; None once nobody measures.
        open_phases: names of the phases that are open.
        running_step: number of the open step.
    """

    def __init__(
        self,
        phase: Callable[[str], AbstractContextManager[None] | None],
        open_phases: Callable[[], list[str]],
        running_step: Callable[[], int] = lambda: 0,
    ) -> None:
        self._phase = phase
        self._sizes: StepNotes[int | None] = StepNotes(running_step)
        self._open_phases = open_phases
        self._thread, self._pid = threading.get_ident(), os.getpid()
        self._is_saving = False
        self._patches: list[Patch] = []
        self._not_seen = set(SAVING_FUNCTIONS)
        self._look_for_modules()

    def look(self) -> None:
        if not sys.modules.keys().isdisjoint(self._not_seen):
            self._look_for_modules()

    def steps_ended(self, records: Sequence[StepRecord]) -> None:
        """Adds the bytes that were written, where all files of a step are known."""
        for record, sizes in self._sizes.of(records):
            known = [size for size in sizes if size is not None]
            if len(known) == len(sizes):
                record.figures = {CHECKPOINT_BYTES: sum(known)} | record.figures

    def close(self) -> None:
        self._is_saving = True  # nothing begins any more
        self._not_seen.clear()
        for patch in self._patches:
            patch.leave()

    def _look_for_modules(self) -> None:
        """Watch the functions of modules that are there by now, also under names that others have imported them by."""
        found = self._not_seen & sys.modules.keys()
        self._not_seen -= found
        functions = {
            id(function)
            for module in found
            for name in SAVING_FUNCTIONS[module]
            if (function := getattr(sys.modules[module], name, None)) is not None
        }
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            if type(names) is not dict or functions.isdisjoint(map(id, list(names.values()))):
                continue
            for name in [name for name, value in list(names.items()) if id(value) in functions]:
                self._patches.append(Patch(module, name, self._watched))

    def _watched(self, save: Callable[..., Any]) -> Callable[..., Any]:
        reference = weakref.ref(self)  # a run that is never ended is forgotten

        def saving(*args: Any, **kwargs: Any) -> Any:
            watch = reference()
            if watch is None or not watch._is_of_interest():
                return save(*args, **kwargs)
            phase = watch._begin()
            watch._is_saving = True
            try:
                with phase or nullcontext():
                    result = save(*args, **kwargs)
            finally:
                watch._is_saving = False
            watch._sizes.add(_saved_bytes(save, args, kwargs))
            return result

        return saving

    def _begin(self) -> AbstractContextManager[None] | None:
        """The phase around a call; None where the training code has opened one, and where nobody is to know of it."""
        if any(CHECKPOINT in name.lower() for name in self._open_phases()):
            return None
        return self._phase(CHECKPOINT)

    def _is_of_interest(self) -> bool:
        """Whether a call is the training thread's, and not inside of another."""
        return not self._is_saving and threading.get_ident() == self._thread and os.getpid() == self._pid


_FILE_ARGUMENTS = ("f", "filename")


def _saved_bytes(save: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Size of the file that a call has written; None where it is not one file with a name."""
    if str(getattr(save, "__module__", "")).startswith("torch.distributed"):
        return None
    file = args[1] if len(args) > 1 else next((kwargs[name] for name in _FILE_ARGUMENTS if name in kwargs), None)
    try:
        return os.path.getsize(file) if isinstance(file, (str, os.PathLike)) else None
    except OSError:
        return None


@dataclass(slots=True)
class _OpenEvaluation:
    """A model in evaluation mode, which may turn out to be one that is never trained.

    Attributes:
        learning_ask: when a batch was asked for with gradients recorded, and none without since: the evaluation was
            over by then.
        backward: the patch of what shows that it is none.
    """

    model: weakref.ref[Any]
    began: Instant
    backward: Patch
    learning_ask: Instant | None = None


class ObservedEvaluations:
    """Adds to training steps the phase `evaluation`, where the thread that makes this object evaluated the model, and
    its waits for batches to learn from.

    Args:
        now: the current instant.
        is_timed: whether others time the waits for batches.
        observed: gets the DataLoaders that are seen.
        running_step: number of the open step.
        ask_at_end: has the end of the open step told at once.
    """

    def __init__(
        self,
        now: Callable[[], Instant],
        observed: ObservedSettings,
        running_step: Callable[[], int] = lambda: 0,
        ask_at_end: Callable[[], None] = lambda: None,
        is_timed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._now, self._is_timed = now, is_timed
        self._observed = observed
        self._running_step, self._ask_at_end = running_step, ask_at_end
        self._noted_step = 0
        self._evaluations: deque[tuple[int, list[Interval]]] = deque()
        self._data_waits: deque[tuple[int, list[Interval]]] = deque()
        self._thread, self._pid = threading.get_ident(), os.getpid()
        self._waits = LoaderWaits()
        self._is_asking = self._has_failed = False
        self._open: _OpenEvaluation | None = None
        self._by_mode: list[Interval] = []
        import torch.utils.data.dataloader as loaders

        self._torch: Any = sys.modules["torch"]
        watch = weakref.ref(self)  # a run that is never ended is forgotten
        self._patches = [
            Patch(loaders.DataLoader, "__iter__", timed_beginning(watch)),
            Patch(loaders._BaseDataLoaderIter, "__next__", timed_batches(watch)),
            self._patch(self._torch.nn.Module, "train", ObservedEvaluations._mode_set),
        ]

    def steps_ended(self, records: Sequence[StepRecord]) -> None:
        if records[-1].index >= self._noted_step:
            self._end_evaluation()
            self._end_noted_step()
        for record in records:
            if self._data_waits:
                waits = _until(record.index, self._data_waits)
                for wait in waits if not record.data_wait_ns else ():
                    record.add_data_wait(wait)
            if self._evaluations or record.phases:
                self._add_to(record)

    def _add_to(self, record: StepRecord) -> None:
        found = _until(record.index, self._evaluations)
        names = [name for name in record.phases if _is_one_of(_EVALUATION_NAMES, name)]
        for name in names:
            if own := record.phase_intervals.pop(name, []):
                del record.phases[name]
                _add(name, _without_checkpoints(own, record), record)
        if not names and found:
            observed = _without_checkpoints(found, record)
            if duration_ns(observed) >= _MIN_EVALUATION_NS:
                _add(EVALUATION, observed, record)

    def _see_step(self) -> None:
        """Something is about to be noted: what is of the step before is complete."""
        step = self._running_step()
        if step != self._noted_step:
            self._end_noted_step()
            self._noted_step = step

    def _end_noted_step(self) -> None:
        waits, evaluations = self._waits.update()
        if waits and not self._is_timed():
            self._data_waits.append((self._noted_step, waits))
        by_mode, self._by_mode = self._by_mode, []
        if evaluations or by_mode:
            self._evaluations.append((self._noted_step, max(evaluations, by_mode, key=duration_ns)))

    def close(self) -> None:
        self._has_failed = True  # nothing begins any more
        self._close_evaluation(None)
        for patch in self._patches:
            patch.leave()

    def batch_asked(self) -> Instant | None:
        if self._is_asking or not self._is_of_interest():
            return None
        self._is_asking = True
        self._see_step()
        learns = self._torch.is_grad_enabled()
        asked = self._instant(learns)
        if self._open is not None:
            self._open.learning_ask = asked if learns else None
        return asked

    def loader_began(self, iterator: Any, asked: Instant) -> None:
        self._record_wait(self._waits.began, iterator, asked)

    def batch_came(self, iterator: Any, asked: Instant) -> None:
        learns = self._torch.is_grad_enabled()
        self._observed.loader_gave(iterator, learns=learns)
        self._record_wait(functools.partial(self._waits.gave, learns=learns), iterator, asked)

    def loader_ran_out(self, iterator: Any, asked: Instant) -> None:
        self._record_wait(self._waits.ran_out, iterator, asked)

    def loader_failed(self) -> None:
        self._is_asking = False

    def _record_wait(self, record: Callable[..., None], iterator: Any, asked: Instant) -> None:
        self._is_asking = False
        try:
            record(iterator, asked, self._instant(self._torch.is_grad_enabled()))
        except Exception as error:  # training must never be hurt
            self._give_up(error)

    def _instant(self, learns: bool) -> Instant:
        """Now; the GPU need not mark batches to learn from whose waits others time."""
        return Instant(time.monotonic_ns()) if learns and self._open is None and self._is_timed() else self._now()

    def _is_of_interest(self) -> bool:
        return not self._has_failed and threading.get_ident() == self._thread and os.getpid() == self._pid

    def _patch(self, owner: Any, name: str, notify: Callable[..., None]) -> Patch:
        return Patch(owner, name, functools.partial(_before, weakref.ref(self), notify))

    def _mode_set(self, model: Any, mode: bool = True) -> None:
        """`model.train(mode)` was called, which `model.eval()` calls too, also where a library overrides that."""
        if self._open is not None:
            if mode and model is self._open.model():
                self._end_evaluation()
        elif not mode and model.training and self._is_of_interest():
            self._see_step()
            self._ask_at_end()
            backward = self._patch(self._torch.autograd, "_engine_run_backward", ObservedEvaluations._went_backward)
            self._open = _OpenEvaluation(weakref.ref(model), self._now(), backward)

    def _went_backward(self, *_: object, **__: object) -> None:
        """That was no evaluation, but a frozen part or a teacher, unless someone set the mode without `train()`."""
        model = None if self._open is None else self._open.model()
        self._close_evaluation(self._open.learning_ask if self._open and model is not None and model.training else None)

    def _end_evaluation(self) -> None:
        if self._open is not None:
            self._close_evaluation(self._open.learning_ask or self._now())

    def _close_evaluation(self, ended: Instant | None) -> None:
        """Keep the open evaluation; None: it was none."""
        evaluation, self._open = self._open, None
        if evaluation is None:
            return
        evaluation.backward.leave()
        if ended is not None:
            keep_interval(self._by_mode, (evaluation.began, ended))

    def _give_up(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.warning("stepscope goes on without evaluations: %s: %s", type(error).__name__, error)


def _until(step: int, noted: deque[tuple[int, list[Interval]]]) -> list[Interval]:
    """The intervals noted in steps up to this one, which are taken out."""
    found: list[Interval] = []
    while noted and noted[0][0] <= step:
        found += noted.popleft()[1]
    return found


@functools.lru_cache(maxsize=1000)
def _is_one_of(parts: Collection[str], name: str) -> bool:
    return any(part in name.lower() for part in parts)


def _add(name: str, intervals: list[Interval], record: StepRecord) -> None:
    for interval in intervals:
        record.add_phase(name, interval)


def _without_checkpoints(evaluations: list[Interval], record: StepRecord) -> list[Interval]:
    """What is left of evaluations without the checkpoints inside of them."""
    for name, checkpoints in record.phase_intervals.items():
        if _is_one_of(_CHECKPOINT_NAMES, name):
            for inner in checkpoints:
                evaluations = [piece for evaluation in evaluations for piece in _without(evaluation, inner)]
    return evaluations


def _without(interval: Interval, inner: Interval) -> list[Interval]:
    """What is left of an interval without one that lies in it; another changes nothing."""
    (began, ended), (inner_began, inner_ended) = interval, inner
    if not began.ns <= inner_began.ns <= inner_ended.ns <= ended.ns:
        return [interval]
    return [(began, inner_began), (inner_ended, ended)]


def _before(
    find: Callable[[], ObservedEvaluations | None], notify: Callable[..., None], original: Callable[..., Any]
) -> Callable[..., Any]:
    """Wrapper that notifies the observer before the call."""
    from torch.compiler import is_compiling

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():  # first, so that compiled code knows nothing of us
            return original(*args, **kwargs)
        observer = find()
        if observer is not None:
            try:
                notify(observer, *args, **kwargs)
            except Exception as error:  # training must never be hurt
                observer._give_up(error)
        return original(*args, **kwargs)

    return call
