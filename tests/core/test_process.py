"""A forked child does not collect its parent's garbage, and everything else is unchanged."""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stepscope.core.process import about_to_fork, module_command
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


def test_a_module_in_a_process_of_its_own_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    for name in ("json", "stepscope"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    without_path = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = module_command("stepscope", "--version")
    ended = subprocess.run(command, cwd=tmp_path, env=without_path, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("stepscope")
