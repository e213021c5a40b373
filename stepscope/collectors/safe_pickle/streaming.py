"""Streaming unpickler: hands long lists over item by item, so that a pickle may be larger than memory.

Python's unpickler keeps every object it made, because a later opcode may refer to it. Here the opcodes are read twice:
first to learn which memo places are referred to at all (in PyTorch's snapshots the parts of stacks, some thousand),
then for the values, of which only those are kept. It is slower than Python's unpickler, which is written in C, and as
safe as `load_plain`: nothing here can build more than data.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from stepscope.collectors.inputs import malformed_as_data_error
from stepscope.collectors.safe_pickle.loading import CODES, INCOMPLETE, WHAT_NEXT, Content, check_opcodes

_MARK: Any = object()
_MAX_BELOW = 80
"""Values on the stack below a list that is handed over: it is near the top of the tree."""

KeyPath = tuple[str | int, ...]
Take = Callable[[KeyPath, list[Any]], bool]
"""Called with the path of a list near the top of the tree (keys and indices) and items to append to it; returns True
where it took them, so that they are not kept."""


def stream_plain(content: Content, take: Take, *, where: str) -> Any:
    """Unpickle plain data, its long lists without the items that were taken.

    Args:
        content: all of it, as bytes or as a mapped file.
        take: called each time items are appended to a list near the top: () is the value itself, ("a",) its item of
            that key, ("a", 0) the first list in that.

    Raises:
        UnsafePickleError: it could run something, or would take more memory than it has bytes.
        DataError: it is not a complete pickle.
    """
    kept = check_opcodes(content, where=where)
    with malformed_as_data_error(INCOMPLETE, where=where, what_next=WHAT_NEXT):
        return _StreamReader(content, take, kept).read()


class _StreamReader:
    """The unpickler's stack and memo."""

    def __init__(self, content: Content, take: Take, kept: frozenset[int]) -> None:
        self.content = content
        self.at = 0
        self.stack: list[Any] = []
        self._take = take
        self._kept = kept
        self._memo: dict[int, Any] = {}
        self._num_memoized = 0
        self._paths: dict[int, KeyPath] = {}
        self._alive: list[Any] = []

    def read(self) -> Any:
        """The value; an incomplete pickle raises one of Python's own errors."""
        content, stop = self.content, CODES["STOP"]
        while (code := content[self.at]) != stop:
            self.at += 1
            _ACTIONS[code](self)
        return self.stack.pop()

    def number(self, size: int) -> int:
        """An argument of so many bytes."""
        value = int.from_bytes(self.content[self.at : self.at + size], "little")
        self.at += size
        return value

    def raw(self, length: int) -> bytes:
        value = self.content[self.at : self.at + length]
        self.at += length
        return value

    def line(self) -> bytes:
        """An argument up to the end of its line."""
        end = self.content.find(b"\n", self.at)
        value = self.content[self.at : end]
        self.at = end + 1
        return value

    def pop_to_mark(self) -> list[Any]:
        """Pop the newest mark and all above it."""
        stack = self.stack
        place = len(stack) - 1
        while stack[place] is not _MARK:
            place -= 1
        items = stack[place + 1 :]
        del stack[place:]
        return items

    def push_list(self, items: list[Any]) -> None:
        if len(self.stack) < _MAX_BELOW and (path := self._path()) is not None:
            self._paths[id(items)] = path
            self._alive.append(items)  # so that no other list gets its id
        self.stack.append(items)

    def append(self, items: list[Any]) -> None:
        made = self.stack[-1]
        path = self._paths.get(id(made))
        if path is None or not self._take(path, items):
            made.extend(items)

    def memoize(self, place: int) -> None:
        """Keep the value on top if a later opcode refers to it."""
        self._num_memoized += 1
        if place in self._kept:
            self._memo[place] = self.stack[-1]

    def memoize_next(self) -> None:
        """`memoize` at the next place."""
        self.memoize(self._num_memoized)

    def recall(self, place: int) -> None:
        self.stack.append(self._memo[place])

    def _path(self) -> KeyPath | None:
        """Path of a list that is about to be pushed; None where it is not near the top of the tree."""
        stack = self.stack
        if not stack:
            return ()
        num_marks = stack.count(_MARK)
        if num_marks <= 1 and isinstance(stack[0], dict) and isinstance(stack[-1], str):
            return (stack[-1],)
        mark = len(stack) if num_marks <= 1 else _last_index(stack, _MARK)
        around = stack[mark - 1]
        path = self._paths.get(id(around)) if num_marks <= 2 and isinstance(around, list) else None
        return None if path is None else (*path, len(around) + len(stack[mark + 1 :]))


def _last_index(stack: list[Any], value: Any) -> int:
    return next(place for place in range(len(stack) - 1, -1, -1) if stack[place] is value)


def _unquoted(line: bytes) -> str:
    """The text of a quoted string of protocol 0."""
    quote = line[:1]
    if len(line) < 2 or quote not in (b"'", b'"') or line[-1:] != quote:
        raise ValueError("a string without its quotes")
    return line[1:-1].decode("unicode_escape")


