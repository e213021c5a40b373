"""Reader in Python and accelerator in C compared: everything here is read by both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stepscope.core.errors import StepscopeError
from stepscope.core.process import PURE_VARIABLE
from stepscope.trace.columns import TraceColumns


def read_both_ways(read: Callable[[], TraceColumns]) -> TraceColumns:
    """What `read` returns (or raises) in Python alone, after the accelerator (where it is built) gave the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(PURE_VARIABLE, raising=False)
        accelerated = _outcome(read)
        patch.setenv(PURE_VARIABLE, "1")
        pure = _outcome(read)
    if isinstance(pure, StepscopeError) or isinstance(accelerated, StepscopeError):
        assert str(accelerated) == str(pure)
    else:
        assert_equal(accelerated, pure)
    if isinstance(pure, StepscopeError):
        raise pure
    return pure


def assert_equal(actual: Any, expected: Any) -> None:
    """Dataclasses field by field, columns with their types."""
    for field in filter(lambda field: field.compare, dataclasses.fields(expected)):
        ours, theirs = getattr(actual, field.name), getattr(expected, field.name)
        if isinstance(theirs, np.ndarray):
            assert ours.dtype == theirs.dtype, field.name
            assert np.array_equal(ours, theirs), field.name
        elif dataclasses.is_dataclass(theirs):
            assert_equal(ours, theirs)
        else:
            assert ours == theirs, field.name


def _outcome(read: Callable[[], TraceColumns]) -> TraceColumns | StepscopeError:
    try:
        return read()
    except StepscopeError as error:
        return error
