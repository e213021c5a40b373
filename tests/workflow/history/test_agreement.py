"""Our own store, Prometheus and VictoriaMetrics answer alike about two real agents: some minutes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.history.agreement import QUESTIONS, compare, events_apart, keep, parsed
from benchmarks.history.live_hour import record
from benchmarks.history.servers import both_servers, write_pages
from stepscope.store.history.prometheus import PrometheusHistory
from stepscope.store.history.questions import HistoryEventKind, MetricHistory

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

_MINUTES = 6.0


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, MetricHistory], int]]:
    """The same pages in each, and the time of the first, ms since the epoch."""
    folder: Path = tmp_path_factory.mktemp("agreement")
    begin_ms = (int(time.time()) // 60 - 10) * 60_000
    with ExitStack() as stack:
        try:
            urls = stack.enter_context(both_servers(folder))
        except FileNotFoundError as error:
            pytest.skip(str(error))
        pages = record(folder, begin_ms, minutes=_MINUTES)
        recorded = parsed(pages)
        for url in urls.values():
            write_pages(url, recorded)
        own: dict[str, MetricHistory] = {"own": keep(folder / "history", pages)}
        yield own | {name: PrometheusHistory(url) for name, url in urls.items()}, begin_ms


def test_each_question_has_the_same_answer(histories: tuple[dict[str, MetricHistory], int]) -> None:
    of_each, begin_ms = histories
    found = compare(of_each, begin_ms, _MINUTES, step_seconds=(30.0, 120.0))
    assert len(QUESTIONS) >= 10
    assert {text.partition(",")[0] for text in found} == set(QUESTIONS)
    for text, by_name in found.items():
        assert by_name.keys() == {"prometheus", "victoria-metrics"}
        for name, agreement in by_name.items():
            assert agreement.largest <= 0.01, (text, name, agreement)
            assert agreement.num_known_once == 0, (text, name, agreement)
    assert sum(one.num_values for by_name in found.values() for one in by_name.values()) > 500


def test_events_are_the_same(histories: tuple[dict[str, MetricHistory], int]) -> None:
    of_each, begin_ms = histories
    begin_ns = begin_ms * 10**6
    events = {name: history.events(begin_ns, begin_ns + int(_MINUTES * 60e9)) for name, history in of_each.items()}
    own = events.pop("own")
    assert {event.kind for event in own} == {HistoryEventKind.GAP, HistoryEventKind.HEALTH}
    for others in events.values():
        assert not events_apart(own, others, 31.0)
        assert not events_apart(others, own, 31.0)
