"""The live verdict as a message and a document: the same back, and nothing but it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.protocol.fields import MAX_NUMBER, FieldError
from stepscope.core.protocol.messages import MAX_LINE_BYTES, ProtocolError, decode_message, encode_message
from stepscope.core.protocol.verdicts import (
    MAX_RANKS,
    MAX_REASONS,
    MAX_SUMMARY,
    MAX_VERDICT_BYTES,
    LiveVerdict,
    live_verdict_document,
    read_live_verdict,
)

_WORDS = st.text(min_size=1, max_size=200).filter(str.isprintable)
_RATIOS = st.floats(0.0, 1.0)
_TIMES = st.none() | st.floats(0.0, 1e12)
_VERDICTS = st.builds(
    LiveVerdict,
    run=_WORDS,
    time_ns=st.integers(0, MAX_NUMBER),
    cause=_WORDS,
    confidence=_RATIOS,
    summary=st.text(max_size=MAX_SUMMARY).filter(str.isprintable),
    reasons=st.lists(st.sampled_from(["starved", "bursty"]), max_size=MAX_REASONS).map(tuple),
    ranks=st.lists(st.integers(0, 1 << 24), max_size=MAX_RANKS).map(tuple),
    bottleneck=st.none() | st.booleans(),
    share=st.none() | _RATIOS,
    step_ms=_TIMES,
    fixed_step_ms=_TIMES,
    num_steps=st.none() | st.integers(0, MAX_NUMBER),
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=600),
    lambda inner: st.lists(inner, max_size=80) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=100,
)


@given(_VERDICTS)
def test_what_is_sent_is_read(verdict: LiveVerdict) -> None:
    assert decode_message(encode_message(verdict)) == verdict
    content = json.dumps(live_verdict_document(verdict)).encode()
    assert read_live_verdict(json.loads(content)) == verdict


@given(_VERDICTS, st.sampled_from(sorted(LiveVerdict.__dataclass_fields__)), _JSON)
def test_a_hostile_field_is_refused_or_bounded(verdict: LiveVerdict, name: str, value: Any) -> None:
    document = live_verdict_document(verdict) | {name: value, "type": "verdict", "unknown": value}
    line = json.dumps(document).encode()
    try:
        read = decode_message(line)
    except ProtocolError:
        return
    assert isinstance(read, LiveVerdict)
    assert len(encode_message(read)) < MAX_LINE_BYTES
    assert len(read.summary) <= MAX_SUMMARY
    assert len(read.ranks) <= MAX_RANKS
    assert len(read.reasons) <= MAX_REASONS
    assert 0.0 <= read.confidence <= 1.0


@given(_JSON)
def test_anything_else_is_not_a_verdict(document: Any) -> None:
    with pytest.raises(FieldError):
        read_live_verdict(document)


def test_the_longest_document_fits() -> None:
    longest = LiveVerdict(
        "r" * 200, MAX_NUMBER, "c" * 200, 1.0, "s" * MAX_SUMMARY, ("w" * 200,) * MAX_REASONS, (1 << 24,) * MAX_RANKS
    )
    assert len(json.dumps(live_verdict_document(longest))) < MAX_VERDICT_BYTES
