"""Calls of operators: their arguments, and the type of an operator's cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.roofline.element_types import bytes_of_dtype
from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.trace.columns import NONE, IntColumn, Shapes, TraceColumns
from stepscope.trace.rows import combinations

Dims = tuple[int, ...]
Floats = npt.NDArray[np.float64]

_COMPUTE_DTYPES = {
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "float": "float32",
    "double": "float64",
    "c10::Float8_e4m3fn": "float8",
    "c10::Float8_e5m2": "float8",
    "c10::Float8_e4m3fnuz": "float8",
    "c10::Float8_e5m2fnuz": "float8",
}


class OperatorCall(NamedTuple):
    """Arguments of one call; entry i of each tuple belongs to argument i.

    Attributes:
        dims: dimensions of a tensor, () for a 0-dimensional one; None for other arguments (scalars, lists).
        lists: dimensions of a list of tensors; None for other arguments and lists too long to be recorded.
        types: the profiler's name of the element type, or "Scalar", "ScalarList", "TensorList", "".
        values: text of scalars and lists, "" for tensors; empty where not recorded (torch < 2.1).
        list_element_bytes: bytes of one element of the lists' tensors, whose type is not recorded; None if unknown.
    """

    dims: tuple[Dims | None, ...]
    lists: tuple[tuple[Dims, ...] | None, ...]
    types: tuple[str, ...]
    values: tuple[str, ...]
    list_element_bytes: int | None = None

    def tensor(self, argument: int) -> Dims | None:
        """Dimensions of an argument, or None when it is not a tensor or not recorded."""
        return self.dims[argument] if argument < len(self.dims) else None

    def element_bytes(self, argument: int) -> int | None:
        """Bytes of one element of an argument, or None for unknown types."""
        return bytes_of_dtype(self.types[argument]) if argument < len(self.types) else None

    def num_bytes(self, argument: int) -> int | None:
        """Size of a tensor argument in bytes, or None when it is not a tensor or its type is unknown."""
        dims, width = self.tensor(argument), self.element_bytes(argument)
        return prod(dims) * width if dims is not None and width is not None else None

    def compute_dtype(self, argument: int) -> str | None:
        """An argument's element type as in core.hardware, or None."""
        return _COMPUTE_DTYPES.get(self.types[argument]) if argument < len(self.types) else None

    def list_elements(self, argument: int) -> int | None:
        """Elements of all tensors of a list, or None when it is not a list or not recorded."""
        dims = self.lists[argument] if argument < len(self.lists) else None
        return sum(map(prod, dims)) if dims is not None else None

    def flag(self, argument: int) -> bool | None:
        """A boolean argument's value, or None when not recorded."""
        text = self.values[argument] if argument < len(self.values) else ""
        return {"True": True, "False": False, "1": True, "0": False}.get(text)

    def integers(self, argument: int) -> Dims | None:
        """A list-of-integers argument's value, or None when not recorded."""
        text = self.values[argument] if argument < len(self.values) else ""
        return _as_integers(_parse(text)) if text.startswith("[") else None

    def integer(self, argument: int) -> int | None:
        """An integer argument's value, or None when not recorded."""
        text = self.values[argument] if argument < len(self.values) else ""
        return int(text) if text.lstrip("-").isdecimal() else None

    def flags(self, argument: int) -> tuple[bool, ...] | None:
        """A list-of-booleans argument's value, or None when not recorded."""
        text = self.values[argument] if argument < len(self.values) else ""
        return tuple(word.strip() == "True" for word in text[1:-1].split(",")) if text.startswith("[") else None


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """Least cost of an operator, over all the kernels it launches.

    Attributes:
        flops: FLOPs on the matrix units (a multiply-add is 2); 0 where those are not used.
        recomputed_flops: the part of them that repeats forward work (attention's backward); not model FLOPs.
        num_bytes: fewest bytes to and from memory: each input read once, each output written once.
        dtype: element type of the matrix operands as in core.hardware ("float32" leaves TF32 open); None where flops is
            0 or the type is not in its catalogue.
        families: families of the kernels that do the work; others of the operator are side kernels.
        side_bytes: fewest bytes of one side kernel by its family, where known.
        is_upper_bound: whether some kernels need fewer FLOPs (Winograd's).
    """

    flops: float
    recomputed_flops: float
    num_bytes: float
    dtype: str | None
    families: frozenset[Family]
    side_bytes: Mapping[Family, float] = field(default_factory=dict)
    is_upper_bound: bool = False


CostModel = Callable[[OperatorCall], OperatorCost | None]


def parse_call(shapes: Shapes, *, list_element_bytes: int | None = None) -> OperatorCall | None:
    """Parse a call's recorded shapes; None without valid ones."""
    dims, types, values = (
        _parse(text) for text in (shapes.input_dims, shapes.input_types, shapes.concrete_inputs or "[]")
    )
    if not isinstance(dims, list) or not isinstance(types, list) or not isinstance(values, list):
        return None
    return OperatorCall(
        dims=tuple(_tensor_dims(entry, kind) for entry, kind in zip_longest(dims, types[: len(dims)])),
        lists=tuple(_list_dims(entry) for entry in dims),
        types=tuple(str(entry) for entry in types),
        values=tuple(str(entry) for entry in values),
        list_element_bytes=list_element_bytes,
    )


def distinct_calls(
    trace: TraceColumns, operators: IntColumn, shapes: IntColumn
) -> tuple[list[tuple[str, Shapes] | None], npt.NDArray[np.intp]]:
    """Distinct pairs of operator name and shapes, and for each operator its index into them; there are few.

    Args:
        operators: rows, or NONE.
        shapes: index into the shape table by operator, or NONE; such operators share one entry, None.
    """
    names = np.where(shapes != NONE, trace.name[operators], NONE)
    which, first = combinations((names, shapes))
    calls = [
        None if place == NONE else (trace.names[name], trace.shape_table[place])
        for name, place in zip(names[first].tolist(), shapes[first].tolist(), strict=True)
    ]
    return calls, which


def _parse(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _tensor_dims(entry: object, kind: object) -> Dims | None:
    """Dimensions of a tensor; [] also stands for scalars and missing tensors, which have no element type."""
    return _as_dims(entry) or (() if entry == [] and bytes_of_dtype(kind) is not None else None)


def _list_dims(entry: object) -> tuple[Dims, ...] | None:
    if not isinstance(entry, list) or not entry:
        return None
    dims = [_as_dims(inner) for inner in entry]
    found = tuple(inner for inner in dims if inner is not None)
    return found if len(found) == len(dims) else None


_MOST = 2**40
"""Largest size of a dimension; a larger one is of a damaged trace."""


def _as_dims(entry: object) -> Dims | None:
    dims = _as_integers(entry)
    return dims if dims is not None and all(0 <= size <= _MOST for size in dims) else None


def _as_integers(entry: object) -> Dims | None:
    if not isinstance(entry, list) or not all(isinstance(size, int) for size in entry):
        return None
    return tuple(entry)
