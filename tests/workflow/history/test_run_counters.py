"""Counters of a run from the metric history: found by GPU and time, and used by the verdict like its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.documents.run_directory import Attempt, RankSteps, RunManifest, Step
from stepscope.store.history.embedded import history_at
from stepscope.store.history.questions import Labels
from stepscope.store.history.samples import SampleBlock
from stepscope.store.history.writer import HistoryWriter
from stepscope.training.run.run_files import write_manifest
from stepscope.workflow.analyze import analyze
from stepscope.workflow.history.run_counters import counters_of_history, totals_of_rates

_START_NS = 1_795_000_000 * 10**9
_STEP_S, _NUM_STEPS = 1.0, 1200
_INTERVAL_S = 15
_MANIFEST = RunManifest(
    "gpt", "node0", 2, {"dp": 2}, 8, {}, {}, [Attempt(_START_NS, _START_NS + 1200 * 10**9, "finished", 2)]
)


def _gpu(rank: int) -> Labels:
    return (("gpu", "0"), ("instance", f"node{rank}:9455"), ("uuid", f"GPU-{rank}"))


def _block(entities: tuple[Labels, ...], columns: dict[str, np.ndarray]) -> SampleBlock:
    """Samples every 15 s, from a minute before the run to a minute after it; one column an entity of values."""
    times = _START_NS + np.arange(-60, 1260, _INTERVAL_S, dtype=np.int64) * 10**9
    entity = np.repeat(np.arange(len(entities), dtype=np.int32), len(times))
    shaped = {name: np.broadcast_to(values, (len(entities), len(times))).ravel() for name, values in columns.items()}
    return SampleBlock(entities, entity, np.tile(times, len(entities)), shaped)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Two nodes with a GPU each; that of rank 1 is throttled by heat from the middle of the run on."""
    since_s = np.arange(-60, 1260, _INTERVAL_S)
    is_hot = since_s > 600
    clock = np.array([np.full(len(since_s), 1.98e9), np.where(is_hot, 1.2e9, 1.98e9)])
    hot = np.where(is_hot, 1.0, np.nan)[None]
    folder = tmp_path / "history"
    hosts = tuple(((("instance", f"node{rank}:9455"), ("resource", "io"), ("share", "some"))) for rank in (0, 1))
    with HistoryWriter(folder) as writer:
        writer.append(
            _block(
                (_gpu(0), _gpu(1)),
                {
                    "stepscope_gpu_sm_clock_hertz": clock,
                    "stepscope_gpu_sm_clock_max_hertz": np.array([[1.98e9]]),
                    "stepscope_gpu_power_watts": np.array([[500.0], [400.0]]),
                },
            )
        )
        heat = tuple(sorted((*_gpu(1), ("reason", "hardware_thermal"))))
        writer.append(_block((heat,), {"stepscope_gpu_throttle_reason": hot}))
        writer.append(_block(hosts, {"stepscope_host_pressure_seconds_total": 0.5 * since_s[None] + 100.0}))
        writer.flush()
    return folder


def _run(tmp_path: Path, *, with_places: bool = True) -> tuple[Path, list[RankSteps]]:
    """A run whose rank 1 takes half as long again from the middle on."""
    run = tmp_path / "gpt"
    run.mkdir()
    write_manifest(run, _MANIFEST)
    ranks = []
    for rank in (0, 1):
        steps = [
            Step(index, _START_NS + index * 10**9, _START_NS + (index + 1) * 10**9 - 10**6)
            for index in range(_NUM_STEPS)
        ]
        ranks.append(RankSteps(rank, steps))
        lines = [json.dumps({"index": one.index, "start_ns": one.start_ns, "end_ns": one.end_ns}) for one in steps]
        (run / "steps").mkdir(exist_ok=True)
        (run / f"steps/rank{rank}.jsonl").write_text("\n".join(lines) + "\n")
        if with_places:
            place = {"rank": rank, "local_rank": 0, "host": f"node{rank}", "pid": 7, "start_ns": _START_NS}
            (run / "ranks").mkdir(exist_ok=True)
            (run / f"ranks/rank{rank}.json").write_text(json.dumps(place | {"gpu_uuid": f"GPU-{rank}"}))
    return run, ranks


