"""Are figures read where that costs nothing, and only there?"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest

from stepscope.training.figures import plain_numbers


def test_numbers_of_python_are_taken_and_all_else_is_named() -> None:
    figures = {"a": 1, "b": 0.5, "c": True, "d": Fraction(1, 4), "e": "1", "f": None, "g": [1], "h": 1j}
    plain, left_out = plain_numbers(figures)
    assert plain == {"a": 1, "b": 0.5, "c": True, "d": 0.25}
    assert left_out == ["e", "f", "g", "h"]
    assert plain_numbers({"x": Fraction(10**400), "y": Decimal(1)}) == ({}, ["x", "y"])


def test_numpys_scalars_and_arrays_without_dimension_are_taken() -> None:
    numpy = pytest.importorskip("numpy")
    figures = {"a": numpy.float32(0.5), "b": numpy.int64(3), "c": numpy.array(2.0), "d": numpy.bool_(True)}
    plain, left_out = plain_numbers({**figures, "e": numpy.ones(1)})
    assert plain == {"a": 0.5, "b": 3, "c": 2.0, "d": True}
    assert {type(value) for value in plain.values()} == {float, int, bool}
    assert left_out == ["e"]


def test_only_tensors_on_the_host_are_read() -> None:
    torch = pytest.importorskip("torch")

    class Distributed(torch.Tensor):  # type: ignore[misc, name-defined]  # torch is imported at run time
        def item(self) -> float:
            raise AssertionError("reading it would ask the other ranks")

    figures = {
        "host": torch.tensor(1.5, requires_grad=True),
        "device": torch.empty((), device="meta"),
        "subclass": torch.tensor(1.0).as_subclass(Distributed),
        "vector": torch.ones(2),
    }
    assert plain_numbers(figures) == ({"host": 1.5}, ["device", "subclass", "vector"])
