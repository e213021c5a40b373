"""Is a field of a web config what it must be? Errors say where and never the value, which may be a secret."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stepscope.core.errors import UsageError


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Keys and values; none where there is nothing."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError("must have keys and values", where=where)
    return {str(name): content for name, content in value.items()}


def texts(content: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    """A list of texts; empty where there is none."""
    value = content.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UsageError("must be a list of texts", where=f"{where}.{name}")
    return tuple(value)


def text(content: Mapping[str, Any], name: str, where: str, default: str = "") -> str:
    """A text, or the default."""
    value = content.get(name, default)
    if not isinstance(value, str):
        raise UsageError("must be a text", where=f"{where}.{name}")
    return value


def refuse_others(content: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """No other keys than these."""
    known = sorted(known)
    for name in content:
        if name not in known:
            raise UsageError(f"unknown or unsupported key {name}; known: {', '.join(known)}", where=where)
