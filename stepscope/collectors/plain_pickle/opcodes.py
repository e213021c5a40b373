"""Would a pickle do more than build plain data? Told from its opcodes, before any unpickler sees it.

Refused are opcodes that call, import or refer to what lies outside; lengths beyond the file's end, for which a reader
would make room; places far beyond those filled, for the same reason; and tuples in tuples without end, which Python
hashes by recursion in C, down to a crash.
"""

from __future__ import annotations

import pickletools

from stepscope.core.errors import DataError

MOST_TUPLES_DEEP = 64
_MARK = -1
_WHAT_NEXT = "give a file that torch itself wrote"
_SPARE_PLACES = 1024

_NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
_CODES = {name: code for code, name in _NAMES.items()}


def _codes(names: str) -> frozenset[int]:
    return frozenset(_CODES[name] for name in names.split())


_ATOMS = _codes("NONE NEWTRUE NEWFALSE EMPTY_LIST EMPTY_TUPLE EMPTY_DICT")
_FIXED = {_CODES[name]: size for name, size in (("BININT", 4), ("BININT1", 1), ("BININT2", 2), ("BINFLOAT", 8))}
"""Bytes of the argument; then of the length before it."""
_COUNTED = {
    **dict.fromkeys(_codes("SHORT_BINSTRING SHORT_BINBYTES SHORT_BINUNICODE LONG1"), 1),
    **dict.fromkeys(_codes("BINSTRING BINBYTES BINUNICODE LONG4"), 4),
    **dict.fromkeys(_codes("BINUNICODE8 BINBYTES8 BYTEARRAY8"), 8),
}
_LINES = _codes("INT LONG FLOAT STRING UNICODE")
_PUTS = {_CODES["BINPUT"]: 1, _CODES["LONG_BINPUT"]: 4}
_GETS = {_CODES["BINGET"]: 1, _CODES["LONG_BINGET"]: 4}
_TUPLES = {_CODES["TUPLE1"]: 1, _CODES["TUPLE2"]: 2, _CODES["TUPLE3"]: 3}
_TO_MARK = _codes("POP_MARK APPENDS SETITEMS")
_FROM_MARK = _codes("LIST DICT")
_DROPS = {_CODES["POP"]: 1, _CODES["APPEND"]: 1, _CODES["SETITEM"]: 2}
_PASSED = {_CODES["PROTO"]: 1, _CODES["FRAME"]: 8}
_STOP, _SET_MARK, _TUPLE, _DUP = _CODES["STOP"], _CODES["MARK"], _CODES["TUPLE"], _CODES["DUP"]
_PUT, _GET, _MEMOIZE = _CODES["PUT"], _CODES["GET"], _CODES["MEMOIZE"]


class UnsafePickleError(DataError):
    """The pickle would do more than build plain data, or more than fits."""


def check_opcodes(content: bytes, *, where: str) -> None:
    """Pass a pickle of any protocol that builds plain data alone; nothing is built here.

    Raises:
        UnsafePickleError: it could run something, or would take more room than it has bytes.
        DataError: it is no whole pickle.
    """
    try:
        _Check(content, where).run()
    except (IndexError, ValueError, KeyError):
        raise DataError("is no whole pickle", where=where, what_next=_WHAT_NEXT) from None


class _Check:
    """Follows the unpickler's stack, of each value keeping only how deep it is in tuples."""

    def __init__(self, content: bytes, where: str) -> None:
        self._content = content
        self._where = where
        self._at = 0
        self._stack: list[int] = []
        self._memo: dict[int, int] = {}

    def run(self) -> None:
        """Raises IndexError, ValueError or KeyError where the pickle is not whole, or takes what is not there."""
        content, stack = self._content, self._stack
        while True:
            code = content[self._at]
            self._at += 1
            if code in _ATOMS:
                stack.append(0)
            elif code in _COUNTED:
                self._skip(self._number(_COUNTED[code]))
                stack.append(0)
            elif code in _FIXED:
                self._skip(_FIXED[code])
                stack.append(0)
            elif code in _GETS:
                stack.append(self._memo[self._number(_GETS[code])])
            elif code in _PUTS:
                self._fill(self._number(_PUTS[code]))
            elif code == _MEMOIZE:
                self._fill(len(self._memo))
            elif code == _SET_MARK:
                stack.append(_MARK)
            elif code in _DROPS:
                self._take(_DROPS[code])
            elif code in _TO_MARK:
                self._take_to_mark()
            elif code in _TUPLES:
                self._push_tuple(self._take(_TUPLES[code]))
            elif code == _TUPLE:
                self._push_tuple(self._take_to_mark())
            elif code in _FROM_MARK:
                self._take_to_mark()
                stack.append(0)
            elif code in _LINES:
                self._line()
                stack.append(0)
            elif code == _STOP:
                return
            else:
                self._seldom(code)

    def _seldom(self, code: int) -> None:
        if code in _PASSED:
            length = self._number(_PASSED[code])
            if code == _CODES["FRAME"] and length > len(self._content) - self._at:
                raise self._unsafe(f"claims {length:,} bytes more than it has")
        elif code == _DUP:
            self._stack.append(self._top())
        elif code == _PUT:
            self._fill(int(self._line()))
        elif code == _GET:
            self._stack.append(self._memo[int(self._line())])
        elif code in _NAMES:
            raise self._unsafe(
                f"holds {_NAMES[code]} at byte {self._at - 1}, which does more than data; nothing of it was run"
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
        end = self._content.index(b"\n", self._at)
        line = self._content[self._at : end]
        self._at = end + 1
        return line

    def _fill(self, place: int) -> None:
        if not 0 <= place <= 2 * len(self._memo) + _SPARE_PLACES:
            raise self._unsafe(f"claims {place:,} places")
        self._memo[place] = self._top()

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

    def _push_tuple(self, items: list[int]) -> None:
        depth = 1 + max(items, default=0)
        if depth > MOST_TUPLES_DEEP:
            raise self._unsafe("is nested too deeply")
        self._stack.append(depth)

    def _unsafe(self, what: str) -> UnsafePickleError:
        return UnsafePickleError(what, where=self._where, what_next=_WHAT_NEXT)
