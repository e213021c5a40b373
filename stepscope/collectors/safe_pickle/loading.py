"""Check of a pickle's opcodes, and an unpickler that builds plain data only.

The check runs before any unpickler sees the pickle. It refuses opcodes that call, import or refer to something outside;
lengths beyond the end of the file, for which a reader would allocate memory; memo places far beyond those filled, for
the same reason; and endlessly nested tuples, which Python hashes by recursion in C until it crashes.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Iterator
from mmap import mmap
from typing import Any, NoReturn

from stepscope.collectors.inputs import malformed_as_data_error
from stepscope.core.errors import DataError

MAX_BYTES = 1 << 30
MAX_DEPTH = 64
MAX_VALUES, MAX_VALUES_PER_BYTE = 1_000_000, 256
"""Two bytes may refer to a memo place that holds the stack of an allocation."""
_CONTAINERS = (dict, list, tuple)


def load_plain(content: bytes, *, where: str, max_bytes: int = MAX_BYTES) -> Any:
    """Unpickle dicts, lists, tuples, strings, bytes, numbers, booleans and None, and nothing else.

    Raises:
        UnsafePickleError: it could run something, or is too large or too deep.
        DataError: it is not a complete pickle.
    """
    if len(content) > max_bytes:
        raise UnsafePickleError(f"is larger than {max_bytes:,} bytes", where=where, what_next=WHAT_NEXT)
    check_opcodes(content, where=where)
    with malformed_as_data_error(INCOMPLETE, where=where, what_next=WHAT_NEXT):
        value = _PlainUnpickler(io.BytesIO(content)).load()
    _check_extent(value, MAX_VALUES + MAX_VALUES_PER_BYTE * len(content), where)
    return value


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"asks for {module_name}.{global_name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError(f"refers to {pid!r} outside of it")


def _check_extent(value: Any, max_values: int, where: str) -> None:
    """Refuse what is nested too deeply, or shared so often that walking all of it would take too long.

    Each container is visited once, however often it is shared: its number of values and its depth are remembered.
    """
    known: dict[int, tuple[int, int]] = {}
    path = [_ContainerWalk((value,))]
    on_path: set[int] = set()
    while True:
        walk = path[-1]
        for one in walk.rest:
            walk.num_values += 1
            if isinstance(one, _CONTAINERS):
                if id(one) in known:
                    num_values, depth = known[id(one)]
                    walk.num_values += num_values
                    walk.depth = max(walk.depth, depth + 1)
                elif id(one) in on_path:
                    raise UnsafePickleError("is nested too deeply", where=where, what_next=WHAT_NEXT)
                else:
                    on_path.add(id(one))
                    path.append(_ContainerWalk(one))
                    break
            if walk.num_values > max_values:
                raise UnsafePickleError("holds too many values", where=where, what_next=WHAT_NEXT)
        else:
            path.pop()
            if not path:
                return
            on_path.discard(id(walk.container))
            known[id(walk.container)] = walk.num_values, walk.depth
            path[-1].num_values += walk.num_values
            path[-1].depth = max(path[-1].depth, walk.depth + 1)
            if path[-1].num_values > max_values:
                raise UnsafePickleError("holds too many values", where=where, what_next=WHAT_NEXT)
        if len(path) - 1 + path[-1].depth > MAX_DEPTH:
            raise UnsafePickleError("is nested too deeply", where=where, what_next=WHAT_NEXT)


class _ContainerWalk:
    """A container that is being walked: its remaining items, the number of values so far, their depth."""

    __slots__ = ("container", "depth", "num_values", "rest")

    def __init__(self, container: Any) -> None:
        self.container = container
        self.rest: Iterator[Any] = iter(container.values() if isinstance(container, dict) else container)
        self.num_values = 0
        self.depth = 0


MAX_TUPLE_DEPTH = 64
MAX_NUMBER_BYTES = 255
"""Of a whole number, as in LONG1."""
_MARK = -1
_EMPTY = b"\xff"
WHAT_NEXT = "give a file that torch itself wrote"
INCOMPLETE = "is not a complete pickle"
_SPARE_PLACES = 1024

Content = bytes | mmap
"""A pickle: read into memory, or a mapped file."""

_OPCODE_NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
CODES = {name: code for code, name in _OPCODE_NAMES.items()}
"""Byte of each opcode."""


def _codes_of(names: str) -> frozenset[int]:
    return frozenset(CODES[name] for name in names.split())


_ATOMS = _codes_of("NONE NEWTRUE NEWFALSE EMPTY_LIST EMPTY_TUPLE EMPTY_DICT")
_FIXED = {CODES[name]: size for name, size in (("BININT", 4), ("BININT1", 1), ("BININT2", 2), ("BINFLOAT", 8))}
"""Bytes of the argument; then of the length before it."""
_COUNTED = {
    **dict.fromkeys(_codes_of("SHORT_BINSTRING SHORT_BINBYTES SHORT_BINUNICODE LONG1"), 1),
    **dict.fromkeys(_codes_of("BINSTRING BINBYTES BINUNICODE LONG4"), 4),
    **dict.fromkeys(_codes_of("BINUNICODE8 BINBYTES8 BYTEARRAY8"), 8),
}
_LINES = _codes_of("INT LONG FLOAT STRING UNICODE")
_PUTS = {CODES["BINPUT"]: 1, CODES["LONG_BINPUT"]: 4}
_GETS = {CODES["BINGET"]: 1, CODES["LONG_BINGET"]: 4}
_TUPLES = {CODES["TUPLE1"]: 1, CODES["TUPLE2"]: 2, CODES["TUPLE3"]: 3}
_TO_MARK = _codes_of("POP_MARK APPENDS")
_DROPS = {CODES["POP"]: 1, CODES["APPEND"]: 1}
_SETITEM, _SETITEMS, _DICT, _LIST, _LONG4 = (CODES[name] for name in ["SETITEM", "SETITEMS", "DICT", "LIST", "LONG4"])
_PASSED = {CODES["PROTO"]: 1, CODES["FRAME"]: 8}
_STOP, _SET_MARK, _TUPLE, _DUP = CODES["STOP"], CODES["MARK"], CODES["TUPLE"], CODES["DUP"]
_PUT, _GET, _MEMOIZE = CODES["PUT"], CODES["GET"], CODES["MEMOIZE"]


class UnsafePickleError(DataError):
    """The pickle would do more than build plain data, or more than fits."""


def check_opcodes(content: Content, *, where: str) -> frozenset[int]:
    """Check that a pickle of any protocol builds only plain data; nothing is built here.

    Returns:
        The places of the memo that are referred to again.

    Raises:
        UnsafePickleError: it could run something, or would take more memory than it has bytes.
        DataError: it is not a complete pickle.
    """
    check = _OpcodeCheck(content, where)
    with malformed_as_data_error(INCOMPLETE, where=where, what_next=WHAT_NEXT):
        check.run()
    return frozenset(check.referred)


class _OpcodeCheck:
    """Simulates the unpickler's stack, keeping of each value only its depth in tuples."""

    def __init__(self, content: Content, where: str) -> None:
        self._content = content
        self._where = where
        self._at = 0
        self._stack: list[int] = []
        self._memo = bytearray()  # depth of each place in tuples: a byte each, as a dict would be larger than the file
        self._num_filled = 0
        self.referred: set[int] = set()

    def run(self) -> None:
        """Raises IndexError, ValueError or KeyError where the pickle is incomplete, or takes what is not there."""
        content, stack = self._content, self._stack
        while True:
            code = content[self._at]
            self._at += 1
            if code in _ATOMS:
                stack.append(0)
            elif code in _COUNTED:
                length = self._number(_COUNTED[code])
                if code == _LONG4 and length > MAX_NUMBER_BYTES:
                    raise self._unsafe(f"holds a number of {length:,} bytes")
                self._skip(length)
                stack.append(0)
            elif code in _FIXED:
                self._skip(_FIXED[code])
                stack.append(0)
            elif code in _GETS:
                self._recall(self._number(_GETS[code]))
            elif code in _PUTS:
                self._fill(self._number(_PUTS[code]))
            elif code == _MEMOIZE:
                self._fill(self._num_filled)
            elif code == _SET_MARK:
                stack.append(_MARK)
            elif code == _SETITEM:
                self._check_keys(self._take(2)[:1])
            elif code in _DROPS:
                self._take(_DROPS[code])
            elif code == _SETITEMS:
                self._check_keys(self._take_to_mark()[1::2])  # from the top: value, key, value, ...
            elif code in _TO_MARK:
                self._take_to_mark()
            elif code in _TUPLES:
                self._push_tuple(self._take(_TUPLES[code]))
            elif code == _TUPLE:
                self._push_tuple(self._take_to_mark())
            elif code == _DICT:
                self._check_keys(self._take_to_mark()[1::2])
                stack.append(0)
            elif code == _LIST:
                self._take_to_mark()
                stack.append(0)
            elif code in _LINES:
                self._line()
                stack.append(0)
            elif code == _STOP:
                return
            else:
                self._rare_opcode(code)

    def _rare_opcode(self, code: int) -> None:
        if code in _PASSED:
            length = self._number(_PASSED[code])
            if code == CODES["FRAME"] and length > len(self._content) - self._at:
                raise self._unsafe(f"claims {length:,} bytes more than it has")
        elif code == _DUP:
            self._stack.append(self._top())
        elif code == _PUT:
            self._fill(int(self._line()))
        elif code == _GET:
            self._recall(int(self._line()))
        elif code in _OPCODE_NAMES:
            raise self._unsafe(
                f"holds {_OPCODE_NAMES[code]} at byte {self._at - 1}, which is more than data; nothing of it was run"
            )
        else:
            raise ValueError(code)

    def _number(self, size: int) -> int:
        argument = self._content[self._at : self._at + size]
        if len(argument) < size:
            raise IndexError
        self._at += size
        return int.from_bytes(argument, "little")

    def _skip(self, length: int) -> None:
        if length > len(self._content) - self._at:
            raise self._unsafe(f"claims {length:,} bytes at byte {self._at} of {len(self._content):,}")
        self._at += length

    def _line(self) -> bytes:
        end = self._content.find(b"\n", self._at)
        if end < 0:
            raise IndexError
        line = self._content[self._at : end]
        self._at = end + 1
        return line

    def _fill(self, place: int) -> None:
        if not 0 <= place <= 2 * self._num_filled + _SPARE_PLACES:
            raise self._unsafe(f"claims {place:,} places")
        if place >= len(self._memo):
            self._memo += _EMPTY * (place + 1 - len(self._memo))
        self._memo[place] = self._top()
        self._num_filled += 1

    def _recall(self, place: int) -> None:
        depth = self._memo[place]
        if place < 0 or depth == _EMPTY[0]:
            raise IndexError
        self._stack.append(depth)
        self.referred.add(place)

    def _top(self) -> int:
        if self._stack[-1] == _MARK:
            raise IndexError
        return self._stack[-1]

    def _take(self, count: int) -> list[int]:
        taken = self._stack[-count:]
        if len(taken) < count or _MARK in taken:
            raise IndexError
        del self._stack[-count:]
        return taken

    def _take_to_mark(self) -> list[int]:
        taken = []
        while (depth := self._stack.pop()) != _MARK:
            taken.append(depth)
        return taken

    def _check_keys(self, depths: list[int]) -> None:
        if any(depths):
            raise self._unsafe(f"has a tuple as a key at byte {self._at - 1}")

    def _push_tuple(self, items: list[int]) -> None:
        depth = 1 + max(items, default=0)
        if depth > MAX_TUPLE_DEPTH:
            raise self._unsafe("is nested too deeply")
        self._stack.append(depth)

    def _unsafe(self, what: str) -> UnsafePickleError:
        return UnsafePickleError(what, where=self._where, what_next=WHAT_NEXT)
