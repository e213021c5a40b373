"""Types of options that take a size or a span of time."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import click


class Size(click.ParamType):  # type: ignore[type-arg]  # no type arguments before click 8.2
    """Bytes with a unit: 500GB (10^9), 500GiB or 500G (2^30)."""

    name = "size"
    _PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(i?)(B?)", re.IGNORECASE)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = self._PATTERN.fullmatch(str(value).strip())
        if match is None or (match[3] and not match[2]):
            self.fail(f"{value!r} is not a size such as 500GB or 1.5TiB", param, ctx)
        number, prefix, binary, unit = match.groups()
        base = 1000 if unit and not binary else 1024
        return int(float(number) * base ** " KMGTP".index(prefix.upper() or " "))


class Span(click.ParamType):  # type: ignore[type-arg]
    """A span of time in seconds: 30d, 12h, 90min, 2w; not 30m, which may be meant as months."""

    name = "span"
    _UNITS: ClassVar = {
        "s": 1.0,
        "min": 60.0,
        "h": 3_600.0,
        "d": 86_400.0,
        "w": 604_800.0,
        "y": 31_557_600.0,
    }
    _PATTERN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|min|h|d|w|y)")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = self._PATTERN.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a span of time such as 90min, 12h or 30d", param, ctx)
        return float(match[1]) * self._UNITS[match[2]]
