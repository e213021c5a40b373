"""Answers of a real Prometheus and a real VictoriaMetrics are those of the questions' definitions."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.history.servers import RecordedPage, Series, sample_blocks, write_pages
from stepscope.store.history.embedded import history_at
from stepscope.store.history.prometheus import PrometheusHistory
from stepscope.store.history.questions import GroupBy, Labels, MetricHistory, Question, Statistic, TimeRange
from stepscope.store.history.writer import HistoryWriter
from tests.store.history.reference import expected_latest, expected_range

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

POWER, ENERGY = "stepscope_gpu_power_watts", "stepscope_gpu_energy_joules_total"
_NS = 10**6
_EXAMPLES = itertools.count()


def labels(**values: str) -> Labels:
    """Labels, sorted."""
    return tuple(sorted(values.items()))


def job_info(gpu: Labels, job: str, share: str = "exclusive") -> Series:
    """The series of a GPU's job."""
    return "stepscope_gpu_job_info", labels(**dict(gpu), job_kind="slurm", job_id=job, share=share, source="process")


@st.composite
def recorded_pages(draw: st.DrawFn, cluster: str, begin_ms: int) -> list[RecordedPage]:
    """Pages of some minutes of a cluster: gaps, counters that restart, jobs that change, GPUs that jobs share."""
    pages = []
    for node in range(draw(st.integers(1, 3))):
        target = labels(instance=f"n{node}:9455", rack=f"r{node % 2}", cluster=cluster)
        time_ms = begin_ms + draw(st.integers(-5_000, 5_000))
        totals = [0.0, 1e6]
        for _ in range(draw(st.integers(1, 20))):
            if draw(st.integers(0, 5)) == 0:
                pages.append(RecordedPage(target, time_ms, None))
            else:
                values: dict[Series, float] = {}
                for number, gpu in enumerate((labels(gpu="0", uuid=f"A{node}"), labels(gpu="1", uuid=f"B{node}"))):
                    if draw(st.integers(0, 7)) == 0:
                        continue
                    values[POWER, gpu] = draw(st.floats(1.0, 1000.0))
                    totals[number] += draw(st.floats(0.0, 1e4))
                    if draw(st.integers(0, 9)) == 0:
                        totals[number] = draw(st.floats(0.0, 10.0))  # the driver was loaded again
                    values[ENERGY, gpu] = totals[number]
                    jobs = draw(st.sampled_from(["", "1", "1", "2", "1 2"])).split()
                    share = (
                        draw(st.sampled_from(["exclusive", "exclusive", "mps"])) if len(jobs) == 1 else "time_sliced"
                    )
                    for job in jobs:
                        values[job_info(gpu, job, share)] = 1.0
                for job, facts in (("1", {"user": "ann", "team": "vision"}), ("2", {"user": "bob"})):
                    values["stepscope_job_info", labels(job_kind="slurm", job_id=job, **facts)] = 1.0
                pages.append(RecordedPage(target, time_ms, values))
            time_ms += draw(st.sampled_from([5_000, 10_000, 10_000, 9_997, 10_001, 10_003, 25_000]))
    return pages


questions = st.builds(
    Question,
    metric=st.sampled_from([POWER, POWER, ENERGY]),
    by=st.lists(st.sampled_from([group for group in GroupBy if group is not GroupBy.RANK]), unique=True).map(tuple),
    statistic=st.sampled_from(Statistic),
    where=st.dictionaries(
        st.sampled_from(["rack", "job_id", "user", "uuid", "gpu_instance"]),
        st.sampled_from(["r0", ("r0", "r1"), "1", ("1", "2"), "ann", "A0", (), ""]),
        max_size=1,
    ),
)


def _embedded(pages: list[RecordedPage], folder: Path, base_ms: int) -> MetricHistory:
    """The pages in a store of our own, the older half of them in Parquet files."""
    known = RecordedPage(labels(cluster="known", instance="known"), base_ms, {(POWER, ()): 1.0, (ENERGY, ()): 1.0})
    with HistoryWriter(folder) as writer:
        for number, part in enumerate(([known, *pages[: len(pages) // 2]], pages[len(pages) // 2 :])):
            for block in sample_blocks(part):
                writer.append(block)
            writer.flush()
            if not number:
                writer.compact()
    return history_at(folder)


@given(st.data())
@settings(max_examples=25, deadline=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck])
def test_answers_are_as_defined(
    servers: dict[str, str], base_ms: int, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    cluster = f"c{next(_EXAMPLES)}"
    pages = data.draw(recorded_pages(cluster, base_ms))
    for url in servers.values():
        write_pages(url, pages)
    histories: dict[str, MetricHistory] = {name: PrometheusHistory(url) for name, url in servers.items()}
    histories["embedded"] = _embedded(pages, tmp_path_factory.mktemp("history"), base_ms)
    start_ms = base_ms + data.draw(st.sampled_from([0, -20_000, 1, 9_997]))
    step_ms = data.draw(st.sampled_from([20_000, 30_000, 60_000, 7_001]))
    time = TimeRange(start_ms * _NS, (start_ms + 8 * step_ms) * _NS, step_ms * _NS)
    for question in data.draw(st.lists(questions, min_size=4, max_size=4)):
        asked = Question(question.metric, question.by, question.statistic, {**question.where, "cluster": cluster})
        expected = expected_range(pages, asked, time)
        newest = expected_latest(pages, asked, start_ms + 4 * step_ms, 45_000)
        for name, history in histories.items():
            answer = history.range(asked, time)
            assert list(answer.groups) == sorted(expected), (name, asked, set(answer.groups) ^ set(expected), time)
            for group, row in zip(answer.groups, answer.values, strict=True):
                wanted = [expected[group].get(at, np.nan) for at in (answer.times_ns // _NS).tolist()]
                np.testing.assert_allclose(row, wanted, rtol=1e-6, atol=1e-6, err_msg=f"{name} {asked} {group}")
            latest = history.latest(asked, at_ns=(start_ms + 4 * step_ms) * _NS, within_ns=45_000 * _NS)
            assert list(latest.groups) == sorted(newest), (name, asked)
            for group, at_ns, value in zip(latest.groups, latest.times_ns.tolist(), latest.values, strict=True):
                assert at_ns // _NS == newest[group][0], (name, asked, group, start_ms + 4 * step_ms)
                assert value == pytest.approx(newest[group][1], rel=1e-12), (name, asked, group)
