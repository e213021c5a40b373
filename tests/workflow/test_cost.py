"""Cost from a real history of a made-up month: 200 jobs, with MIG and time-slicing."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from stepscope.core.errors import DataError, UsageError
from stepscope.store.history.embedded import history_at
from stepscope.store.history.questions import Labels
from stepscope.store.history.samples import SampleBlock
from stepscope.store.history.writer import HistoryWriter
from stepscope.workflow.cost import read_cost, read_rates

_START_NS = 1_793_491_200 * 10**9
_DAYS, _INTERVAL_S = 30, 900
_NUM_STEPS = _DAYS * 86400 // _INTERVAL_S
_PROFILES = ("3g.40gb", "2g.20gb", "1g.10gb")
_SLICES = {"3g.40gb": 3, "2g.20gb": 2, "1g.10gb": 1}


@dataclass
class _Month:
    """A cluster of 4 nodes with 4 cards, the last card of each split by MIG; who had what when."""

    devices: list[dict[str, str]] = field(default_factory=list)
    held: list[tuple[int, int, int, int]] = field(default_factory=list)
    """device, job, first and end step"""

    @classmethod
    def made_up(cls, seed: int, num_jobs: int = 200) -> _Month:
        """Jobs hold devices for hours to days; some devices are held by several at once."""
        month, chance = cls(), random.Random(seed)
        for node in range(4):
            for gpu in range(4):
                labels = {"instance": f"n{node}:9455", "gpu": str(gpu), "uuid": f"GPU-{node}-{gpu}"}
                if gpu < 3:
                    month.devices.append(labels)
                    continue
                for number, profile in enumerate(_PROFILES):
                    own = {"gpu_instance": str(number), "mig_profile": profile, "uuid": f"MIG-{node}-{number}"}
                    month.devices.append({**labels, **own})
        for job in range(num_jobs):
            first = chance.randrange(_NUM_STEPS - 1)
            end = min(_NUM_STEPS, first + chance.randrange(1, 3 * 96))
            for device in chance.sample(range(len(month.devices)), chance.randrange(1, 5)):
                month.held.append((device, job, first, end))
        return month

    def write(self, folder: Path) -> None:
        """Keep it as a history."""
        every = np.ones(_NUM_STEPS, np.bool_)
        use = {"stepscope_gpu_use_state": np.ones(_NUM_STEPS)}
        busy = {tuple(sorted((*one.items(), ("state", "busy")))): every for one in self.devices}
        holders: dict[Labels, np.ndarray] = defaultdict(lambda: np.zeros(_NUM_STEPS, np.bool_))
        for device, job, first, end in self.held:
            key = {"job_kind": "slurm", "job_id": str(job), "share": "time_sliced"}
            holders[tuple(sorted({**self.devices[device], **key}.items()))][first:end] = True
        nodes = sorted({one["instance"] for one in self.devices})
        infos = {
            tuple(
                sorted(
                    {
                        "instance": nodes[job % 4],
                        "job_kind": "slurm",
                        "job_id": str(job),
                        "user": f"u{job % 7}",
                        "team": f"t{job % 3}",
                    }.items()
                )
            ): every
            for job in range(200)
        }
        cards = {
            tuple(sorted({"instance": node, "gpu": str(gpu), "uuid": f"GPU-{node[1]}-{gpu}"}.items())): every
            for node in nodes
            for gpu in range(4)
        }
        models = {tuple(sorted((*card, ("name", "NVIDIA H100 80GB HBM3")))): every for card in cards}
        with HistoryWriter(folder) as writer:
            for rows, columns in (
                (busy, use),
                (holders, {"stepscope_gpu_job_info": np.ones(_NUM_STEPS)}),
                (infos, {"stepscope_job_info": np.ones(_NUM_STEPS)}),
                (models, {"stepscope_gpu_info": np.ones(_NUM_STEPS)}),
                (cards, {"stepscope_gpu_power_watts": np.full(_NUM_STEPS, 500.0)}),
                ({(("instance", node),): every for node in nodes}, {"up": np.ones(_NUM_STEPS)}),
            ):
                alike: dict[tuple[str, ...], dict[Labels, np.ndarray]] = defaultdict(dict)
                for labels, flags in rows.items():
                    alike[tuple(name for name, _ in labels)][labels] = flags
                for part in alike.values():
                    writer.append(_block(part, columns))
            writer.flush()

    def hours(self) -> dict[str, Fraction]:
        """GPU-hours of each job, worked out step by step."""
        holders: dict[tuple[int, int], list[int]] = defaultdict(list)
        for device, job, first, end in self.held:
            for step in range(first, end):
                holders[device, step].append(job)
        hours: dict[str, Fraction] = defaultdict(Fraction)
        for (device, _), jobs in holders.items():
            part = Fraction(_SLICES.get(self.devices[device].get("mig_profile", ""), 7), 7)
            for job in jobs:
                hours[str(job)] += part / len(jobs) * Fraction(_INTERVAL_S, 3600)
        return hours


def _block(rows: dict[Labels, np.ndarray], columns: dict[str, np.ndarray]) -> SampleBlock:
    times = _START_NS + (np.arange(_NUM_STEPS, dtype=np.int64) + 1) * _INTERVAL_S * 10**9 - 60 * 10**9
    entities = tuple(rows)
    places = [np.flatnonzero(flags) for flags in rows.values()]
    entity = np.concatenate([np.full(len(own), number, np.int32) for number, own in enumerate(places)])
    steps = np.concatenate(places)
    return SampleBlock(entities, entity, times[steps], {name: values[steps] for name, values in columns.items()})


@pytest.fixture(scope="module")
def month() -> _Month:
    return _Month.made_up(11)


@pytest.fixture(scope="module")
def folder(month: _Month, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its history."""
    path = tmp_path_factory.mktemp("cost") / "history"
    month.write(path)
    return path


