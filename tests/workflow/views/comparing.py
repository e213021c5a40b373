"""Comparison of views, field by field: types, element types and shapes too."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


def assert_same(a: Any, b: Any, where: str = "view") -> None:
    """Check that two values are equal in all that an analysis may see."""
    if isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), where
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), where
        return
    assert type(a) is type(b), where
    if dataclasses.is_dataclass(a):
        for field in dataclasses.fields(a):
            assert_same(getattr(a, field.name), getattr(b, field.name), f"{where}.{field.name}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for place, (one, other) in enumerate(zip(a, b, strict=True)):
            assert_same(one, other, f"{where}[{place}]")
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            assert_same(a[key], b[key], f"{where}[{key}]")
    else:
        assert a == b or a != a, where
