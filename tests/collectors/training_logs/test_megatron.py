"""Logs of Megatron-LM and what is made from it: durations, timers, intervals, restarts, prefixes, wrapped lines."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.collectors.training_logs.frameworks import RED, deepspeed, durations, megatron, read, with_timers


def test_iterations_with_their_figures(tmp_path: Path) -> None:
    log = read(tmp_path, ["training ...", megatron(1, 5630.1), megatron(2, 5410.6), megatron(3, 5364.1)])
    assert (log.source, durations(log)) == ("Megatron-LM", [(1, 1, 5630.1), (2, 1, 5410.6), (3, 1, 5364.1)])
    assert log.steps[0].figures == {
        "loss": 2.02153,
        "grad_norm": 6.895,
        "learning_rate": 4e-07,
        "tflops_per_gpu": 231.9,
    }
    assert log.notices == []


def test_a_line_of_several_iterations_is_their_mean(tmp_path: Path) -> None:
    log = read(tmp_path, [megatron(number, 1000.0 + number) for number in (10, 20, 30)])
    assert durations(log) == [(10, 10, 1010.0), (20, 10, 1020.0), (30, 10, 1030.0)]
    resumed = read(tmp_path, [megatron(number, 1000.0) for number in (5010, 5020)])
    assert [steps.num_steps for steps in resumed.steps] == [10, 10]
    restarted = read(tmp_path, [megatron(number, 1000.0) for number in (5001, 5010, 5020, 5030)])
    assert [steps.num_steps for steps in restarted.steps] == [1, 9, 10, 10]
    alone = read(tmp_path, ["  log_interval .................................... 100", megatron(500, 7.0)])
    assert durations(alone) == [(500, 100, 7.0)]


@pytest.mark.parametrize("counts_first_twice", [True, False])
def test_the_first_iteration_is_not_counted_twice(counts_first_twice: bool, tmp_path: Path) -> None:
    """Iteration 1 takes 100 s, 2 to 10 one second each; Megatron's main branch counts the first again."""
    mean = (100_000 + 9 * 1000) / 10 if counts_first_twice else 1000.0
    lines = [megatron(1, 100_000, seconds=100), megatron(10, mean, seconds=109), megatron(20, 1000, seconds=119)]
    assert durations(read(tmp_path, lines)) == [(1, 1, 100_000.0), (10, 9, 1000.0), (20, 10, 1000.0)]


def test_seconds_and_equals_signs_and_nemo(tmp_path: Path) -> None:
    log = read(tmp_path, [f"[default7]:{deepspeed(number, 105.22)}" for number in (12695, 12696)])
    assert (log.source, durations(log)) == ("Megatron-DeepSpeed", [(12695, 1, 105_220.0), (12696, 1, 105_220.0)])
    line = (
        "[2025-11-10 09:43:36,161992][I][megatron/training_log:402:training_log]  iteration=  136004/  136100 |"
        " consumed_samples=   835608576 | elapsed_time_per_iteration_ms=3415.3 | lm loss=12.316531 | grad_norm=6.363 |"
    )
    log = read(tmp_path, [line])
    assert durations(log) == [(136004, 1, 3415.3)]
    assert log.steps[0].figures == {"loss": 12.316531, "grad_norm": 6.363}
    nemo = "Training epoch 0, iteration {}/49 | lr: 1e-06 | reduced_train_loss: 12.03 | train_step_timing in s: 8.65"
    log = read(tmp_path, [nemo.format(4), nemo.format(5)])
    assert (log.source, durations(log)) == ("NeMo", [(4, 1, 8650.0), (5, 1, 8650.0)])


def test_primus_prints_each_line_twice_with_an_average(tmp_path: Path) -> None:
    prefix = "[20260406 22:33:{:02d}][rank-{}/8][INFO     ][-----------------------trainer.py:1544] : "
    lines = []
    for number in (1, 2, 3):
        line = (
            megatron(number, 6000.0 + number, average=9000.0)
            + " hip mem usage/free/total/usage_ratio: 1GB/2GB/3GB/33% |"
        )
        lines += [prefix.format(6 * number, rank) + line for rank in (0, 7)]
    log = read(tmp_path, lines)
    assert (log.source, durations(log)) == ("Primus", [(1, 1, 6001.0), (2, 1, 6002.0), (3, 1, 6003.0)])


@pytest.mark.parametrize(
    "prefix",
    ["0: ", " 12: ", "[default7]:", "[rank3]: ", "node-7: ", "2026-04-06T22:33:50.123456789Z ", "[1,3]<stdout>:", RED],
)
def test_what_launchers_put_before_a_line(prefix: str, tmp_path: Path) -> None:
    lines = [f"{prefix}{megatron(number, 900.0)}" for number in (1, 2)]
    assert durations(read(tmp_path, lines)) == [(1, 1, 900.0), (2, 1, 900.0)]


