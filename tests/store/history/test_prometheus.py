"""Answers of a real Prometheus and a real VictoriaMetrics are those of the questions' definitions."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.history.servers import (
    RecordedPage,
    prometheus_server,
    sample_blocks,
    victoria_metrics_server,
    write_pages,
)
from stepscope.core.errors import UsageError
from stepscope.store.history import sampled_rates
from stepscope.store.history.embedded import history_at
from stepscope.store.history.prometheus import PrometheusHistory
from stepscope.store.history.questions import MetricHistory, Question, Statistic, TimeRange
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
@settings(max_examples=15, deadline=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck])
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


@given(value=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20), more=st.text(max_size=5))
@settings(max_examples=15, deadline=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck])
def test_values_of_labels_are_taken_as_they_are(servers: dict[str, str], base_ms: int, value: str, more: str) -> None:
    cluster = f"c{next(_EXAMPLES)}"
    pages = [
        RecordedPage(labels(cluster=cluster, instance=instance, rack=rack), base_ms, {(POWER, ()): watts})
        for instance, rack, watts in (("n0", value, 1.0), ("n1", f"{value}x", 2.0), ("n2", "r", 4.0))
    ]
    wanted = {value: 1.0, (value, f"{value}x"): 3.0, (f"{value}|{value}x", ".*"): None, f"{value}.*": None}
    minute = TimeRange((base_ms - 1000) * _NS, (base_ms + 59_000) * _NS, 60 * 10**9)
    for url in servers.values():
        write_pages(url, pages)
        for racks, watts in wanted.items():
            asked = Question(POWER, (), Statistic.SUM, {"cluster": cluster, "rack": racks})
            answer = PrometheusHistory(url).range(asked, minute)
            assert (answer.values.tolist() == [[watts]]) == (watts is not None), (url, racks)
    with pytest.raises(UsageError):
        PrometheusHistory(next(iter(servers.values()))).range(Question(f"{POWER} or up{more}"), minute)


def test_replicas_count_once(servers: dict[str, str], base_ms: int) -> None:
    pages = [
        RecordedPage(
            labels(cluster="pair", instance="n0", replica=replica),
            base_ms + number * 10_000 + later,
            {(POWER, labels(gpu="0")): 100.0, (ENERGY, labels(gpu="0")): 1000.0 * number},
        )
        for number in range(12)
        for replica, later in (("a", 0), ("b", 3_000))
    ]
    minutes = TimeRange((base_ms - 1) * _NS, (base_ms + 120_000 - 1) * _NS, 60 * 10**9)
    for url in servers.values():
        write_pages(url, pages)
        history = PrometheusHistory(url, ignored_labels=("replica",))
        for metric, value in ((POWER, 100.0), (ENERGY, 100.0)):
            for statistic, expected in ((Statistic.SUM, value), (Statistic.COUNT, 1.0)):
                answer = history.range(Question(metric, (), statistic, {"cluster": "pair"}), minutes)
                np.testing.assert_allclose(answer.values, [[expected, expected]], rtol=1e-6)
        both = PrometheusHistory(url).range(Question(POWER, (), Statistic.COUNT, {"cluster": "pair"}), minutes)
        assert both.values.tolist() == [[2.0, 2.0]]


def test_limits_of_real_servers_make_requests_shorter(tmp_path: Path, base_ms: int) -> None:
    pages = [
        RecordedPage(
            labels(instance=f"n{node}"), base_ms + number * 5_000, {(POWER, ()): 1.0, (ENERGY, ()): 5.0 * number}
        )
        for number in range(200)
        for node in range(20)
    ]
    time = TimeRange(base_ms * _NS, (base_ms + 1_000_000) * _NS, 10 * 10**9)
    with ExitStack() as stack:
        try:
            urls = (
                stack.enter_context(prometheus_server(tmp_path, "--query.max-samples=1000")),
                stack.enter_context(victoria_metrics_server(tmp_path, "-search.maxPointsPerTimeseries=20")),
            )
        except FileNotFoundError as error:
            pytest.skip(str(error))
        for url in urls:
            write_pages(url, pages)
            history = PrometheusHistory(url)
            assert history.range(Question(POWER, (), Statistic.COUNT), time).values.tolist() == [[20.0] * 100]
            rates = history.range(Question(ENERGY, (), Statistic.SUM), time).values
            np.testing.assert_allclose(rates[0, :-1], [20.0] * 99, rtol=1e-6)


def test_of_too_many_samples_the_servers_own_rate_is_used(
    servers: dict[str, str], base_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled_rates, "_MAX_SAMPLES", 10)
    pages = [
        RecordedPage(
            labels(cluster="many", instance="n0"), base_ms + number * 5_000, {(ENERGY, ()): 1e6 + 5.0 * number}
        )
        for number in range(60)
        if not 24 <= number < 30
    ]
    time = TimeRange(base_ms * _NS, (base_ms + 240_000) * _NS, 60 * 10**9)
    for name, url in servers.items():
        write_pages(url, pages)
        answer = PrometheusHistory(url).range(Question(ENERGY, (), where={"cluster": "many"}), time)
        whole, cut = answer.values[0, [0, 1, 3]], answer.values[0, 2]
        np.testing.assert_allclose(whole, 1.0, rtol=1e-6)
        assert cut == pytest.approx(1.0 if name == "victoria-metrics" else 0.56, abs=0.05)  # as the guide says
