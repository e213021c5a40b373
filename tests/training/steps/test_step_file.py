"""Do two processes of one name and rank ever write one file?"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepscope.training.run.identity import Identity
from stepscope.training.run.whole_lines import InUseError
from stepscope.training.steps.step_file import begin_steps
from tests.training.processes import fork


def _rank(rank: int, world_size: int) -> Identity:
    return Identity(rank=rank, local_rank=0, world_size=world_size, host="h")


@contextmanager
def _another_process(path: Path) -> Iterator[None]:
    """Which writes the run at `path` as rank 0."""
    may_end, ends = os.pipe()

    def hold(tell: Callable[[str], None]) -> None:
        os.close(ends)
        _, writer = begin_steps(path, _rank(0, 1))
        tell("begun")
        os.read(may_end, 1)
        writer.close()

    process = fork(hold)
    process.wait_for("begun")
    try:
        yield
    finally:
        os.close(ends)
        os.close(may_end)
        assert process.end() == 0


def test_a_second_live_process_takes_a_directory_of_its_own_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with _another_process(tmp_path / "r"), caplog.at_level(logging.WARNING):
        run_directory, writer = begin_steps(tmp_path / "r", _rank(0, 1))
        writer.close()
    assert run_directory == tmp_path / "r-2"
    (record,) = caplog.records
    assert "another process writes the run r now, so this one is r-2" in record.getMessage()


def test_ranks_cannot_agree_on_another_directory_and_step_aside(tmp_path: Path) -> None:
    with _another_process(tmp_path / "r"), pytest.raises(InUseError, match="another process writes it"):
        begin_steps(tmp_path / "r", _rank(0, 2))


def test_after_the_process_has_ended_the_run_goes_on_even_if_its_children_live(tmp_path: Path) -> None:
    may_end, ends = os.pipe()

    def train(tell: Callable[[str], None]) -> None:
        _, writer = begin_steps(tmp_path / "r", _rank(0, 1))
        if not os.fork():  # as a loader's worker, which notices seconds later that it is alone
            os.close(ends)
            os.read(may_end, 1)
            os._exit(0)
        tell("begun")
        writer.close()

    assert fork(train).end() == 0
    run_directory, writer = begin_steps(tmp_path / "r", _rank(0, 1))
    writer.close()
    os.close(ends)
    os.close(may_end)
    assert run_directory == tmp_path / "r"
