"""Scalars are read where that costs nothing, and only there."""

from __future__ import annotations

import sys
from decimal import Decimal
from fractions import Fraction

import pytest

from stepscope.training.steps.scalars import split_scalars


def _plain(figures: dict[str, object]) -> tuple[dict[str, int | float], list[str]]:
    plain, on_device, left_out = split_scalars(figures, lambda _: False)
    assert on_device == {}
    return plain, left_out


def test_numbers_of_python_are_taken_and_all_else_is_named() -> None:
    figures = {"a": 1, "b": 0.5, "c": True, "d": Fraction(1, 4), "e": "1", "f": None, "g": [1], "h": 1j}
    plain, left_out = _plain(figures)
    assert plain == {"a": 1, "b": 0.5, "c": True, "d": 0.25}
    assert left_out == ["e", "f", "g", "h"]
    assert _plain({"x": Fraction(10**400), "y": Decimal(1)}) == ({}, ["x", "y"])


def test_whole_numbers_beyond_any_float_are_named() -> None:
    class Count(int):
        pass

    most = int(sys.float_info.max)
    figures: dict[str, object] = {
        "a": 10**400,
        "b": -(10**400),
        "c": Count(10**400),
        "d": most,
        "e": -most,
        "f": Count(3),
    }
    assert _plain(figures) == ({"d": most, "e": -most, "f": 3}, ["a", "b", "c"])


def test_numpys_scalars_and_arrays_without_dimension_are_taken() -> None:
    numpy = pytest.importorskip("numpy")
    figures = {"a": numpy.float32(0.5), "b": numpy.int64(3), "c": numpy.array(2.0), "d": numpy.bool_(True)}
    plain, left_out = _plain({**figures, "e": numpy.ones(1)})
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
    assert _plain(figures) == ({"host": 1.5}, ["device", "subclass", "vector"])


def test_tensors_on_a_gpu_are_for_later() -> None:
    torch = pytest.importorskip("torch")
    loss, phase, vector = torch.tensor(1.5), torch.tensor(1j), torch.ones(2)
    figures = {"loss": loss, "phase": phase, "vector": vector, "tokens": 8}
    plain, on_device, left_out = split_scalars(figures, lambda _: True)
    assert plain == {"tokens": 8}
    assert on_device["loss"] is loss
    assert left_out == ["phase", "vector"]


@pytest.mark.usefixtures("one_rank_group")
def test_a_dtensor_is_taken_where_each_rank_holds_the_whole() -> None:
    tensor = pytest.importorskip("torch.distributed.tensor")
    import torch
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))

    def distributed(value: object, placement: object) -> object:
        return tensor.DTensor.from_local(value, mesh, [placement], run_check=False)

    figures = {
        "whole": distributed(torch.tensor(2.5, requires_grad=True), tensor.Replicate()),
        "partial": distributed(torch.tensor(1.0), tensor.Partial()),
        "vector": distributed(torch.ones(2), tensor.Replicate()),
        "on_its_way": distributed(AsyncCollectiveTensor(torch.tensor(1.0)), tensor.Replicate()),
    }
    assert _plain(figures) == ({"whole": 2.5}, ["partial", "vector", "on_its_way"])