@pytest.mark.parametrize("width", [80, 100, 133, 212])
def test_lines_wrapped_at_a_terminal_s_width(width: int, tmp_path: Path) -> None:
    whole = with_timers([megatron(1, 1234.5), megatron(2, 2345.6)], "(min, max) time across ranks (ms):")
    lines = [part for line in whole for part in textwrap.wrap(line, width, drop_whitespace=False) or [""]]
    log = read(tmp_path, lines)
    assert durations(log) == [(1, 1, 1234.5), (2, 1, 2345.6)]
    assert log.steps[1].figures["grad_norm"] == 6.895


_MIN_MAX = """\
(min, max) time across ranks (ms):
    forward-backward ...............................: (210.40, 221.30)
    batch-generator ................................: (1.00, 45.50)
    save-checkpoint ................................: (24895.07, 24895.13)"""
_MAX = """\
[default3]:max time across ranks (ms):
[default3]:    forward-backward ...............................: 221.30
[default3]:    batch-generator ................................: 45.50"""
_INLINE = "time (ms) | forward-backward: 221.30 | batch-generator: 45.50 | optimizer: 0.00"
_OF_ALL = """\
times across ranks (ms):
  forward-backward:
     rank  0: 210.40
     rank  1: 221.30
  batch-generator:
     rank  0: 1.00
     rank  1: 45.50"""


@pytest.mark.parametrize(("timers", "rank"), [(_MIN_MAX, None), (_MAX, None), (_INLINE, None), (_OF_ALL, 1)])
def test_timers_follow_their_iteration(timers: str, rank: int | None, tmp_path: Path) -> None:
    setup = (
        "(min, max) time across ranks (ms):\n    model-and-optimizer-setup ......................: (3283.61, 3283.61)"
    )
    log = read(tmp_path, [*setup.splitlines(), *with_timers([megatron(1, 300.0), megatron(2, 310.0)], timers)])
    for steps in log.steps:
        assert steps.phases_ms == {"forward-backward": 221.3}
        assert (steps.data_wait_ms, steps.data_wait_rank) == (45.5, rank)


def test_deepspeed_s_own_timers_are_of_micro_batches(tmp_path: Path) -> None:
    lines = [
        megatron(1, 300.0),
        "[INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd_microstep: 1.05 | step: 77.19",
    ]
    assert read(tmp_path, lines).steps[0].phases_ms == {}


def test_the_straggler_detector_names_the_rank_that_waits(tmp_path: Path) -> None:
    line = "[2026-04-06 22:33:50] | MnRtt/Rnk: 1.00ms/3 | MnDRtt/Rnk: 0.10ms/2 | MxDRtt/Rnk: 47000.00ms/5 |"
    log = read(tmp_path, [megatron(1, 60_000.0), line])
    assert (log.steps[0].data_wait_ms, log.steps[0].data_wait_rank) == (47_000.0, 5)


def test_a_restart_is_another_attempt(tmp_path: Path) -> None:
    lines = [megatron(number, 1000.0) for number in (1, 2, 3)] + [megatron(number, 2000.0) for number in (2, 3, 4)]
    log = read(tmp_path, lines)
    assert [(steps.index, steps.attempt) for steps in log.steps] == [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (4, 2)]


def test_time_outside_of_iterations_is_said(tmp_path: Path) -> None:
    lines = [megatron(number, 1000.0, seconds=number * 10) for number in (1, 2, 3)]
    (notice,) = read(tmp_path, lines).notices
    assert notice.message.startswith("18 of 20 s between the lines (90%) are outside of iterations")


def test_a_line_that_is_being_written_has_no_duration_yet(tmp_path: Path) -> None:
    whole = megatron(2, 1234.5)
    for end in range(whole.index("1234.5") + len("1234.5 ")):
        assert durations(read(tmp_path, [megatron(1, 5.0), whole[:end]])) == [(1, 1, 5.0)]


def test_what_is_not_a_duration_is_left_out(tmp_path: Path) -> None:
    for text in ("nan", "inf", "-1.0", "1e999", "", "|"):
        line = megatron(2, 1.0).replace("(ms): 1.0", f"(ms): {text}")
        assert durations(read(tmp_path, [megatron(1, 5.0), line])) == [(1, 1, 5.0)]


def test_a_missing_line_does_not_make_the_next_row_longer(tmp_path: Path) -> None:
    log = read(tmp_path, [megatron(number, 1000.0) for number in (100, 110, 120, 140, 150)])
    assert [steps.num_steps for steps in log.steps] == [10, 10, 10, 10, 10]
    assert [notice.message for notice in log.notices] == [
        "lines are missing before 1 row: a row is of the usual 10 steps"
    ]
