"""What does a pickle of plain data hold?"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import Any, NoReturn

from stepscope.collectors.plain_pickle.opcodes import UnsafePickleError, check_opcodes
from stepscope.core.errors import DataError

MOST_BYTES = 1 << 30
MOST_DEEP = 64
MOST_VALUES, MOST_VALUES_A_BYTE = 1_000_000, 256
"""One place may be referred to by two bytes, and be the stack of an allocation."""
_WHAT_NEXT = "give a file that torch itself wrote"
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
        raise UnsafePickleError(f"is larger than {most_bytes:,} bytes", where=where, what_next=_WHAT_NEXT)
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
        said = " ".join(str(error).split())[:120]
        raise DataError(f"is no whole pickle ({said})", where=where, what_next=_WHAT_NEXT) from None
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
    """Refuse what is nested without end, or so shared that whoever walks it does not come to an end."""
    ways: list[Iterator[Any]] = [iter((value,))]
    num_values = 0
    while ways:
        for one in ways[-1]:
            num_values += 1
            if num_values > most_values:
                raise UnsafePickleError("holds too many values", where=where, what_next=_WHAT_NEXT)
            if isinstance(one, _CONTAINERS):
                if len(ways) > MOST_DEEP:
                    raise UnsafePickleError("is nested too deeply", where=where, what_next=_WHAT_NEXT)
                ways.append(iter(one.values() if isinstance(one, dict) else one))
                break
        else:
            ways.pop()
