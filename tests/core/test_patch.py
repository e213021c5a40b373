"""Patching: wrapped objects are restored, also when others wrap them as well."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from stepscope.core.process import Patch


def _louder(original: Callable[..., int]) -> Callable[..., int]:
    return lambda number: 10 * original(number)


def test_the_original_comes_back() -> None:
    def one_more(number: int) -> int:
        return number + 1

    owner = SimpleNamespace(one_more=one_more)
    wrapping = Patch(owner, "one_more", _louder)
    assert owner.one_more(1) == 20
    assert owner.one_more.__name__ == "one_more"
    wrapping.leave()
    wrapping.leave()
    assert owner.one_more is one_more


def test_another_wrapper_around_ours_is_not_taken_away() -> None:
    owner = SimpleNamespace(one_more=lambda number: number + 1)
    inner = Patch(owner, "one_more", _louder)
    outer = Patch(owner, "one_more", _louder)
    inner.leave()
    assert owner.one_more(1) == 200
    outer.leave()
    assert owner.one_more(1) == 20


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(AttributeError, match="absent"):
        Patch(SimpleNamespace(), "absent", _louder)
