"""Step lines of ranks are read back, whatever a kill left behind."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

import stepscope.store.step_records as subject
from stepscope.core.documents.run_directory import RESERVED_FIELDS, RankSteps, Step
from stepscope.training.anomalies.detectors import Anomaly
from stepscope.training.steps.telemetry import StepRecord


def _write(run: Path, name: str, text: str) -> None:
    (run / "steps").mkdir(exist_ok=True)
    (run / "steps" / name).write_text(text)


def test_ranks_come_in_their_order_with_all_that_was_told(tmp_path: Path) -> None:
    line = (
        '{"index":7,"start_ns":5,"end_ns":9,"data_wait_ns":1,"phases":{"checkpoint":2},"captured":true,'
        '"state":"active","loss":1.5,"grad_norm":null,"non_finite":["grad_norm"],"anomalies":["loss_spike",'
        '{"kind":"gradient_not_finite","figure":"grad_norm","value":null,"usual":null,"limit":null}]}\n'
    )
    for rank in (10, 2):
        _write(tmp_path, f"rank{rank}.jsonl", line)
    _write(tmp_path, "other.jsonl", line)
    ranks, notices = subject.read_run_steps(tmp_path)
    assert [rank.rank for rank in ranks] == [2, 10]
    anomalies = ["loss_spike", "gradient_not_finite"]
    assert ranks[0].steps == [
        Step(7, 5, 9, 1, {"checkpoint": 2}, {"loss": 1.5}, True, anomalies, ["grad_norm"], state="active")
    ]
    assert notices == []


def test_what_is_no_step_is_counted_but_not_a_line_that_a_kill_cut_short(tmp_path: Path) -> None:
    good = '{"index":0,"start_ns":1,"end_ns":2}\n'
    _write(tmp_path, "rank0.jsonl", good + "x\n{}\n" + '{"index":1,"start')
    (rank,), (notice,) = subject.read_run_steps(tmp_path)
    assert [step.index for step in rank.steps] == [0]
    assert notice.message.endswith("2 lines are not steps and are left out")


@pytest.mark.parametrize("value", [b'"\xff"', b"1e999"])
def test_a_step_keeps_its_times_where_its_figures_cannot_be_read(tmp_path: Path, value: bytes) -> None:
    _write(tmp_path, "rank0.jsonl", "")
    line = b'{"index":4,"start_ns":1,"end_ns":2,"loss":3.0,"x":' + value + b"}\n"
    (tmp_path / "steps" / "rank0.jsonl").write_bytes(line)
    assert subject.read_run_steps(tmp_path) == ([RankSteps(0, [Step(4, 1, 2)])], [])


def test_a_restart_replaces_what_it_does_again(tmp_path: Path) -> None:
    starts = [(0, 10), (1, 20), (2, 30), (1, 100)]
    lines = [f'{{"index":{index},"start_ns":{start},"end_ns":{start + 5}}}\n' for index, start in starts]
    _write(tmp_path, "rank0.jsonl", "".join(lines))
    (rank,), _ = subject.read_run_steps(tmp_path)
    assert [(step.index, step.start_ns) for step in rank.steps] == [(0, 10), (1, 100)]


def _attempt(attempt: int, indexes: range) -> str:
    return "".join(f'{{"index":{i},"start_ns":1,"end_ns":2,"attempt":{attempt}}}\n' for i in indexes)


def test_a_restart_replaces_also_what_ranks_did_that_it_has_no_more(tmp_path: Path) -> None:
    _write(tmp_path, "rank0.jsonl", _attempt(1, range(6)) + _attempt(2, range(3, 12)))
    _write(tmp_path, "rank1.jsonl", _attempt(1, range(7)))
    ranks, _ = subject.read_run_steps(tmp_path)
    assert [[step.index for step in rank.steps] for rank in ranks] == [list(range(12)), [0, 1, 2]]
    _write(tmp_path, "rank0.jsonl", _attempt(1, range(6)) + _attempt(2, range(12)))
    (rank,), _ = subject.read_run_steps(tmp_path)
    assert (rank.rank, len(rank.steps)) == (0, 12)


def test_a_restart_that_goes_on_keeps_the_steps_before(tmp_path: Path) -> None:
    for number in (0, 1):
        _write(tmp_path, f"rank{number}.jsonl", _attempt(1, range(4)) + _attempt(2, range(4, 6)))
    ranks, _ = subject.read_run_steps(tmp_path)
    assert [[step.index for step in rank.steps] for rank in ranks] == [list(range(6))] * 2
    assert not ranks[0].steps[-1].figures


def test_a_run_without_steps_has_no_ranks(tmp_path: Path) -> None:
    assert subject.read_run_steps(tmp_path) == ([], [])


def test_what_profile_writes_is_read_back(tmp_path: Path) -> None:
    record = StepRecord(3, 10, 30, data_wait_ns=5, phases={"save": 7}, figures={"loss": float("nan"), "tokens": 8})
    record.anomalies.append(Anomaly("loss_not_finite", "loss", None, None, None))
    record.captured, record.state, record.attempt, record.export_ns, record.prepare_ns = True, "active", 2, 11, 13
    record.device_ns, record.exposed_data_wait_ns, record.exposed_phases = 21, 0, {"save": 6}
    record.run_delay_ns, record.num_compilations, record.compile_ns = 0, 1, 17
    _write(tmp_path, "rank0.jsonl", record.as_line().decode())
    (rank,), notices = subject.read_run_steps(tmp_path)
    assert rank.steps == [
        Step(
            index=3,
            start_ns=10,
            end_ns=30,
            data_wait_ns=5,
            phases={"save": 7},
            figures={"tokens": 8.0},
            captured=True,
            anomalies=["loss_not_finite"],
            non_finite=["loss"],
            attempt=2,
            state="active",
            export_ns=11,
            prepare_ns=13,
            device_ns=21,
            exposed_data_wait_ns=0,
            exposed_phases={"save": 6},
            run_delay_ns=0,
            num_compilations=1,
            compile_ns=17,
        )
    ]
    assert notices == []


def test_every_reserved_name_is_a_field_that_is_written_and_read() -> None:
    written = {each.name for each in fields(StepRecord)} - {
        "figures",
        "deferred",
        "device",
        "data_waits",
        "phase_intervals",
    } | {"non_finite"}
    assert RESERVED_FIELDS == written == set(subject._StepLine.__struct_fields__)


def test_lines_that_came_twice_are_one_step_and_no_restart(tmp_path: Path) -> None:
    lines = [f'{{"index":{index},"start_ns":{10 * index},"end_ns":{10 * index + 5}}}\n' for index in range(4)]
    _write(tmp_path, "rank0.jsonl", "".join(2 * line for line in lines) + "".join(lines))
    (rank,), _ = subject.read_attempts_steps(tmp_path)
    assert [(step.attempt, step.index) for step in rank.steps] == [(1, 0), (1, 1), (1, 2), (1, 3)]
