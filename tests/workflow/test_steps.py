"""Steps of torchtitan's structured logs, and of console logs: a file, a folder of one, of ranks, of several."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.workflow.steps import read_steps
from tests.collectors.training_logs.frameworks import bar, megatron, titan


def _spikes(folder: Path) -> Path:
    """m2lines/Samudra#634 as torchtitan's structured logs: loading takes 20 to 47 s on one rank at a time."""
    logs = folder / "out" / "structured_logs"
    logs.mkdir(parents=True)
    waits = {23: (5, 21.0), 27: (2, 18.6), 36: (5, 46.3), 52: (0, 38.9)}
    for rank in range(8):
        seen, now, lines = random.Random(rank), 1_780_000_000.0, []
        for step in range(1, 81):
            late, spike = waits.get(step, (-1, 0.0))
            wait = seen.uniform(0.2, 1.0) + (spike if rank == late else 0.0)
            spans = (("fetching_batch", wait), ("fwd_bwd", 15.0 + spike - wait - 0.4), ("Optimizer", 0.4))
            for name, seconds in spans:
                event = {"step": step, "rank": rank}
                lines.append(event | {"time_us": int(now * 1e6), "log_type_name": f"{name}_start"})
                now += seconds
                end = {"time_us": int(now * 1e6), "log_type_name": f"{name}_end", "value": seconds * 1e3}
                lines.append(event | end)
        path = logs / f"training.global_rank_{rank}.20260306-101112-AB12CD.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "out"


def test_spikes_of_loading_name_their_ranks(tmp_path: Path) -> None:
    report = read_steps(str(_spikes(tmp_path)))
    assert report.source == "torchtitan"
    assert [(wait.step, wait.ranks) for wait in report.long_waits] == [(23, [5]), (27, [2]), (36, [5]), (52, [0])]
    assert {row.slowest_rank for row in report.steps} == {None}
    assert report.longest_data_wait == pytest.approx(0.16, abs=0.02)


def test_a_log_and_a_folder_with_it(tmp_path: Path) -> None:
    log = tmp_path / "slurm-1234.out.gz"
    log.write_bytes(gzip.compress("\n".join(megatron(number, 900.0) for number in range(1, 9)).encode()))
    (tmp_path / "notes.txt").write_text("nothing\n")
    (tmp_path / "empty.log.gz").write_bytes(b"\x1f\x8b")
    for path in (log, tmp_path):
        report = read_steps(str(path))
        assert (report.source, report.num_steps, report.step_ms.p50) == ("Megatron-LM", 8, 900.0)
    assert [notice.code for notice in report.warnings] == ["unusable_file"]


def test_the_logs_of_all_ranks_are_one_job(tmp_path: Path) -> None:
    for rank in range(4):
        path = tmp_path / "attempt_0" / str(rank) / "stdout.log"
        path.parent.mkdir(parents=True)
        path.write_text("\n".join(titan(step, 2.0 * step + rank / 100) for step in range(1, 9)))
    report = read_steps(str(tmp_path))
    assert (report.num_steps, report.step_ms.p50) == (7, 2000.0)


def test_a_restart_s_log_beside_the_first_one_s(tmp_path: Path) -> None:
    for name, first, last in (("attempt_0.log", 1, 9), ("attempt_1.log", 8, 12)):
        (tmp_path / name).write_text("\n".join(megatron(number, 900.0) for number in range(first, last + 1)))
    assert [row.index for row in read_steps(str(tmp_path)).steps] == [*range(1, 13)]


def test_logs_of_different_trainings_are_not_mixed(tmp_path: Path) -> None:
    for name, ms in (("a.log", 900.0), ("b.log", 1900.0)):
        (tmp_path / name).write_text("\n".join(megatron(number, ms) for number in range(1, 9)))
    with pytest.raises(DataError, match=r"holds 2 logs that do not have the same steps: a.log, b.log; give one"):
        read_steps(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "nothing\n",
            "holds no steps of Megatron-LM, Megatron-DeepSpeed, torchtitan, Primus or the Hugging Face Trainer",
        ),
        (f"{titan(1, 1.0)}\n", "have no step times"),
        (f"{bar(5, 60, 10.0)}\n", "has progress bars, but no line with a loss"),
    ],
)
def test_a_file_without_steps_is_one_line(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(content)
    with pytest.raises(DataError, match=said) as refused:
        read_steps(str(tmp_path / "a.log"))
    assert "\n" not in str(refused.value)
