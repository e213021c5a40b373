"""The text that is read and not yet cut: one piece of memory, in which nothing is lost, doubled or overwritten."""

import gzip
import io
import json

from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.formats.kineto.text import TextWindow, TraceText

_UTF8_MARK = b"\xef\xbb\xbf"


class _OnlyReads(io.RawIOBase):
    """A stream such as some object stores give: no readinto, and short reads."""

    readinto = None  # type: ignore[assignment]

    def __init__(self, text: bytes) -> None:
        self._stream = io.BytesIO(text)

    def read(self, size: int = -1) -> bytes:
        return self._stream.read(min(size, 5))


def _window(text: bytes, *, block_bytes: int) -> TextWindow:
    source = TraceText(io.BytesIO(text), block_bytes=block_bytes)
    return TextWindow(source, source.read())


@given(text=st.binary(), block_bytes=st.integers(1, 40), sizes=st.lists(st.integers(0, 50)))
def test_whatever_is_taken_between_two_blocks_all_text_comes_once(
    text: bytes, block_bytes: int, sizes: list[int]
) -> None:
    window = _window(b"[" + text, block_bytes=block_bytes)
    taken = b""
    for size in sizes:
        window.fill()
        piece = window.text(min(size, len(window)))
        window.take(len(piece))
        taken += piece
    while window.fill():
        pass
    assert taken + window.text(len(window)) == b"[" + text


@given(
    text=st.binary(min_size=1).map(lambda text: b"{" + text),
    block_bytes=st.integers(3, 40),
    wrap=st.sampled_from([io.BytesIO, _OnlyReads, lambda text: io.BytesIO(gzip.compress(text))]),
    mark=st.sampled_from([b"", _UTF8_MARK]),
)
def test_blocks_are_full_but_for_the_last_whatever_the_stream(text: bytes, block_bytes: int, wrap, mark) -> None:  # type: ignore[no-untyped-def]
    text = text.replace(b"\0", b" ")
    source = TraceText(wrap(mark + text), block_bytes=block_bytes)
    blocks = [source.read()]
    while block := source.read():
        blocks.append(block)
    assert b"".join(blocks) == text
    assert {len(block) for block in blocks[1:-1]} <= {block_bytes}
    assert source.num_bytes == len(text)


def test_an_array_is_decoded_in_place_and_a_refused_one_leaves_the_text_as_it_was() -> None:
    text = b'{"a": 1}, {"a": 2}, {"a"'
    window = _window(text, block_bytes=100)

    refused, _ = window.decoded(8, lambda _: None)
    assert refused is None
    assert window.text(len(window)) == text

    window.take(10)
    found, array_text = window.decoded(8, lambda array: list(json.loads(bytes(array))))
    assert found == [{"a": 2}]
    assert bytes(array_text) == b'[{"a": 2}]'


def test_places_are_counted_from_where_the_window_begins() -> None:
    window = _window(b"ab,cd,ef", block_bytes=4)
    window.take(1)
    window.fill()
    assert window.text(len(window)) == b"b,cd,ef"
    assert window.begins_at_byte == 1
    assert window.rfind(b",") == 4
    assert window.rfind(b"a") == -1
