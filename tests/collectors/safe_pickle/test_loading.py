"""Plain data is loaded as it is; everything else is refused in one line without a side effect."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import struct
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.safe_pickle.loading import UnsafePickleError, load_plain
from stepscope.core.errors import DataError

_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.binary(), inner, max_size=4)
    ),
    max_leaves=30,
)


@given(_PLAIN, st.integers(0, 5))
def test_plain_data_of_any_protocol_comes_back_as_it_was(value: Any, protocol: int) -> None:
    try:
        content = pickle.dumps(value, protocol)
    except UnicodeEncodeError:
        return
    expected = pickle.loads(content)
    if any(name in pickletools_names(content) for name in ("REDUCE", "GLOBAL", "STACK_GLOBAL")):
        with pytest.raises(UnsafePickleError):  # protocols 0 to 2 write bytes as a call
            load_plain(content, where="here")
        return
    assert load_plain(content, where="here") == expected


def pickletools_names(content: bytes) -> set[str]:
    """The names of a pickle's opcodes."""
    return {opcode.name for opcode, _, _ in pickletools.genops(content)}


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    _read_or_refuse(content)


@given(_PLAIN, st.integers(0, 5), st.data())
def test_damaged_pickles_are_read_or_refused(value: Any, protocol: int, data: st.DataObject) -> None:
    try:
        content = bytearray(pickle.dumps(value, protocol))
    except UnicodeEncodeError:
        return
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    _read_or_refuse(bytes(content))


def _read_or_refuse(content: bytes) -> None:
    with suppress(DataError):
        load_plain(content, where="here")


class _Runs:
    """What a pickle of it does when it is loaded is the callable's doing."""

    def __init__(self, call: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self._reduced = (call, arguments) if state is None else (call, arguments, state)

    def __reduce__(self) -> Any:
        return self._reduced


class _Plain:
    pass


class _Slots:
    __slots__ = ("here",)


class _NewArguments:
    def __getnewargs__(self) -> tuple[int]:
        return (1,)

    def __new__(cls, _number: int = 0) -> _NewArguments:
        return super().__new__(cls)


class _NewNamed:
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, int]]:
        return (), {"_number": 1}

    def __new__(cls, *, _number: int = 0) -> _NewNamed:
        return super().__new__(cls)


def _persistent(protocol: int) -> bytes:
    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> str | None:
            return "outside" if obj == 7 else None

    stream = io.BytesIO()
    Pickler(stream, protocol).dump([7])
    return stream.getvalue()


def _nested(opening: bytes, closing: bytes, deep: int = 100_000) -> bytes:
    return b"\x80\x04" + opening * deep + b"N" + closing * deep + b"."


def _shared(deep: int = 60) -> bytes:
    """Ten of what is ten of ..., in 60 short lines: to walk it takes longer than the universe has."""
    made = b"\x80\x04]\x94"
    for place in range(1, deep):
        made += b"]\x94(" + b"h" + bytes([place - 1]) + (b"h" + bytes([place - 1])) * 9 + b"e"
    return made + b"."


_COMMAND = "touch {mark}"


