"""Step file: never shared by two processes of one run name and rank; resumed runs continue the numbering."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stepscope.training.run.identity import Identity
from stepscope.training.run.run_files import RunFileInUseError
from stepscope.training.steps.telemetry import open_step_file
from tests.training.processes import fork


def _rank(rank: int, world_size: int) -> Identity:
    return Identity(rank=rank, local_rank=0, world_size=world_size, host="h")


@contextmanager
def _another_process(path: Path) -> Iterator[None]:
    """Which writes the run at `path` as rank 0."""
    may_end, ends = os.pipe()

    def hold(tell: Callable[[str], None]) -> None:
        os.close(ends)
        writer = open_step_file(path, _rank(0, 1), None).writer
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
        begun = open_step_file(tmp_path / "r", _rank(0, 1), None)
        begun.writer.close()
    assert begun.run_directory == tmp_path / "r-2"
    (record,) = caplog.records
    assert "another process writes the run r now, so this one is r-2" in record.getMessage()


def test_ranks_cannot_agree_on_another_directory_and_step_aside(tmp_path: Path) -> None:
    with _another_process(tmp_path / "r"), pytest.raises(RunFileInUseError, match="another process writes it"):
        open_step_file(tmp_path / "r", _rank(0, 2), None)


def test_after_the_process_has_ended_the_run_goes_on_even_if_its_children_live(tmp_path: Path) -> None:
    may_end, ends = os.pipe()

    def train(tell: Callable[[str], None]) -> None:
        writer = open_step_file(tmp_path / "r", _rank(0, 1), None).writer
        if not os.fork():  # as a loader's worker, which notices seconds later that it is alone
            os.close(ends)
            os.read(may_end, 1)
            os._exit(0)
        tell("begun")
        writer.close()

    assert fork(train).end() == 0
    begun = open_step_file(tmp_path / "r", _rank(0, 1), None)
    begun.writer.close()
    os.close(ends)
    os.close(may_end)
    assert begun.run_directory == tmp_path / "r"


def _write_lines(run: Path, rank: int, *lines: str) -> None:
    (run / "steps").mkdir(parents=True, exist_ok=True)
    (run / "steps" / f"rank{rank}.jsonl").write_text("".join(line + "\n" for line in lines))


def _line(index: int, attempt: int = 1, end_ns: int = 5) -> str:
    return f'{{"index":{index},"start_ns":1,"end_ns":{end_ns},"attempt":{attempt}}}'


def _continued(run: Path, identity: Identity, first_step: int | None = None) -> tuple[int, int]:
    begun = open_step_file(run, identity, first_step)
    begun.writer.close()
    return begun.continuation.attempt, begun.continuation.first_step


def test_a_run_goes_on_after_its_last_whole_line_or_where_the_caller_says(tmp_path: Path) -> None:
    assert _continued(tmp_path, _rank(0, 1)) == (1, 0)
    _write_lines(tmp_path, 0, _line(18), _line(19, attempt=2), "no step", '{"index":20,"start')
    assert _continued(tmp_path, _rank(0, 1)) == (3, 20)
    assert _continued(tmp_path, _rank(0, 1), 10) == (3, 10)


def test_ranks_without_a_store_go_by_rank_zeros_lines_of_before_they_began(tmp_path: Path) -> None:
    _write_lines(tmp_path, 0, _line(18), _line(19, attempt=2, end_ns=1 << 62))
    _write_lines(tmp_path, 1, _line(16))
    assert _continued(tmp_path, _rank(1, 3)) == _continued(tmp_path, _rank(2, 3)) == (2, 19)


def test_ranks_with_a_store_take_rank_zeros_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Store(dict[str, Any]):
        set = dict.__setitem__

        def wait(self, keys: list[str], patience: timedelta) -> None:
            if not self.keys() >= set(keys):
                raise RuntimeError(f"no {keys} after {patience}")

        def get(self, key: str) -> bytes:  # type: ignore[override]
            return bytes(self[key], "ascii")

    store = Store()
    monkeypatch.setattr("stepscope.training.run.run_files.job_store", lambda: store)
    monkeypatch.setattr("stepscope.training.steps.telemetry._turns", iter([0, 0, 1]))
    _write_lines(tmp_path, 0, _line(18))
    _write_lines(tmp_path, 1, _line(20))
    assert _continued(tmp_path, _rank(0, 2), 7) == _continued(tmp_path, _rank(1, 2)) == (2, 7)
    with caplog.at_level(logging.WARNING):
        assert _continued(tmp_path, _rank(1, 2)) == (2, 19)
    assert "call profile() on all ranks" in caplog.text


@pytest.mark.parametrize("wrong", [-1, True, 2.0, "7"])
def test_a_first_step_that_is_no_steps_number_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(TypeError, match="first_step is the number of a step"):
        open_step_file(tmp_path, _rank(0, 1), wrong)
