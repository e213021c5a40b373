"""Telemetry: every step is written whole, and the unprofiled step time comes from the right steps."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.documents.run_directory import RESERVED_FIELDS
from stepscope.training.anomalies.detectors import Anomaly
from stepscope.training.run.run_files import WholeLinesFile
from stepscope.training.steps import telemetry
from stepscope.training.steps.telemetry import StepRecord, StepWriter, UnprofiledStepTime

_MS = 1_000_000


def _record(index: int, milliseconds: float, state: str = "wait") -> StepRecord:
    return StepRecord(index, start_ns=0, end_ns=int(milliseconds * _MS), state=state, captured=state == "active")


def test_a_line_says_what_the_contract_names() -> None:
    record = StepRecord(3, 10, 30, data_wait_ns=5, phases={"save": 7}, captured=True, state="active", export_ns=9)
    record.figures = {"loss": 2.5, "index": 99.0}
    assert json.loads(record.as_line()) == {
        "index": 3,
        "start_ns": 10,
        "end_ns": 30,
        "data_wait_ns": 5,
        "phases": {"save": 7},
        "captured": True,
        "state": "active",
        "export_ns": 9,
        "loss": 2.5,
    }


def test_a_loss_that_is_no_number_is_null_and_named() -> None:
    record = StepRecord(0, 0)
    record.figures = {"loss": float("nan"), "scale": float("inf"), "tokens": 8, "non_finite": 1.0}

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    line = json.loads(record.as_line(), parse_constant=refuse)
    assert (line["loss"], line["scale"], line["tokens"]) == (None, None, 8)
    assert line["non_finite"] == ["loss", "scale"]


_NAMES = st.text(max_size=8).filter(lambda name: name not in RESERVED_FIELDS)
_FIGURES = st.dictionaries(_NAMES, st.one_of(st.integers(), st.floats(), st.booleans()), max_size=6)


@given(_FIGURES, st.dictionaries(st.text(max_size=8), st.integers(0, 2**62), max_size=3), st.sampled_from([0, 7]))
def test_any_figures_and_phases_are_in_the_line_as_they_are(
    figures: dict[str, float], phases: dict[str, int], export_ns: int
) -> None:
    record = StepRecord(0, 1, 2, phases=phases, export_ns=export_ns, figures=figures)
    line = json.loads(record.as_line())
    assert line["phases"] == phases
    assert line.get("export_ns", 0) == export_ns
    non_finite = [name for name, value in figures.items() if not math.isfinite(value)]
    assert line.get("non_finite", []) == non_finite
    for name, value in figures.items():
        assert line[name] is None if name in non_finite else (line[name], type(line[name])) == (value, type(value))


def test_numpys_numbers_and_anomalies_are_json() -> None:
    numpy = pytest.importorskip("numpy")
    record = StepRecord(0, 1, 2, figures={"loss": numpy.float64(0.1), "anomalies": 3})
    record.anomalies.append(Anomaly("loss_spike", "loss", 0.5, 0.25, 0.375))
    line = json.loads(record.as_line())
    assert line["loss"] == 0.1
    assert line["anomalies"] == [{"kind": "loss_spike", "figure": "loss", "value": 0.5, "usual": 0.25, "limit": 0.375}]


def test_lines_are_on_disk_after_close_and_a_second_start_appends(tmp_path: Path) -> None:
    for start in (0, 2):
        writer = StepWriter(tmp_path / "steps" / "rank0.jsonl")
        writer.add(_record(start, 1))
        writer.add(_record(start + 1, 1))
        writer.close()
        writer.close()
    lines = (tmp_path / "steps" / "rank0.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in lines] == [0, 1, 2, 3]


def test_a_disk_that_does_not_answer_costs_the_oldest_lines_and_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry, "MOST_PENDING_STEPS", 3)
    writer = StepWriter(tmp_path / "rank0.jsonl")
    for index in range(8):
        writer.add(_record(index, 1))
    writer.close()
    assert [json.loads(line)["index"] for line in (tmp_path / "rank0.jsonl").read_text().splitlines()] == [5, 6, 7]
    assert "the lines of 5 steps are lost" in caplog.text


def test_what_cannot_be_written_is_told_to_the_one_who_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = StepWriter(tmp_path / "rank0.jsonl")
    writer.add(_record(0, 1))
    with monkeypatch.context() as full:
        full.setattr(WholeLinesFile, "write", lambda *_: (_ for _ in ()).throw(OSError("full")))
        writer.run_task()
    with pytest.raises(OSError, match="full"):
        writer.add(_record(1, 1))
    writer.close()


def test_unprofiled_step_is_the_median_before_the_capture_without_the_first_step() -> None:
    times = UnprofiledStepTime()
    for index, milliseconds in enumerate((900, 10, 12, 11)):
        times.steps_ended([_record(index, milliseconds)])
    times.steps_ended([_record(4, 500, "warmup")])
    times.steps_ended([_record(5, 50, "active")])
    times.steps_ended([_record(6, 400)])
    times.steps_ended([_record(7, 20)])
    assert times.unprofiled_step_ms() == 11


def test_unprofiled_step_comes_from_after_the_capture_when_none_was_before() -> None:
    times = UnprofiledStepTime()
    assert times.unprofiled_step_ms() is None
    times.steps_ended([_record(0, 900)])
    times.steps_ended([_record(1, 500, "warmup")])
    times.steps_ended([_record(2, 50, "active")])
    times.steps_ended([_record(3, 400)])  # waits for the other ranks' export
    times.steps_ended([_record(4, 20)])
    assert times.unprofiled_step_ms() == 20


@given(st.lists(st.floats(0.001, 1e5), min_size=1, max_size=30))
def test_unprofiled_step_lies_between_the_fastest_and_the_slowest(durations: list[float]) -> None:
    times = UnprofiledStepTime()
    times.steps_ended([_record(0, 1e9)])
    for index, milliseconds in enumerate(durations, start=1):
        times.steps_ended([_record(index, milliseconds)])
    found = times.unprofiled_step_ms()
    assert found is not None
    assert min(durations) - 1e-5 <= found <= max(durations)


def test_a_file_that_cannot_be_opened_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "steps").write_text("a file where the folder should be")
    with pytest.raises(OSError, match="steps"):
        StepWriter(tmp_path / "steps" / "rank0.jsonl")
