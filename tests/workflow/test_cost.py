"""Cost from a real history of a made-up month: 200 jobs, with MIG and time-slicing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stepscope.core.errors import DataError, UsageError
from stepscope.store.history.embedded import history_at
from stepscope.store.history.questions import Labels
from stepscope.store.history.writer import HistoryWriter
from stepscope.workflow.cost import read_cost, read_rates
from tests.workflow.made_up_month import DAYS, END_NS, INTERVAL_S, NUM_STEPS, START_NS, Month, block


@pytest.fixture(scope="module")
def month() -> Month:
    return Month.made_up(11)


@pytest.fixture(scope="module")
def folder(month: Month, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its history."""
    path = tmp_path_factory.mktemp("cost") / "history"
    month.write(path)
    return path


@pytest.mark.parametrize("later_ns", [0, 123_456_789])
def test_gpu_hours_of_a_month_add_up_to_the_cards(later_ns: int, month: Month, folder: Path) -> None:
    report = read_cost(history_at(folder), START_NS + later_ns, END_NS + later_ns)
    assert (report.start_ns, report.end_ns) == (START_NS, END_NS)
    assert report.step_ns == INTERVAL_S * 10**9
    assert report.num_cards == 16
    assert report.cards.gpu_hours == 16 * DAYS * 24
    assert report.held.gpu_hours + report.free.gpu_hours == pytest.approx(report.cards.gpu_hours, rel=1e-12)
    found = {row.key["job_id"]: row.figures.gpu_hours for row in report.rows}
    expected = month.hours()
    assert found.keys() == expected.keys()
    for job, hours in expected.items():
        assert found[job] == pytest.approx(float(hours), rel=1e-12), job
    assert report.cards.energy_kwh == pytest.approx(16 * DAYS * 24 * 0.5)


@pytest.mark.parametrize(("by", "label", "count"), [("user", "user", 7), ("team", "team", 3), ("node", "instance", 4)])
def test_groups_have_the_hours_of_their_jobs(folder: Path, by: str, label: str, count: int) -> None:
    history = history_at(folder)
    rows = read_cost(history, START_NS, END_NS, by=by).rows
    held = read_cost(history, START_NS, END_NS).held
    assert len({row.key[label] for row in rows}) == count
    assert sum(row.figures.gpu_hours for row in rows) == pytest.approx(held.gpu_hours)


def test_money_is_by_the_rate_card(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "rates.toml"
    path.write_text(
        'currency = "EUR"\n[gpu_hour]\n"NVIDIA H100 80GB HBM3" = 3.0\n[energy]\nprice_per_kwh = 0.2\npue = 1.5\n'
    )
    report = read_cost(history_at(folder), START_NS, END_NS, rates=read_rates(path))
    hours = 16 * DAYS * 24
    assert report.currency == "EUR"
    assert report.cards.money == pytest.approx(hours * (3.0 + 0.5 * 0.2 * 1.5))
    path.write_text('[gpu_hour]\n"NVIDIA A100" = 3.0\n')
    report = read_cost(history_at(folder), START_NS, END_NS, rates=read_rates(path))
    assert report.cards.money is None
    assert "no price of NVIDIA H100" in report.warnings[0].message


def test_runs_give_the_waste_of_their_jobs(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "steps").mkdir(parents=True)
    attempt = {"start_ns": START_NS, "end_ns": START_NS + 7200 * 10**9, "ended": "finished", "world_size": 1}
    manifest = {"run": "run", "host": "n0", "world_size": 1, "mesh": {}, "num_cpus": 1, "versions": {}}
    manifest |= {"environment": {}, "attempts": [attempt], "schema": "stepscope.run/1"}
    (run / "run.json").write_text(json.dumps(manifest))
    begins = [START_NS + 3600 * 10**9 + step * 36 * 10**9 for step in range(100)]
    lines = [{"index": index, "start_ns": start, "end_ns": start + 36 * 10**9} for index, start in enumerate(begins)]
    (run / "steps/rank0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "ranks").mkdir()
    place = {"rank": 0, "local_rank": 0, "host": "n0", "pid": 1, "start_ns": 1, "job_kind": "slurm", "job_id": "5"}
    (run / "ranks/rank0.json").write_text(json.dumps(place))
    report = read_cost(history_at(folder), START_NS, END_NS, runs=[str(tmp_path)])
    (row,) = [row for row in report.rows if row.waste]
    assert row.key["job_id"] == "5"
    assert sum(row.waste.values()) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    "text", ["", "[gpu_hour]\na = -1", "[gpu_hour]\na = 'x'", "gpu_hour = 3", "[gpu_hours]", "\x00"]
)
def test_what_is_no_rate_card_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rates.toml"
    path.write_text(text)
    with pytest.raises(DataError, match="rate card") as caught:
        read_rates(path)
    assert "\n" not in str(caught.value)


def test_a_history_without_use_says_so(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "h") as writer:
        row: dict[Labels, np.ndarray] = {(("instance", "n"), ("uuid", "a")): np.ones(NUM_STEPS, np.bool_)}
        writer.append(block(row, {"DCGM_FI_DEV_GPU_UTIL": np.ones(NUM_STEPS)}))
        writer.flush()
    with pytest.raises(UsageError, match="does not say who used GPUs"):
        read_cost(history_at(tmp_path / "h"), START_NS, END_NS)
    with pytest.raises(UsageError, match="shorter than a minute"):
        read_cost(history_at(tmp_path / "h"), START_NS, START_NS + 1)
