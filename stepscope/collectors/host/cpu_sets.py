"""Which CPUs does a list of the kernel name?"""

from __future__ import annotations

import re
from collections.abc import Iterable

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


def parse_cpu_list(text: str) -> frozenset[int] | None:
    """CPUs of "0-3,8,64-67"; none of an empty text; None where it is no list."""
    cpus: set[int] = set()
    words = [word.strip() for word in text.strip().split(",")] if text.strip() else []
    for word in words:
        match = _RANGE.fullmatch(word)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            return None
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def cpu_list(cpus: Iterable[int]) -> str:
    """The list in the kernel's way."""
    ranges: list[tuple[int, int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1] = (ranges[-1][0], cpu)
        else:
            ranges.append((cpu, cpu))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
