"""Answers of a real Prometheus and a real VictoriaMetrics are those of the questions' definitions."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.history.servers import RecordedPage, sample_blocks, write_pages
from stepscope.store.history.embedded import history_at
from stepscope.store.history.prometheus import PrometheusHistory
from stepscope.store.history.questions import MetricHistory, Question, TimeRange
from stepscope.store.history.writer import HistoryWriter
from tests.store.history.recordings import ENERGY, POWER, labels, questions, recorded_pages
from tests.store.history.reference import expected_latest, expected_range

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

_NS = 10**6
_EXAMPLES = itertools.count()


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
