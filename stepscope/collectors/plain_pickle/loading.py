"""What does a pickle of plain data hold?"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import Any, NoReturn

from stepscope.collectors.plain_pickle.opcodes import WHAT_NEXT, UnsafePickleError, check_opcodes, no_whole_pickle

MOST_BYTES = 1 << 30
MOST_DEEP = 64
MOST_VALUES, MOST_VALUES_A_BYTE = 1_000_000, 256
"""One place may be referred to by two bytes, and be the stack of an allocation."""
_CONTAINERS = (dict, list, tuple)


def load_plain(content: bytes, *, where: str, most_bytes: int = MOST_BYTES) -> Any:
    """Dicts, lists, tuples, strings, bytes, numbers, booleans and None, whatever the pickle says.

    Args:
        content: the whole pickle, any protocol.
        where: its origin, for errors.
        most_bytes: of the pickle.

    Raises:
        UnsafePickleError: it could run something, or is too large or too deep.
        DataError: it is no whole pickle.
    """
    if len(content) > most_bytes:
        raise UnsafePickleError(f"is larger than {most_bytes:,} bytes", where=where, what_next=WHAT_NEXT)
    check_opcodes(content, where=where)
    try:
        value = _PlainUnpickler(io.BytesIO(content)).load()
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise no_whole_pickle(where, error) from None
    _check_extent(value, MOST_VALUES + MOST_VALUES_A_BYTE * len(content), where)
    return value


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        """Nothing is found."""
        raise pickle.UnpicklingError(f"asks for {module_name}.{global_name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        """Nothing lies outside."""
        raise pickle.UnpicklingError(f"refers to {pid!r} outside of it")


def _check_extent(value: Any, most_values: int, where: str) -> None:
    """Refuse what is nested without end, or so shared that whoever walks it does not come to an end.

    Each container is looked at once, however often it is shared: of each is known what walking it would take.
    """
    known: dict[int, tuple[int, int]] = {}
    way = [_Walk((value,))]
    on_way: set[int] = set()
    while True:
        walk = way[-1]
        for one in walk.rest:
            walk.num_values += 1
            if isinstance(one, _CONTAINERS):
                if id(one) in known:
                    num_values, deep = known[id(one)]
                    walk.num_values += num_values
                    walk.deep = max(walk.deep, deep + 1)
                elif id(one) in on_way:
                    raise UnsafePickleError("is nested too deeply", where=where, what_next=WHAT_NEXT)
                else:
                    on_way.add(id(one))
                    way.append(_Walk(one))
                    break
            if walk.num_values > most_values:
                raise UnsafePickleError("holds too many values", where=where, what_next=WHAT_NEXT)
        else:
            way.pop()
            if not way:
                return
            on_way.discard(id(walk.container))
            known[id(walk.container)] = walk.num_values, walk.deep
            way[-1].num_values += walk.num_values
            way[-1].deep = max(way[-1].deep, walk.deep + 1)
            if way[-1].num_values > most_values:
                raise UnsafePickleError("holds too many values", where=where, what_next=WHAT_NEXT)
        if len(way) - 1 + way[-1].deep > MOST_DEEP:
            raise UnsafePickleError("is nested too deeply", where=where, what_next=WHAT_NEXT)


class _Walk:
    """A container that is being walked: what is left of it, how many values were in it, how deep they lie."""

    __slots__ = ("container", "deep", "num_values", "rest")

    def __init__(self, container: Any) -> None:
        self.container = container
        self.rest: Iterator[Any] = iter(container.values() if isinstance(container, dict) else container)
        self.num_values = 0
        self.deep = 0
