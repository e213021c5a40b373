"""A wrapped loader behaves like the loader."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stepscope.core.loader_waits import duration_ns
from stepscope.training.steps.scalars import DeviceScalarReader, StepScalarReader
from stepscope.training.steps.spans import DataSpans, OpenSpans, SpanRecorder, wrap_data
from stepscope.training.steps.step_log import StepLog

_LOG = StepLog(lambda: None, StepScalarReader(DeviceScalarReader()))
_RECORDER = SpanRecorder(OpenSpans(lambda _: None), _LOG)


@pytest.fixture(autouse=True)
def _begun() -> None:
    _LOG.begin(0)
    _waits()


def _waits() -> list[int]:
    """Nanoseconds that were waited for data."""
    _LOG.end_step({})
    (record,) = _LOG.take()
    return [duration_ns([wait]) for wait in record.data_waits]


def _wrapped(loader: Any) -> Any:
    return wrap_data(loader, _RECORDER)


def _batches() -> Iterator[int]:
    yield from (1, 2, 3)


def test_an_iterator_stays_an_iterator() -> None:
    wrapped = _wrapped(_batches())
    assert iter(wrapped) is wrapped
    assert next(wrapped) == 1
    assert list(wrapped) == [2, 3]
    with pytest.raises(StopIteration):
        next(wrapped)
    wrapped.close()


def test_every_wait_is_counted() -> None:
    assert list(_wrapped([1, 2])) == [1, 2]
    assert len(_waits()) == 4  # of which one is that for the iterator


def test_beginning_an_iteration_is_a_wait_like_any_other() -> None:
    class SlowToBegin:
        def __iter__(self) -> Iterator[int]:
            time.sleep(0.05)
            return iter([1])

    assert list(_wrapped(SlowToBegin())) == [1]
    assert _waits()[0] >= 50e6


def test_what_fails_in_the_beginning_passes_unchanged_and_is_counted() -> None:
    class NotBegun:
        def __iter__(self) -> Iterator[int]:
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        list(_wrapped(NotBegun()))
    assert len(_waits()) == 1


def test_a_list_has_its_length_and_items() -> None:
    wrapped = _wrapped([4, 5, 6])
    assert (len(wrapped), wrapped[0], wrapped[-2:], 5 in wrapped, list(reversed(wrapped))) == (
        3,
        4,
        [5, 6],
        True,
        [6, 5, 4],
    )
    assert not hasattr(wrapped, "__next__")
    with pytest.raises(IndexError):
        wrapped[3]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_a_wrapped_copy(copied: Any) -> None:
    original = [[1], [2]]
    wrapped = copied(_wrapped(original))
    assert list(wrapped) == original
    original.append([3])
    assert len(wrapped) == 2


def test_what_is_set_on_the_wrapper_reaches_the_loader() -> None:
    class Loader:
        epoch = 0

        def __iter__(self) -> Iterator[int]:
            yield self.epoch

    loader = Loader()
    wrapped = _wrapped(loader)
    wrapped.epoch = 3
    assert (loader.epoch, list(wrapped)) == (3, [3])
    del wrapped.epoch
    assert loader.epoch == 0
    with pytest.raises(AttributeError, match="'list' object has no attribute 'epoch'"):
        _wrapped([1]).epoch = 1


def test_another_process_gets_the_loader_itself() -> None:
    assert pickle.loads(pickle.dumps(_wrapped([1, 2]))) == [1, 2]


def test_underscored_names_are_not_looked_for_in_the_loader() -> None:
    class Loader(list[int]):
        _private = 1
        public = 2

    wrapped = _wrapped(Loader())
    assert wrapped.public == 2
    with pytest.raises(AttributeError, match="_private"):
        _ = wrapped._private
    with pytest.raises(AttributeError, match="_loader"):
        _ = DataSpans.__new__(DataSpans)._loader  # as copy and pickle look before __init__ has run
