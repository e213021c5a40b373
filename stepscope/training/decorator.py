"""How is a function measured that is a training loop, or one step of it?"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from stepscope.training.entry import profile
from stepscope.training.profile import Profile

R = TypeVar("R")

_PARAMETER = "prof"


def profiled(**options: Any) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """A decorator; options as of `stepscope.profile`.

    A function with a parameter `prof` is a training loop: it is given the profile, which begins and ends with the call.
    Any other function is a step of one: each call that returns ends a step, and measuring goes on until the process
    ends.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        is_loop = _PARAMETER in inspect.signature(function).parameters
        return _loop(function, options) if is_loop else _step(function, options)

    return decorate


def _loop(function: Callable[..., R], options: dict[str, Any]) -> Callable[..., R]:
    @functools.wraps(function)
    def measured(*args: Any, **kwargs: Any) -> R:
        with profile(**options) as prof:
            return function(*args, **{_PARAMETER: prof} | kwargs)

    return measured


def _step(function: Callable[..., R], options: dict[str, Any]) -> Callable[..., R]:
    begun: list[Profile] = []

    @functools.wraps(function)
    def measured(*args: Any, **kwargs: Any) -> R:
        if not begun:
            begun.append(profile(**options))
            begun[0].__enter__()
        result = function(*args, **kwargs)
        begun[0].step()
        return result

    return measured
