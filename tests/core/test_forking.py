"""Does a forked child leave its parent's garbage alone, and nothing else?"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from stepscope.core.forking import about_to_fork
from tests.training.processes import fork


class _Dropped:
    """Garbage once dropped, since it holds itself; tells who collects it."""

    def __init__(self, collectors: list[int]) -> None:
        self.itself = self
        self.collectors = collectors

    def __del__(self) -> None:
        self.collectors.append(os.getpid())


@pytest.fixture(autouse=True)
def _nothing_is_collected_by_itself() -> Iterator[None]:
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


def test_a_child_collects_its_own_garbage_and_not_its_parents() -> None:
    collectors: list[int] = []

    def child(_: object) -> None:
        gc.collect()
        assert collectors == []
        _Dropped(collectors)
        gc.collect()
        assert collectors == [os.getpid()]

    _Dropped(collectors)
    assert fork(child).end() == 0
    gc.collect()
    assert collectors == [os.getpid()]


def test_a_parent_collects_again_also_after_a_failure() -> None:
    collectors: list[int] = []
    _Dropped(collectors)
    with suppress(OSError), about_to_fork():
        gc.collect()
        assert collectors == []
        raise OSError("no process could be started")
    gc.collect()
    assert collectors == [os.getpid()]


def test_what_the_parent_has_frozen_itself_stays_frozen() -> None:
    gc.freeze()
    with about_to_fork():
        pass
    assert gc.get_freeze_count() > 0
