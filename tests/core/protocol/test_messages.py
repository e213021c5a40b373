"""Messages survive the wire; everything else is rejected with a reason, in bounded memory."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.protocol import captures, messages
from stepscope.core.protocol.messages import MAX_LINE_BYTES, LineBuffer, ProtocolError, decode_message, encode_message

_whole = st.integers(0, 2**63 - 1)
_rank = st.integers(0, 2**24)
_words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=20)
_texts = st.text(max_size=60)
_shares = st.floats(0, 1e9)
_figures = st.dictionaries(
    _words, st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False), max_size=4
)


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


_progress = st.builds(
    captures.CaptureProgress,
    state=st.sampled_from(messages.ANSWER_STATES),
    reason=_maybe(_texts),
    start_step=_maybe(_whole),
    steps=_maybe(st.integers(0, captures.MAX_CAPTURED_STEPS)),
    aligned_by=_maybe(st.sampled_from(captures.Alignment)),
    joined=st.booleans(),
    path=_maybe(_texts),
    bytes=_maybe(_whole),
    overhead=_maybe(st.floats(-1e9, 1e9)),
    stopped_by=_maybe(st.sampled_from(captures.EarlyStop)),
)
_messages: st.SearchStrategy[messages.Message] = st.one_of(
    st.builds(
        messages.Hello,
        run=_words,
        run_directory=_texts,
        rank=_rank,
        local_rank=_rank,
        world_size=_rank,
        pid=_whole,
        host=_words,
        start_ns=_whole,
        mesh=st.dictionaries(_words, _whole, max_size=4),
        gpu_uuid=_maybe(_words),
        version=_whole,
    ),
    st.builds(
        messages.Heartbeat,
        age_ms=_shares,
        state=_words,
        index=_maybe(_whole),
        ms=_maybe(_shares),
        data_wait_ms=_maybe(_shares),
        phases_ms=st.dictionaries(_words, _shares, max_size=4),
        figures=_figures.filter(lambda figures: all(abs(value) < 1e300 for value in figures.values())),
    ),
    st.builds(messages.Bye),
    st.builds(messages.Welcome, version=_whole),
    st.builds(
        captures.CaptureRequest,
        id=_words,
        steps=st.integers(1, captures.MAX_CAPTURED_STEPS),
        start_step=_maybe(_whole),
        start_unix_ns=_maybe(_whole),
        ranks=_maybe(st.lists(_rank, min_size=1, max_size=5).map(tuple)),
        max_bytes=_maybe(st.integers(1, 2**63 - 1)),
        max_overhead=_maybe(_shares),
        deadline_unix_ns=_maybe(_whole),
    ),
    st.builds(messages.Cancel, id=_words),
    st.builds(messages.Answer, id=_words, progress=_progress),
)


@given(_messages)
def test_what_is_encoded_is_decoded(message: messages.Message) -> None:
    line = encode_message(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_message(line) == message


@given(
    _messages, st.dictionaries(st.text(max_size=9).map("x_".__add__), st.none() | st.text() | st.lists(st.integers()))
)
def test_fields_of_a_later_version_are_ignored(message: messages.Message, more: dict[str, Any]) -> None:
    assert decode_message(json.dumps(json.loads(encode_message(message)) | more).encode()) == message


def test_a_type_of_a_later_version_is_passed_over() -> None:
    assert decode_message(b'{"type":"snapshot","id":"a"}') is None


@given(st.binary(max_size=200))
def test_garbage_is_a_message_or_a_protocol_error(line: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode_message(line)


@given(_messages, st.data())
def test_a_field_of_the_wrong_kind_is_a_message_or_a_protocol_error(
    message: messages.Message, data: st.DataObject
) -> None:
    document = json.loads(encode_message(message))
    name = data.draw(st.sampled_from(sorted(document)))
    document[name] = data.draw(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.lists(st.integers())
        | st.just({"a": [1]})
    )
    with contextlib.suppress(ProtocolError):
        decode_message(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("line", "message", "capture_id"),
    [
        (b"", "not JSON", None),
        (b"[" * 60_000, "not JSON", None),
        (b"\xff", "not JSON", None),
        (b"9" * 5000, "not JSON", None),
        (b"[1]", '"type"', None),
        (b'{"type":7}', '"type"', None),
        (b'{"type":"capture","steps":3}', 'capture: "id" is missing', None),
        (b'{"type":"capture","id":"a"}', 'capture: "steps" is missing', "a"),
        (b'{"type":"capture","id":"a","steps":0}', '"steps" must be a whole number from 1 to 1000', "a"),
        (b'{"type":"capture","id":"a","steps":true}', '"steps" must be', "a"),
        (b'{"type":"capture","id":"a","steps":3,"start_step":-1}', '"start_step" must be', "a"),
        (b'{"type":"capture","id":"a","steps":3,"ranks":[]}', '"ranks" must be', "a"),
        (b'{"type":"capture","id":"a","steps":3,"ranks":["0"]}', '"ranks" must be', "a"),
        (b'{"type":"capture","id":"a","steps":3,"max_overhead":NaN}', '"max_overhead" must be', "a"),
        (b'{"type":"capture","id":"a\\u001b[2J","steps":3}', '"id" must be', None),
        (b'{"type":"cancel","id":"\\ud800"}', '"id" must be', None),
        (b'{"type":"answer","id":"a","state":"maybe"}', '"state"', "a"),
    ],
)
def test_what_is_wrong_is_said_with_the_capture_it_is_about(line: bytes, message: str, capture_id: str | None) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_message(line)
    assert message in str(caught.value)
    assert caught.value.capture_id == capture_id


def test_a_line_has_at_most_64_kib() -> None:
    with pytest.raises(ProtocolError, match="at most 65536"):
        decode_message(b" " * (MAX_LINE_BYTES + 1))
    with pytest.raises(ValueError, match="at most 65536"):
        encode_message(captures.CaptureRequest("a", 1, ranks=tuple(range(20_000))))
    assert len(encode_message(captures.CaptureRequest("a", 1, ranks=tuple(range(10_000))))) <= MAX_LINE_BYTES


@given(st.lists(st.binary(min_size=1, max_size=30).map(lambda line: line.replace(b"\n", b".")), max_size=8), st.data())
def test_lines_are_cut_wherever_the_stream_is(lines: list[bytes], data: st.DataObject) -> None:
    stream, buffer, found = b"".join(line + b"\n" for line in lines), LineBuffer(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += buffer.feed(stream[:size])
        stream = stream[size:]
    assert found == [line for line in lines if line.strip()]


def test_a_stream_without_line_ends_is_not_kept() -> None:
    buffer = LineBuffer()
    buffer.feed(b"x" * (MAX_LINE_BYTES - 1))
    with pytest.raises(ProtocolError, match="more than 65536"):
        buffer.feed(b"x")
