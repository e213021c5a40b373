"""Repair of damaged text: its cost, and what remains."""

from __future__ import annotations

import pytest

from stepscope.trace.formats.kineto import repair
from stepscope.trace.formats.kineto.repair import Recovery

_EVENT = b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1}'


def test_text_that_can_hold_no_event_is_not_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece was mended in four ways, alone and with the next seven: seconds for some hundred kilobytes."""
    mended: list[bytes] = []

    def mend(piece: bytes) -> list[bytes]:
        mended.append(piece)
        return []

    monkeypatch.setattr(repair, "repairs", mend)
    found = Recovery(b'{"args":[{"args":' + b'},{"args":[{"args":' * 200 + b"}]}," + _EVENT, is_last=True)
    assert [piece for piece in mended if b"ph" not in piece] == []
    assert found.dropped > 0


def test_an_event_amid_such_text_is_kept() -> None:
    found = Recovery(b'{"args":[{"args":},' + _EVENT + b',{"args":},' + _EVENT, is_last=True)
    assert len(found.events) == 2
