"""Which collective is each communication row? Their arguments as columns, their groups as one list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from msgspec import Raw

from stepscope.trace.columns import NONE, CommunicationCalls, IntColumn, ProcessGroup
from stepscope.trace.events import Arguments
from stepscope.trace.header import parse_ranks
from stepscope.trace.interning import Numbered, narrow
from stepscope.trace.mending import read_json

_NUMBERS = ("in_elements", "out_elements", "source_rank", "destination_rank", "sequence", "root_rank", "communicator")
_LARGEST = 2**63
"""An identity of 64 bits without a sign is kept modulo this."""


class CommunicationBuilder:
    """Collects the rows that name a collective."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._kinds: Numbered[str] = Numbered()
        self._dtypes: Numbered[str] = Numbered()
        self._groups: Numbered[tuple[bytes, bytes, bytes]] = Numbered()
        self._kind: list[int] = []
        self._dtype: list[int] = []
        self._group: list[int] = []
        self._numbers: dict[str, list[int]] = {name: [] for name in _NUMBERS}

    def add(self, rows: Iterable[int], arguments: Iterable[Arguments]) -> None:
        """Append rows (of the whole file) and their arguments."""
        for row, args in zip(rows, arguments, strict=True):
            self._rows.append(row)
            self._kind.append(self._kinds[args.collective or ""])
            dtype = _text(args.dtype)
            self._dtype.append(self._dtypes[dtype] if dtype else NONE)
            group = (bytes(args.group_name), bytes(args.group_description), bytes(args.group_ranks))
            self._group.append(self._groups[group] if any(group) else NONE)
            for name, values in self._numbers.items():
                values.append(whole_number(getattr(args, name), is_identity=name == "communicator"))

    def build(self, listed: tuple[ProcessGroup, ...]) -> tuple[CommunicationCalls, tuple[ProcessGroup, ...]]:
        """The columns, and all groups: those the header lists first, then those only the rows name.

        Args:
            listed: the header's groups; they complete a row's group of the same name.
        """
        groups, places = self._merge_groups(listed)
        group = [NONE if number == NONE else places[number] for number in self._group]
        calls = CommunicationCalls(
            row=_column(self._rows),
            kind=_column(self._kind),
            group=_column(group),
            dtype=_column(self._dtype),
            **{name: _column(values) for name, values in self._numbers.items()},
            kinds=tuple(self._kinds),
            dtypes=tuple(self._dtypes),
        )
        return calls, groups

    def _merge_groups(self, listed: tuple[ProcessGroup, ...]) -> tuple[tuple[ProcessGroup, ...], list[int]]:
        """All groups, and for each group seen in rows its place among them."""
        groups = list(listed)
        places: list[int] = []
        for texts in self._groups:
            seen = _group(*texts)
            place = next((place for place, group in enumerate(groups) if _is_same(group, seen)), len(groups))
            if place == len(groups):
                groups.append(seen)
            groups[place] = _united(groups[place], seen)
            places.append(place)
        return tuple(groups), places


def _column(values: list[int]) -> IntColumn:
    return narrow(np.array(values, np.int64))


def _is_same(group: ProcessGroup, seen: ProcessGroup) -> bool:
    """Names are unique within a process; nameless groups (before torch 2.4) are known by their members."""
    if group.name != seen.name:
        return False
    return group.ranks is None or seen.ranks is None or group.ranks == seen.ranks


def _united(group: ProcessGroup, seen: ProcessGroup) -> ProcessGroup:
    return ProcessGroup(group.name, group.description or seen.description, group.ranks or seen.ranks)


def _group(name: bytes, description: bytes, ranks: bytes) -> ProcessGroup:
    value = _parsed(name)
    return ProcessGroup(
        name="" if value is None else str(value),
        description=str(_parsed(description) or ""),
        ranks=parse_ranks(_parsed(ranks)),
    )


def _parsed(raw: Raw | bytes) -> Any:
    try:
        return read_json(bytes(raw))
    except (ValueError, RecursionError):
        return None


def _text(raw: Raw) -> str:
    value = _parsed(raw)
    return value if isinstance(value, str) else ""


def whole_number(raw: Raw, *, is_identity: bool = False) -> int:
    """An integer that may stand in quotes; NONE when it is absent, negative or (unless an identity) above int64."""
    value = _parsed(raw)
    if isinstance(value, str):
        value = int(value) if value.strip().isdecimal() and len(value) <= 20 else NONE
    if is_identity and isinstance(value, int) and _LARGEST <= value < 2 * _LARGEST:
        value -= _LARGEST
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST
    return value if is_count else NONE
