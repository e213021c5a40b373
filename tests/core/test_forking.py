"""Does a forked child leave its parent's garbage alone, and nothing else?"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from stepscope.core.forking import about_to_fork, keep_inherited


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
    gc.enable()


def _exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_collects_its_own_garbage_and_not_its_parents() -> None:
    collectors: list[int] = []
    _Dropped(collectors)
    with about_to_fork():
        child = os.fork()
    if child == 0:
        keep_inherited()
        gc.collect()
        was_left = not collectors
        _Dropped(collectors)
        gc.collect()
        os._exit(0 if was_left and collectors == [os.getpid()] and gc.isenabled() else 1)
    assert _exit_code(child) == 0
    gc.collect()
    assert collectors == [os.getpid()]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_parent_collects_again_if_it_did_before(is_enabled: bool) -> None:
    if is_enabled:
        gc.enable()
    with suppress(OSError), about_to_fork():
        assert not gc.isenabled()
        raise OSError("no process could be started")
    assert gc.isenabled() == is_enabled
