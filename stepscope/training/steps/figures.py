"""Which of the figures given to `prof.step` are single numbers that can be read without waiting for anything?"""

from __future__ import annotations

import logging
import numbers
import sys
from collections.abc import Callable, Mapping
from typing import Any

from stepscope.training.steps.late_figures import LateFigures, LateReader

logger = logging.getLogger(__name__)

_LARGEST = int(sys.float_info.max)
"""Whole numbers beyond have no place in arithmetic with floats: left out."""


class FigureReader:
    """Reads figures step after step, and says once what it leaves out."""

    def __init__(self, late_reader: LateReader) -> None:
        self._late_reader = late_reader
        self._has_left_out = False

    def read(self, figures: Mapping[str, object]) -> tuple[dict[str, int | float], list[LateFigures]]:
        """The figures that are single numbers: those on the host, and those on their way from a GPU."""
        plain, on_device, left_out = sorted_out(figures, self._late_reader.takes)
        if left_out and not self._has_left_out:
            self._has_left_out = True
            kinds = ", ".join(f"{name} ({type(figures[name]).__name__})" for name in left_out)
            logger.warning("prof.step leaves out what is no single number: %s; give a float", kinds)
        late = self._late_reader.take(on_device) if on_device else None
        return plain, [] if late is None else [late]


def sorted_out(
    figures: Mapping[str, object], is_on_device: Callable[[Any], bool]
) -> tuple[dict[str, int | float], dict[str, Any], list[str]]:
    """The numbers by name, the tensors on a GPU that hold one, and the names of what is neither.

    Taken: Python's and numpy's real numbers, arrays and tensors of no dimension, DTensors of which each rank holds
    the whole. Left out: other subclasses of tensors and other DTensors, as reading one may need the other ranks.
    """
    plain: dict[str, int | float] = {}
    on_device: dict[str, Any] = {}
    left_out: list[str] = []
    torch = sys.modules.get("torch")
    for name, value in figures.items():
        if type(value) is float or (type(value) is int and -_LARGEST <= value <= _LARGEST):
            plain[name] = value
        elif torch is None or not isinstance(value, torch.Tensor):
            number = _plain_number(value)
            if number is None:
                left_out.append(name)
            else:
                plain[name] = number
        elif (tensor := _single(torch, value)) is None:
            left_out.append(name)
        elif is_on_device(tensor):
            on_device[name] = tensor
        elif tensor.device.type == "cpu":
            plain[name] = tensor.item()
        else:
            left_out.append(name)
    return plain, on_device, left_out


def _single(torch: Any, value: Any) -> Any:
    """The plain tensor that holds this one real number; else None."""
    if type(value) is not torch.Tensor:
        value = _whole_here(torch, value)
    return value if type(value) is torch.Tensor and value.dim() == 0 and not value.is_complex() else None


def _whole_here(torch: Any, value: Any) -> Any:
    """This rank's part of a DTensor, when it is the whole and there already; else None."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or not isinstance(value, module.DTensor):
        return None
    if not all(placement.is_replicate() for placement in value.placements):
        return None
    with torch.no_grad():
        return value.to_local()  # of a class of its own while its values are still on their way


def _plain_number(value: Any) -> int | float | None:
    # numpy's own interface: arrays that live on a device offer another one.
    if hasattr(type(value), "__array_interface__") and value.shape == ():
        value = value.item()
    if isinstance(value, float):
        return value
    if isinstance(value, (int, numbers.Integral)):
        number = value if isinstance(value, int) else int(value)  # True and False stay what they are
        return number if -_LARGEST <= number <= _LARGEST else None
    if isinstance(value, numbers.Real):
        try:
            return float(value)
        except OverflowError:  # a fraction larger than any float
            return None
    return None