def _refused(mark: str) -> dict[str, bytes]:
    """Pickles that must not be loaded; each that could would leave a file behind."""
    command = _COMMAND.format(mark=mark)
    runs = {f"reduce by protocol {number}": pickle.dumps(_Runs(os.system, command), number) for number in range(6)}
    many = {f"persistent by protocol {number}": _persistent(number) for number in range(3)}
    objects: list[Any] = [
        _Plain(),
        _Slots(),
        _NewArguments(),
        _NewNamed(),
        OrderedDict(a=1),
        {1, 2},
        frozenset([1]),
        1j,
    ]
    by_class = {f"{type(one).__name__} by protocol {of}": pickle.dumps(one, of) for one in objects for of in (2, 4)}
    text = command.encode()
    return {
        **runs,
        **many,
        **by_class,
        "exec": pickle.dumps(_Runs(exec, f"open({mark!r}, 'w')")),
        "eval": pickle.dumps(_Runs(eval, f"open({mark!r}, 'w')")),
        "build": pickle.dumps(_Runs(_Plain, state={"here": 1})),
        "hidden in an entry": pickle.dumps({"entries": [{"frames": _Runs(os.system, command)}]}),
        "bare global": b"cos\nsystem\n.",
        "global by name on the stack": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        "inst": b"(S'" + text + b"'\nios\nsystem\n.",
        "obj": b"(cos\nsystem\nS'" + text + b"'\no.",
        "ext1": b"\x80\x02\x82\x01.",
        "ext2": b"\x80\x02\x83\x01\x00.",
        "ext4": b"\x80\x02\x84\x01\x00\x00\x00.",
        "next buffer": b"\x80\x05\x97.",
        "read only buffer": b"\x80\x05C\x01a\x98.",
        "an empty set": b"\x80\x04\x8f.",
        "lists without end": _nested(b"(", b"l"),
        "tuples without end": _nested(b"(", b"t"),
        "tuples of one without end": _nested(b"", b"\x85"),
        "dicts without end": b"\x80\x04" + b"}N" * 100_000 + b"N" + b"s" * 100_000 + b".",
        "a key of tuples without end": b"\x80\x04}N" + b"\x85" * 500_000 + b"Ns.",
        "a key of shared tuples": b"\x80\x04})"
        + b"".join(b"\x94h" + bytes([place]) + b"\x86" for place in range(40))
        + b"Ns.",
        "many keys of shared tuples": b"\x80\x04}(N\x85\x94NNNu.",
        "a dict of shared tuples as keys": b"(N\x85NNNd.",
        "a giant number as a key": b"\x80\x02}\x8b" + struct.pack("<I", 300) + b"a" * 300 + b"Ns.",
        "a list in itself": b"\x80\x04]\x94h\x00a.",
        "shared without end": _shared(),
        "two GB of text": b"\x80\x04X" + struct.pack("<I", 2**31) + b"a.",
        "an exabyte of bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"a.",
        "a buffer of an exabyte": b"\x80\x05\x96" + struct.pack("<Q", 2**60) + b"a.",
        "a frame of an exabyte": b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b"N.",
        "an integer of 2 GB": b"\x80\x02\x8b" + struct.pack("<I", 2**31 - 1) + b"a.",
        "a place far out": b"\x80\x02Nr" + struct.pack("<I", 2**31 - 1) + b".",
        "a place far out, as text": b"Np4000000000\n.",
    }


_NAMES = list(_refused(""))


@pytest.mark.parametrize("name", _NAMES)
def test_what_is_more_than_data_is_refused_and_does_nothing(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "it ran".replace(" ", "_")
    with pytest.raises(UnsafePickleError) as refused:
        load_plain(_refused(str(mark))[name], where="dump_3")
    assert str(refused.value).startswith("dump_3: ")
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_there_are_at_least_forty_of_them() -> None:
    assert len(_NAMES) >= 40


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b".",
        b"\x80\x04",
        b"\x80\x04]",
        b"\x80\x04h\x05.",
        b"\x80\x04(\x94.",
        b"(2.",
        b"N0.",
        b"e.",
        b"\x80\x04\x8c\x01\xff.",
        b"I12a\n.",
        b"I" + b"9" * 5000 + b"\n.",
        b"\x80\x04}]Ns.",
        b"\x80\x63N.",
        b"text, not a pickle",
        b"\x00\x01\x02",
    ],
)  # fmt: skip
def test_what_is_no_whole_pickle_is_said_to_be_none(content: bytes) -> None:
    with pytest.raises(DataError, match="is not a complete pickle"):
        load_plain(content, where="here")


def test_the_largest_size_is_kept() -> None:
    with pytest.raises(UnsafePickleError, match="larger than 10 bytes"):
        load_plain(pickle.dumps("a" * 100), where="here", max_bytes=10)


def test_what_is_shared_is_walked_once() -> None:
    """Each of 20,000 entries refers to the same 800 values; all in all there are 16 million."""
    frames = [["call", "train.py", 7]] * 200
    content = pickle.dumps([[frames] for _ in range(20_000)], 2)
    value = load_plain(content, where="here", max_bytes=1 << 20)
    assert len(value) == 20_000
    assert value[0][0] is value[-1][0]
