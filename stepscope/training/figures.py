"""Which of the figures given to `prof.step` are plain numbers that can be read without waiting for a GPU?"""

from __future__ import annotations

import logging
import numbers
import sys
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)


class FigureReader:
    """Reads figures step after step, and says once what it leaves out."""

    def __init__(self) -> None:
        self._has_left_out = False

    def read(self, figures: Mapping[str, object]) -> dict[str, int | float]:
        """The figures that are plain numbers."""
        plain, left_out = plain_numbers(figures)
        if left_out and not self._has_left_out:
            self._has_left_out = True
            kinds = ", ".join(f"{name} ({type(figures[name]).__name__})" for name in left_out)
            logger.warning("prof.step leaves out what is no plain number on the host: %s; give a float", kinds)
        return plain


def plain_numbers(figures: Mapping[str, object]) -> tuple[dict[str, int | float], list[str]]:
    """The numbers by name, and the names of what is not one.

    Taken: Python's and numpy's real numbers, arrays and CPU tensors of no dimension. Left out: tensors on a device,
    as reading one makes the host wait for it, and subclasses of tensors, as reading one may need the other ranks.
    """
    plain: dict[str, int | float] = {}
    left_out: list[str] = []
    for name, value in figures.items():
        number = _plain_number(value)
        if number is None:
            left_out.append(name)
        else:
            plain[name] = number
    return plain, left_out


def _plain_number(value: Any) -> int | float | None:
    if _is_zero_dimensional(value):
        value = value.item()
    if isinstance(value, (int, float)):  # True and False too: they stay what they are
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        try:
            return float(value)
        except OverflowError:  # a fraction larger than any float
            return None
    return None


def _is_zero_dimensional(value: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return type(value) is torch.Tensor and value.device.type == "cpu" and value.dim() == 0
    # numpy's own interface: arrays that live on a device offer another one.
    return hasattr(type(value), "__array_interface__") and value.shape == ()
