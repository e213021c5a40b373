"""The Hugging Face Trainer's console: the training's progress bar among others, and the last line without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collectors.training_logs.frameworks import bar, durations, read

_LOSS = "{'loss': 6.254, 'grad_norm': 1.799, 'learning_rate': 4.667e-05, 'epoch': 0.01}"
_EVAL = "{'eval_loss': 6.225, 'eval_runtime': 5.0, 'eval_samples_per_second': 2900, 'epoch': 0.04}"
_END = "{'train_runtime': 120.0, 'train_samples_per_second': 4.3, 'train_steps_per_second': 0.5, 'train_loss': 6.2}"


def _training(num_steps: int = 60, seconds: float = 2.0) -> list[str]:
    """One line a step, as with carriage returns."""
    return [bar(step, num_steps, step * seconds) for step in range(num_steps + 1)]


def test_rows_of_ten_seconds(tmp_path: Path) -> None:
    lines = ["\r".join(_training()), _LOSS, _END]
    log = read(tmp_path, lines)
    assert log.source == "Hugging Face Trainer"
    assert durations(log) == [(step, 5, 2000.0) for step in range(5, 61, 5)]
    assert log.notices[0].code == "coarse_times"


def test_long_steps_have_a_row_each(tmp_path: Path) -> None:
    lines = [bar(0, 3, 0), bar(1, 3, 225), bar(2, 3, 3800), _LOSS, bar(3, 3, 4025), _END]
    assert durations(read(tmp_path, lines)) == [(1, 1, 225_000.0), (2, 1, 3_575_000.0), (3, 1, 225_000.0)]


def test_other_bars_are_not_the_training_s(tmp_path: Path) -> None:
    training = _training(20, 6.0)
    lines = [
        *(bar(part, 500, part / 10, "Map (num_proc=8): ") for part in range(501)),
        *(bar(part, 9, part, "Loading checkpoint shards: ") for part in range(10)),
        *training[:11],
        _LOSS,
        *(bar(part, 800, part / 2) for part in range(801)),  # evaluation, longer than the training
        _EVAL,
        *training[11:],
        _END,
    ]
    log = read(tmp_path, lines)
    assert [steps.index for steps in log.steps] == [*range(2, 21, 2)]
    assert log.steps[5].phases_ms == {"evaluation": 2500.0}
    assert log.steps[4].figures == {"loss": 6.254, "grad_norm": 1.799, "learning_rate": 4.667e-05}


def test_the_last_line_identifies_the_bar_where_no_loss_was_logged(tmp_path: Path) -> None:
    end = "{'train_runtime': 121.5, 'train_samples_per_second': 0.3, 'train_steps_per_second': 0.066}"
    lines = [bar(1, 40, 1.0), bar(40, 40, 2.0), *_training(8, 15.0), bar(1, 30, 1.0), bar(30, 30, 9.0), end]
    assert durations(read(tmp_path, lines)) == [(step, 1, 15_000.0) for step in range(1, 9)]


def test_bars_of_all_processes_are_one(tmp_path: Path) -> None:
    lines = [line for step in range(5) for line in (bar(step, 4, 220 * step), bar(step, 4, 220 * step + 1))]
    lines += [*_training(4, 220.2), _LOSS, _END]  # one process' output comes late
    log = read(tmp_path, lines)
    assert [steps.attempt for steps in log.steps] == [1, 1, 1, 1]
    assert durations(log) == [(step, 1, 220_000.0) for step in (1, 2, 3, 4)]


def test_two_trainings_are_two_attempts(tmp_path: Path) -> None:
    lines = [*_training(4, 20.0), _LOSS, _END, *_training(4, 50.0), _LOSS, _END]
    assert [(steps.attempt, steps.ms) for steps in read(tmp_path, lines).steps] == [(1, 20_000.0)] * 4 + [
        (2, 50_000.0)
    ] * 4


def test_the_jump_to_a_checkpoint_s_step_is_not_a_step(tmp_path: Path) -> None:
    lines = [bar(0, 600, 0), *(bar(500 + step, 600, step * 4) for step in range(1, 31)), _LOSS]
    log = read(tmp_path, lines)
    assert log.steps[0] == log.steps[0].__class__(504, 3, 4000.0)
    assert {steps.ms for steps in log.steps} == {4000.0}


def test_numbers_as_texts_and_prefixes(tmp_path: Path) -> None:
    """transformers 5 prints texts; torchrun and others prefix lines."""
    quoted = "{'loss': '6.254', 'grad_norm': 'nan', 'learning_rate': '4.667e-05', 'epoch': '0.01'}"
    lines = [f"[rank0]:{line}" for line in [*_training(10, 12.0), quoted]]
    log = read(tmp_path, lines)
    assert durations(log) == [(step, 1, 12_000.0) for step in range(1, 11)]
    assert log.steps[-1].figures == {"loss": 6.254, "learning_rate": 4.667e-05}


def test_without_a_bar_the_mean_of_all(tmp_path: Path) -> None:
    end = "{'train_runtime': 15.99, 'train_samples_per_second': 7.504, 'train_steps_per_second': 3.752}"
    log = read(tmp_path, [_LOSS, _EVAL, _LOSS, end])
    (steps,) = log.steps
    assert durations(log) == [(60, 60, 266.5)]
    assert steps.phases_ms == {"evaluation": pytest.approx(5000 / 60)}
    assert len(log.notices) == 1


def test_a_rounded_rate_leaves_the_number_of_steps_open(tmp_path: Path) -> None:
    end = "{'train_runtime': 11126.6732, 'train_samples_per_second': 0.554, 'train_steps_per_second': 0.069}"
    log = read(tmp_path, [_LOSS, end])
    assert "follows from a rounded rate" in log.notices[1].message
    said = read(tmp_path, ["  Total optimization steps = 771", _LOSS, end])
    assert durations(said) == [(771, 771, 14_431.5)]
    assert len(said.notices) == 1


def test_a_bar_alone_is_not_a_training(tmp_path: Path) -> None:
    log = read(tmp_path, _training())
    assert (log.steps, [notice.code for notice in log.notices]) == ([], ["unidentified_bars"])


def test_lines_without_times_are_named(tmp_path: Path) -> None:
    log = read(tmp_path, ["{'loss': 2.1, 'learning_rate': 4.5e-05, 'epoch': 0.25}"])
    assert log.steps == []
    assert [notice.code for notice in log.notices] == ["no_times"]
    assert "these have no times" in log.notices[0].message
