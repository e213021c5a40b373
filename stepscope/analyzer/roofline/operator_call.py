"""Calls of operators: their arguments, and the type that states an operator's cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from math import prod

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.element_types import bytes_of_dtype
from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.rows import combinations
from stepscope.trace.columns import NONE, IntColumn, Shapes, TraceColumns

Dims = tuple[int, ...]

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


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call. Entry i of each tuple belongs to argument i.

    Attributes:
        dims: an argument's dimensions, () for a tensor of one number; None for what is no tensor (scalars, lists).
        lists: the dimensions of a list of tensors; None for what is none or was too long to be recorded.
        types: the profiler's word for its element type, or "Scalar", "ScalarList", "TensorList", "".
        values: text of scalars and lists, "" for tensors; empty where the profiler (before torch 2.1) kept none.
        list_element_bytes: bytes of one element of the lists' tensors, whose type is not recorded; None if unknown.
    """

    dims: tuple[Dims | None, ...]
    lists: tuple[tuple[Dims, ...] | None, ...]
    types: tuple[str, ...]
    values: tuple[str, ...]
    list_element_bytes: int | None = None

    def tensor(self, argument: int) -> Dims | None:
        """Dimensions of an argument, or None when it is no tensor or not recorded."""
        return self.dims[argument] if argument < len(self.dims) else None

    def element_bytes(self, argument: int) -> int | None:
        """Bytes of one element of an argument, or None for types we don't know."""
        return bytes_of_dtype(self.types[argument]) if argument < len(self.types) else None

    def num_bytes(self, argument: int) -> int | None:
        """Size of a tensor argument in bytes, or None when it is no tensor or its type is unknown."""
        dims, width = self.tensor(argument), self.element_bytes(argument)
        return prod(dims) * width if dims is not None and width is not None else None

    def compute_dtype(self, argument: int) -> str | None:
        """The word core.hardware has for an argument's element type, or None."""
        return _COMPUTE_DTYPES.get(self.types[argument]) if argument < len(self.types) else None

    def list_elements(self, argument: int) -> int | None:
        """Elements of all tensors of a list, or None when it is none or was not recorded."""
        dims = self.lists[argument] if argument < len(self.lists) else None
        return sum(map(prod, dims)) if dims is not None else None

    def flag(self, argument: int) -> bool | None:
        """A boolean argument's value, or None when not recorded."""
        text = self.values[argument] if argument < len(self.values) else ""
        return {"True": True, "False": False, "1": True, "0": False}.get(text)

    def integers(self, argument: int) -> Dims | None:
        """A list-of-integers argument's value, or None when not recorded."""
        text = self.values[argument] if argument < len(self.values) else ""
        return _as_dims(_parse(text)) if text.startswith("[") else None

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
    """The least an operator needs, over all the kernels it launches.

    Attributes:
        flops: FLOPs its kernels execute on the matrix units (a multiply-add is 2); 0 where those are not used.
        recomputed_flops: the part of them that repeats forward work (attention's backward), so no model FLOPs.
        num_bytes: fewest bytes to and from memory: each input read once, each output written once.
        dtype: element type of the matrix operands in core.hardware's words ("float32" leaves TF32 open); None where
            flops is 0 or the type is not in its catalogue.
        families: the kernels that do the work; others of the same operator are side kernels.
        side_bytes: fewest bytes of one side kernel by its family, where they are known.
        is_upper_bound: whether kernels are about that need fewer FLOPs (Winograd's).
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
    """Parse what the trace recorded, or None when it recorded no shapes or they make no sense."""
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
    """Operators' names and shapes are few: each pair of them once, and for each operator its index into them.

    Args:
        trace: one rank's events.
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
    """[] stands for scalars and missing tensors too: there the type is no element type."""
    return _as_dims(entry) or (() if entry == [] and bytes_of_dtype(kind) is not None else None)


def _list_dims(entry: object) -> tuple[Dims, ...] | None:
    if not isinstance(entry, list) or not entry:
        return None
    dims = [_as_dims(inner) for inner in entry]
    found = tuple(inner for inner in dims if inner is not None)
    return found if len(found) == len(dims) else None


def _as_dims(entry: object) -> Dims | None:
    if not isinstance(entry, list) or not all(isinstance(size, int) for size in entry):
        return None
    return tuple(entry)
