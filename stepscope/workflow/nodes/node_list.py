"""Node lists of Slurm: "gpu[001-004,9],login1" as the names of its nodes, as `scontrol show hostnames` prints them."""

from __future__ import annotations

import itertools
import re

from stepscope.core.errors import UsageError

MAX_NODES = 100_000
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?")
_PART = re.compile(r"([^\[\]]*)(?:\[([^\[\]]*)\])?")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def expand_node_list(text: str) -> list[str]:
    """Names of a node list, in its order.

    Raises:
        UsageError: it is not a node list, or has more than 100,000 nodes.
    """
    names = [name for one in _split(text) for name in _expanded(one, text)]
    if not names:
        raise UsageError("names no node", where=text, what_next=_NEXT)
    return names


_NEXT = "write it as gpu[001-128,130],login1"


def _split(text: str) -> list[str]:
    """Parts between the commas outside of brackets."""
    parts, depth = [""], 0
    for character in text.strip():
        depth += (character == "[") - (character == "]")
        if not 0 <= depth <= 1:
            raise UsageError("is not a node list: its brackets do not match", where=text, what_next=_NEXT)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    if depth:
        raise UsageError("is not a node list: its brackets do not match", where=text, what_next=_NEXT)
    return [part.strip() for part in parts if part.strip()]


def _expanded(part: str, text: str) -> list[str]:
    choices: list[list[str]] = []
    for match in _PART.finditer(part):
        if match[1]:
            choices.append([match[1]])
        if match[2] is not None:
            choices.append(_numbers(match[2], text))
    count = 1
    for each in choices:
        count *= len(each)
    if count > MAX_NODES:
        raise UsageError(f"has more than {MAX_NODES:,} nodes", where=text)
    names = ["".join(pieces) for pieces in itertools.product(*choices)]
    wrong = next((name for name in names if not _NAME.fullmatch(name)), None)
    if wrong is not None:
        raise UsageError(f"is not a node list ({wrong!r})", where=text, what_next=_NEXT)
    return names


def _numbers(ranges: str, text: str) -> list[str]:
    found: list[str] = []
    for one in ranges.split(","):
        match = _RANGE.fullmatch(one.strip())
        if match is None:
            raise UsageError(f"is not a node list: [{ranges}]", where=text, what_next=_NEXT)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= MAX_NODES:
            raise UsageError(f"is not a node list: [{one}]", where=text, what_next=_NEXT)
        found += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
        if len(found) > MAX_NODES:
            raise UsageError(f"has more than {MAX_NODES:,} nodes", where=text)
    return found
