"""Patch of a torch function or method: a wrapper that passes everything through and can be undone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Patch:
    """An attribute of a class or module replaced by a wrapper of it, until `leave`.

    Args:
        wrapper: makes the function to call instead of the original, which it is given.

    Raises:
        AttributeError: the attribute does not exist, as in another version of torch.
    """

    def __init__(self, owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._owner = owner
        self._name = name
        self._original = original = getattr(owner, name)
        self._ours = functools.wraps(original)(wrapper(original))
        setattr(owner, name, self._ours)

    def leave(self) -> None:
        """Put the original back, unless someone has wrapped ours in turn: it must do nothing of its own from now on."""
        if getattr(self._owner, self._name) is self._ours:
            setattr(self._owner, self._name, self._original)