def _parse_int(line: bytes) -> int | bool:
    return line == b"01" if line in (b"00", b"01") else int(line.rstrip(b"L"))


def _signed_int(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


def _pushes(value: Callable[[_StreamReader], Any]) -> Callable[[_StreamReader], None]:
    return lambda reader: reader.stack.append(value(reader))


def _tuple(size: int) -> Callable[[_StreamReader], None]:
    def act(reader: _StreamReader) -> None:
        reader.stack[-size:] = [tuple(reader.stack[-size:])]

    return act


def _set_items(reader: _StreamReader) -> None:
    items = reader.pop_to_mark()
    reader.stack[-1].update(zip(items[::2], items[1::2], strict=True))


def _set_item(reader: _StreamReader) -> None:
    value = reader.stack.pop()
    key = reader.stack.pop()
    reader.stack[-1][key] = value


def _make_dict(reader: _StreamReader) -> Any:
    items = reader.pop_to_mark()
    return dict(zip(items[::2], items[1::2], strict=True))


def _append(reader: _StreamReader) -> None:
    item = reader.stack.pop()
    reader.append([item])


def _utf8(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


_BY_NAME: dict[str, Callable[[_StreamReader], Any]] = {
    "PROTO": lambda reader: reader.number(1),
    "FRAME": lambda reader: reader.number(8),
    "MARK": _pushes(lambda _: _MARK),
    "POP": lambda reader: reader.stack.pop(),
    "POP_MARK": lambda reader: reader.pop_to_mark(),
    "DUP": _pushes(lambda reader: reader.stack[-1]),
    "NONE": _pushes(lambda _: None),
    "NEWTRUE": _pushes(lambda _: True),
    "NEWFALSE": _pushes(lambda _: False),
    "BININT": _pushes(lambda reader: _signed_int(reader.raw(4))),
    "BININT1": _pushes(lambda reader: reader.number(1)),
    "BININT2": _pushes(lambda reader: reader.number(2)),
    "INT": _pushes(lambda reader: _parse_int(reader.line())),
    "LONG": _pushes(lambda reader: _parse_int(reader.line())),
    "LONG1": _pushes(lambda reader: _signed_int(reader.raw(reader.number(1)))),
    "LONG4": _pushes(lambda reader: _signed_int(reader.raw(reader.number(4)))),
    "FLOAT": _pushes(lambda reader: float(reader.line())),
    "BINFLOAT": _pushes(lambda reader: struct.unpack(">d", reader.raw(8))[0]),
    "STRING": _pushes(lambda reader: _unquoted(reader.line())),
    "BINSTRING": _pushes(lambda reader: reader.raw(reader.number(4)).decode("ascii")),
    "SHORT_BINSTRING": _pushes(lambda reader: reader.raw(reader.number(1)).decode("ascii")),
    "BINBYTES": _pushes(lambda reader: bytes(reader.raw(reader.number(4)))),
    "SHORT_BINBYTES": _pushes(lambda reader: bytes(reader.raw(reader.number(1)))),
    "BINBYTES8": _pushes(lambda reader: bytes(reader.raw(reader.number(8)))),
    "BYTEARRAY8": _pushes(lambda reader: bytearray(reader.raw(reader.number(8)))),
    "UNICODE": _pushes(lambda reader: reader.line().decode("raw-unicode-escape")),
    "SHORT_BINUNICODE": _pushes(lambda reader: _utf8(reader.raw(reader.number(1)))),
    "BINUNICODE": _pushes(lambda reader: _utf8(reader.raw(reader.number(4)))),
    "BINUNICODE8": _pushes(lambda reader: _utf8(reader.raw(reader.number(8)))),
    "EMPTY_LIST": lambda reader: reader.push_list([]),
    "LIST": lambda reader: reader.push_list(reader.pop_to_mark()),
    "APPEND": _append,
    "APPENDS": lambda reader: reader.append(reader.pop_to_mark()),
    "EMPTY_TUPLE": _pushes(lambda _: ()),
    "TUPLE": _pushes(lambda reader: tuple(reader.pop_to_mark())),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "EMPTY_DICT": _pushes(lambda _: {}),
    "DICT": _pushes(_make_dict),
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "PUT": lambda reader: reader.memoize(int(reader.line())),
    "BINPUT": lambda reader: reader.memoize(reader.number(1)),
    "LONG_BINPUT": lambda reader: reader.memoize(reader.number(4)),
    "MEMOIZE": lambda reader: reader.memoize_next(),
    "GET": lambda reader: reader.recall(int(reader.line())),
    "BINGET": lambda reader: reader.recall(reader.number(1)),
    "LONG_BINGET": lambda reader: reader.recall(reader.number(4)),
}
_ACTIONS: dict[int, Callable[[_StreamReader], Any]] = {CODES[name]: act for name, act in _BY_NAME.items()}
