"""A forked child does not collect its parent's garbage, and everything else is unchanged."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stepscope.core.process import about_to_fork
from tests.garbage import Dropped, collected_by_hand, collectors_of
from tests.training.processes import fork


@pytest.fixture(autouse=True)
def _nothing_is_collected_by_itself() -> Iterator[None]:
    with collected_by_hand():
        yield
    gc.unfreeze()


def test_a_child_collects_its_own_garbage_and_not_its_parents(tmp_path: Path) -> None:
    parents, childs = tmp_path / "parents", tmp_path / "childs"
    parents.mkdir()
    childs.mkdir()

    def child(_: object) -> None:
        gc.collect()
        assert collectors_of(parents) == []
        Dropped(childs)
        gc.collect()
        assert collectors_of(childs) == [os.getpid()]

    Dropped(parents)
    assert fork(child).end() == 0
    gc.collect()
    assert collectors_of(parents) == [os.getpid()]


def test_a_parent_collects_again_also_after_a_failure(tmp_path: Path) -> None:
    Dropped(tmp_path)
    with suppress(OSError), about_to_fork():
        gc.collect()
        assert collectors_of(tmp_path) == []
        raise OSError("no process could be started")
    gc.collect()
    assert collectors_of(tmp_path) == [os.getpid()]


def test_what_the_parent_has_frozen_itself_stays_frozen() -> None:
    gc.freeze()
    with about_to_fork():
        pass
    assert gc.get_freeze_count() > 0
