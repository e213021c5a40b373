"""Run delay: of the training thread and of autograd's threads at work, unknown where the kernel does not tell."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.training.steps.run_delay import RunDelay, divided
from stepscope.training.steps.telemetry import StepRecord


class _Tasks:
    """A folder like /proc/self/task, with this thread in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own = str(threading.get_native_id())
        self.write(self.own, "python", 100, 10)

    def write(self, task: str, name: str, cpu_ns: int, delay_ns: int, num_slices: int = 1) -> None:
        (self.folder / task).mkdir(exist_ok=True)
        (self.folder / task / "comm").write_text(f"{name}\n")
        (self.folder / task / "schedstat").write_text(f"{cpu_ns} {delay_ns} {num_slices}\n")


@pytest.fixture
def tasks(tmp_path: Path) -> _Tasks:
    return _Tasks(tmp_path)


def _delay_ns(delay: RunDelay) -> int | None:
    record = StepRecord(0, 0, 1)
    delay.read(0)
    delay.add_to([record])
    return record.run_delay_ns


def test_a_step_has_what_was_added_since_the_one_before(tasks: _Tasks) -> None:
    delay = RunDelay(tasks.folder)
    assert _delay_ns(delay) == 0
    tasks.write(tasks.own, "python", 200, 35)
    assert _delay_ns(delay) == 25
    assert _delay_ns(delay) == 0


def test_autograd_s_threads_count_once_they_are_found_and_while_they_work(tasks: _Tasks) -> None:
    delay = RunDelay(tasks.folder)
    tasks.write("7", "pt_autograd_0", 50, 1000)
    tasks.write("8", "pt_autograd_1", 5, 1000)
    tasks.write("9", "pt_data_worker", 50, 1000)
    delay.run_task()
    assert _delay_ns(delay) == 0  # nothing is known of when they began to wait
    tasks.write("7", "pt_autograd_0", 80, 1100)
    tasks.write("9", "pt_data_worker", 80, 1100)
    delay.run_task()
    tasks.write("7", "pt_autograd_0", 90, 1130)
    assert _delay_ns(delay) == 30
    delay.run_task()
    delay.run_task()  # idle since
    tasks.write("7", "pt_autograd_0", 90, 1170)
    assert _delay_ns(delay) == 0


def test_a_capture_between_two_steps_is_in_neither(tasks: _Tasks) -> None:
    delay = RunDelay(tasks.folder)
    assert _delay_ns(delay) == 0
    tasks.write(tasks.own, "python", 200, 500)
    delay.skip()
    assert _delay_ns(delay) == 0


def test_a_thread_that_ends_counts_no_more(tasks: _Tasks) -> None:
    delay = RunDelay(tasks.folder)
    tasks.write("7", "pt_autograd_0", 50, 10)
    delay.run_task()
    tasks.write("7", "pt_autograd_0", 60, 10)
    delay.run_task()
    (tasks.folder / "7" / "schedstat").write_text("")  # as the kernel gives of an ended one
    tasks.write(tasks.own, "python", 200, 14)
    assert _delay_ns(delay) == 4
    delay.run_task()
    assert _delay_ns(delay) == 0


@pytest.mark.parametrize("text", ["0 0 0\n", "", None])
def test_where_the_kernel_does_not_count_it_is_unknown(tasks: _Tasks, text: str | None) -> None:
    file = tasks.folder / tasks.own / "schedstat"
    file.unlink() if text is None else file.write_text(text)
    delay = RunDelay(tasks.folder)
    delay.run_task()
    assert _delay_ns(delay) is None
    delay.close()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count")
def test_this_kernel_tells() -> None:
    delay = RunDelay()
    assert (_delay_ns(delay) or 0) >= 0
    delay.run_task()
    assert (_delay_ns(delay) or 0) >= 0
    delay.close()
    assert _delay_ns(delay) is None


def test_steps_that_share_a_reading_share_it_by_their_durations(tasks: _Tasks) -> None:
    delay = RunDelay(tasks.folder)
    records = [StepRecord(index, 0, duration_ns) for index, duration_ns in enumerate((30, 10, 20, 5, 0))]
    tasks.write(tasks.own, "python", 200, 50)
    delay.read(1)
    tasks.write(tasks.own, "python", 200, 60)
    delay.read(2)
    tasks.write(tasks.own, "python", 200, 67)
    delay.read(4)
    delay.add_to(records)
    assert [record.run_delay_ns for record in records] == [30, 10, 10, 7, 0]


def test_of_steps_that_others_have_taken_or_that_are_not_read_it_is_unknown(tasks: _Tasks) -> None:
    delay = RunDelay(tasks.folder)
    delay.read(3)  # of steps that have their records
    tasks.write(tasks.own, "python", 200, 30)
    delay.read(5)
    records = [StepRecord(index, 0, 10) for index in (4, 5, 6)]
    delay.add_to(records)
    assert [record.run_delay_ns for record in records] == [10, 10, None]


@given(st.integers(0, 2**62), st.lists(st.integers(0, 2**40), min_size=1, max_size=50))
def test_shares_add_up_and_are_in_proportion(total: int, sizes: list[int]) -> None:
    shares = divided(total, sizes)
    assert sum(shares) == total
    assert all(share >= 0 for share in shares)
    for share, size in zip(shares, sizes, strict=True):
        exact = total * size / sum(sizes) if sum(sizes) else total / len(sizes)
        assert share == pytest.approx(exact, rel=1e-9, abs=1.01)