@pytest.mark.parametrize("later_ns", [0, 123_456_789])
def test_samples_of_each_ranks_gpu_and_host_are_found(later_ns: int, history: Path, tmp_path: Path) -> None:
    run, steps = _run(tmp_path)
    steps[0].steps[0] = replace(steps[0].steps[0], start_ns=_START_NS - later_ns)
    ranks, notices = counters_of_history(history_at(history), run, _MANIFEST, steps)
    assert notices == []
    assert [one.rank for one in ranks] == [0, 1]
    for one in ranks:
        (message,) = one.messages
        (gpu,) = message.gpus
        assert gpu.uuid == f"GPU-{one.rank}"
        assert gpu.times_ns[0] <= _START_NS < gpu.times_ns[-1]
        known = [value for value in gpu.values["power_watts"] if value is not None]
        assert known == [500.0 - 100.0 * one.rank] * len(known)
        assert len(known) >= 80
        assert message.host is not None
        pressure = np.array([v for v in message.host.values["pressure_io_some_seconds_total"] if v is not None])
        assert np.median(np.diff(pressure)) == pytest.approx(0.5 * 60)
    hot = ranks[1].messages[0].gpus[0].throttle_reasons
    assert hot is not None
    values = [value for value in hot["hardware_thermal"] if value is not None]
    assert set(values) == {0.0, 1.0}
    assert ranks[0].messages[0].gpus[0].throttle_reasons == {}


def test_gpus_are_named_by_the_agents_where_the_run_does_not(history: Path, tmp_path: Path) -> None:
    run, steps = _run(tmp_path, with_places=False)
    assert counters_of_history(history_at(history), run, _MANIFEST, steps)[1][0].code == "not_in_history"
    with HistoryWriter(history) as writer:
        infos = tuple(
            tuple(sorted((*_gpu(rank), ("run", run_name), ("rank", str(rank)), ("pid", "7"))))
            for rank, run_name in ((0, "gpt"), (1, "gpt"), (0, "other"))
        )
        writer.append(_block(infos, {"stepscope_training_info": np.array([[1.0]])}))
        writer.flush()
    ranks, notices = counters_of_history(history_at(history), run, _MANIFEST, steps)
    assert [(one.rank, one.messages[0].gpus[0].uuid) for one in ranks] == [(0, "GPU-0"), (1, "GPU-1")]
    assert notices == []


def test_a_gpu_without_samples_then_is_a_notice(history: Path, tmp_path: Path) -> None:
    run, steps = _run(tmp_path)
    (run / "ranks/rank1.json").write_text((run / "ranks/rank1.json").read_text().replace("GPU-1", "GPU-9"))
    ranks, (notice,) = counters_of_history(history_at(history), run, _MANIFEST, steps)
    assert [one.rank for one in ranks] == [0]
    assert notice.message.startswith("1 rank's GPU has no samples")


def test_the_verdict_uses_them_like_its_own(history: Path, tmp_path: Path) -> None:
    run, _ = _run(tmp_path)
    without = analyze([str(run)], keep=False).analysis
    joined = analyze([str(run)], keep=False, history=history_at(history)).analysis
    times = [time for one in (without, joined) if (time := one.job_time) is not None]
    used = [{layer.layer: layer.used for layer in time.layers}["counters"] for time in times]
    assert used == [False, True]


def test_counters_of_the_run_are_not_replaced(history: Path, tmp_path: Path) -> None:
    run, _ = _run(tmp_path)
    (run / "metrics").mkdir()
    message = {"type": "counters", "time_ns": _START_NS, "missing": {"gpu": "not_supported"}}
    (run / "metrics/rank0.jsonl").write_text(json.dumps(message) + "\n")
    analysis = analyze([str(run)], keep=False, history=history_at(history)).analysis
    assert not [notice for notice in analysis.warnings if notice.code == "not_in_history"]


_RATES = st.lists(st.one_of(st.floats(0, 1e9), st.just(float("nan"))), max_size=30)


@given(_RATES, st.floats(0.5, 600.0))
def test_totals_rise_at_the_rates_and_fall_where_unknown(rates: list[float], step_seconds: float) -> None:
    totals = totals_of_rates(np.array(rates), step_seconds)
    growth = np.diff(np.concatenate(([0.0], totals)))
    for rate, grown in zip(rates, growth, strict=True):
        if np.isnan(rate):
            assert grown < 0
        else:
            assert grown == pytest.approx(rate * step_seconds, abs=1e-6 * max(abs(totals).max(), 1.0))