_END_NS = _START_NS + _DAYS * 86400 * 10**9


def test_gpu_hours_of_a_month_add_up_to_the_cards(month: _Month, folder: Path) -> None:
    report = read_cost(history_at(folder), _START_NS, _END_NS)
    assert report.step_ns == _INTERVAL_S * 10**9
    assert report.num_cards == 16
    assert report.cards.gpu_hours == 16 * _DAYS * 24
    assert report.held.gpu_hours + report.free.gpu_hours == pytest.approx(report.cards.gpu_hours, rel=1e-12)
    found = {row.key["job_id"]: row.figures.gpu_hours for row in report.rows}
    expected = month.hours()
    assert found.keys() == expected.keys()
    for job, hours in expected.items():
        assert found[job] == pytest.approx(float(hours), rel=1e-12), job
    assert report.cards.energy_kwh == pytest.approx(16 * _DAYS * 24 * 0.5)


@pytest.mark.parametrize(("by", "label", "count"), [("user", "user", 7), ("team", "team", 3), ("node", "instance", 4)])
def test_groups_have_the_hours_of_their_jobs(folder: Path, by: str, label: str, count: int) -> None:
    history = history_at(folder)
    rows = read_cost(history, _START_NS, _END_NS, by=by).rows
    held = read_cost(history, _START_NS, _END_NS).held
    assert len({row.key[label] for row in rows}) == count
    assert sum(row.figures.gpu_hours for row in rows) == pytest.approx(held.gpu_hours)


def test_money_is_by_the_rate_card(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "rates.toml"
    path.write_text(
        'currency = "EUR"\n[gpu_hour]\n"NVIDIA H100 80GB HBM3" = 3.0\n[energy]\nprice_per_kwh = 0.2\npue = 1.5\n'
    )
    report = read_cost(history_at(folder), _START_NS, _END_NS, rates=read_rates(path))
    hours = 16 * _DAYS * 24
    assert report.currency == "EUR"
    assert report.cards.money == pytest.approx(hours * (3.0 + 0.5 * 0.2 * 1.5))
    path.write_text('[gpu_hour]\n"NVIDIA A100" = 3.0\n')
    report = read_cost(history_at(folder), _START_NS, _END_NS, rates=read_rates(path))
    assert report.cards.money is None
    assert "no price of NVIDIA H100" in report.warnings[0].message


def test_runs_give_the_waste_of_their_jobs(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "steps").mkdir(parents=True)
    attempt = {"start_ns": _START_NS, "end_ns": _START_NS + 7200 * 10**9, "ended": "finished", "world_size": 1}
    manifest = {"run": "run", "host": "n0", "world_size": 1, "mesh": {}, "num_cpus": 1, "versions": {}}
    manifest |= {"environment": {}, "attempts": [attempt], "schema": "stepscope.run/1"}
    (run / "run.json").write_text(json.dumps(manifest))
    begins = [_START_NS + 3600 * 10**9 + step * 36 * 10**9 for step in range(100)]
    lines = [{"index": index, "start_ns": start, "end_ns": start + 36 * 10**9} for index, start in enumerate(begins)]
    (run / "steps/rank0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "ranks").mkdir()
    place = {"rank": 0, "local_rank": 0, "host": "n0", "pid": 1, "start_ns": 1, "job_kind": "slurm", "job_id": "5"}
    (run / "ranks/rank0.json").write_text(json.dumps(place))
    report = read_cost(history_at(folder), _START_NS, _END_NS, runs=[str(tmp_path)])
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
        row = {(("instance", "n"), ("uuid", "a")): np.ones(_NUM_STEPS, np.bool_)}
        writer.append(_block(row, {"DCGM_FI_DEV_GPU_UTIL": np.ones(_NUM_STEPS)}))
        writer.flush()
    with pytest.raises(UsageError, match="does not say who used GPUs"):
        read_cost(history_at(tmp_path / "h"), _START_NS, _END_NS)
    with pytest.raises(UsageError, match="shorter than a minute"):
        read_cost(history_at(tmp_path / "h"), _START_NS, _START_NS + 1)
