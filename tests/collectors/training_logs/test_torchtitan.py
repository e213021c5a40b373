"""torchtitan's console: durations from the lines' times, phases between them, many ranks, colours, Primus' seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.collectors.training_logs.reading import read_training_log
from tests.collectors.training_logs.frameworks import durations, read, titan, titan_says


def test_a_step_is_the_time_between_two_lines(tmp_path: Path) -> None:
    lines = [titan_says(0.0, "Training starts at step 1"), titan(1, 9.5), titan(2, 10.623), titan(3, 11.741)]
    log = read(tmp_path, lines)
    assert (log.source, durations(log)) == ("torchtitan", [(1, 1, 9500.0), (2, 1, 1123.0), (3, 1, 1118.0)])
    assert log.steps[0].figures == {
        "loss": 3.24405,
        "grad_norm": 0.8319,
        "tflops_per_gpu": 0.52,
        "mfu_percent": 0.17,
        "tokens_per_second_per_gpu": 7282,
    }


def test_without_the_start_the_first_line_has_no_duration(tmp_path: Path) -> None:
    assert durations(read(tmp_path, [titan(14, 1.0), titan(15, 2.0)])) == [(15, 1, 1000.0)]


def test_log_freq(tmp_path: Path) -> None:
    lines = [titan(1, 5.0), titan(10, 14.0), titan(20, 34.0)]
    assert durations(read(tmp_path, lines)) == [(10, 9, 1000.0), (20, 10, 2000.0)]


def test_all_ranks_print_with_colours_and_some_late(tmp_path: Path) -> None:
    ranks = [
        [f"[rank{rank}]:{titan(step, 2.0 * step + rank / 1000, color=True)}" for step in range(1, 6)]
        for rank in range(8)
    ]
    mixed = [*ranks[0][:3], *ranks[1], *ranks[0][3:], *(line for rank in ranks[2:] for line in rank)]
    log = read(tmp_path, mixed)
    assert [(index, num_steps) for index, num_steps, _ in durations(log)] == [(step, 1) for step in range(2, 6)]
    assert all(abs(ms - 2000) < 10 for _, _, ms in durations(log))
    assert {steps.attempt for steps in log.steps} == {1}


@pytest.mark.parametrize("escape", ["", "\\u001b", "\\x1b", "^["])
def test_colours_whose_escape_is_lost(escape: str, tmp_path: Path) -> None:
    lines = [titan(step, float(step), color=True).replace("\x1b", escape) for step in (1, 2)]
    assert durations(read(tmp_path, lines)) == [(2, 1, 1000.0)]


def test_checkpoints_and_validation_are_phases(tmp_path: Path) -> None:
    lines = [
        titan(10, 10.0),
        titan_says(10.1, "Saving the checkpoint."),
        titan_says(13.0, "Finished saving the checkpoint in 2.90 seconds."),
        titan_says(17.0, "validate step: 10  loss:  3.1000  memory: 9.46GiB(64.99%)  tps: 99,999"),
        titan(20, 27.0),
    ]
    (steps,) = read(tmp_path, lines).steps
    assert (steps.index, steps.ms) == (20, 1700.0)
    assert steps.phases_ms == pytest.approx({"checkpoint": 290.0, "evaluation": 410.0})


def test_whole_seconds_have_the_throughput_s_resolution(tmp_path: Path) -> None:
    """Primus' lines: steps of 0.4 s, one of 3 s, 4,096 tokens a step."""
    seconds = [3.0 if step == 30 else 0.4 for step in range(1, 61)]
    lines, now = [], 0.0
    for step, passed in enumerate(seconds, 1):
        now += passed
        lines.append(titan(step, now, 4096 / passed, form="primus"))
    log = read(tmp_path, lines)
    assert log.source == "torchtitan by Primus"
    by_step = {steps.index: steps.ms for steps in log.steps}
    assert by_step[30] == pytest.approx(3000, rel=0.05)
    assert by_step[31] == pytest.approx(400, rel=0.05)


def test_a_restart_is_another_attempt(tmp_path: Path) -> None:
    lines = [titan(step, float(step)) for step in (1, 2, 3)]
    lines += [titan_says(100.0, "Training starts at step 3"), titan(3, 105.0), titan(4, 106.0)]
    log = read(tmp_path, lines)
    assert [(steps.index, steps.attempt, steps.ms) for steps in log.steps] == [
        (2, 1, 1000.0),
        (3, 1, 1000.0),
        (3, 2, 5000.0),
        (4, 2, 1000.0),
    ]


def test_lines_without_times_are_not_guessed(tmp_path: Path) -> None:
    log = read(tmp_path, [titan(1, 0.0, form="bare"), titan(2, 0.0, form="bare")])
    assert log.steps == []
    assert "have no step times" in log.notices[0].message


def test_the_first_versions_print_durations(tmp_path: Path) -> None:
    lines = [f"step: {step:>2}  loss:  8.1234  iter: {0.25:>7}  data: {0.01:>5}  lr: 0.0008" for step in (1, 2)]
    log = read(tmp_path, lines)
    assert durations(log) == [(1, 1, 250.0), (2, 1, 250.0)]
    assert log.steps[0].data_wait_ms == 10.0


def test_cut_lines_and_other_frameworks_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("[rank0]:INFO starting [rank1]:step: 5  loss[rank2]:x\nstep: 5  loss: 2.0\n")
    assert read_training_log(tmp_path / "a.log") is None
