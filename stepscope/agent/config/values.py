"""Is this a value of that key? From a file, from a text of the environment, from a flag."""

from __future__ import annotations

import math
import tomllib
from typing import Any

from stepscope.agent.config.keys import Key
from stepscope.core.errors import UsageError

_CALLED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", tuple: "a list of texts"}


def typed(key: Key, value: Any, *, where: str) -> Any:
    """The value in the key's type.

    Args:
        key: whose value it is.
        value: as TOML or click give it.
        where: who said so, for the error.

    Raises:
        UsageError: it is of another type or outside of the key's limits.
    """
    if key.type is float and type(value) is int:
        value = float(value)
    if key.type is tuple and isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        value = tuple(value)
    if type(value) is not key.type:
        raise UsageError(f"must be {_CALLED[key.type]}, not {_shown(key, value)}", where=where)
    if isinstance(value, int | float) and not (key.least <= value <= key.most and math.isfinite(value)):
        raise UsageError(f"must be {_limits(key)}, not {_shown(key, value)}", where=where)
    if key.choices and value not in key.choices:
        allowed = ", ".join(choice or '""' for choice in key.choices)
        raise UsageError(f"must be one of {allowed}, not {_shown(key, value)}", where=where)
    return value


def from_text(key: Key, text: str, *, where: str) -> Any:
    """The value that a variable of the environment has: as in TOML, texts without quotes, lists also with commas.

    Raises:
        UsageError: it is none of the key's.
    """
    value: Any = text
    if key.type is tuple and not text.lstrip().startswith("["):
        value = [part.strip() for part in text.split(",") if part.strip()]
    elif key.type is not str:
        try:
            document = tomllib.loads(f"value = {text.strip()}")
            value = document["value"] if len(document) == 1 else text
        except (ValueError, RecursionError):
            pass
    return typed(key, value, where=where)


def _limits(key: Key) -> str:
    if key.most == math.inf:
        return "a number" if key.least == -math.inf else f"at least {key.least:g}"
    return f"{key.least:g} to {key.most:g}"


def _shown(key: Key, value: Any) -> str:
    return "that" if key.is_secret else repr(value) if isinstance(value, str) else str(value)
