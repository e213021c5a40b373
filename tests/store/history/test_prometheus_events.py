"""Events of a real Prometheus and a real VictoriaMetrics: health, gaps and verdicts, each within a step of 15 s."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.history.servers import RecordedPage, Series, write_pages
from stepscope.core.errors import UsageError
from stepscope.store.history.prometheus import PrometheusHistory
from stepscope.store.history.questions import HistoryEvent, HistoryEventKind, Labels
from stepscope.workflow.history.episodes import WATCHED, Episodes, GapReason
from stepscope.workflow.history.pages import PageSeries

_NS_PER_MS = 10**6
_STEP = 15_000 * _NS_PER_MS
_EXAMPLES = itertools.count()


def _labels(**values: str) -> Labels:
    return tuple(sorted(values.items()))


_GPU = _labels(gpu="0", uuid="GPU-0")
_XID: Series = (
    "stepscope_gpu_health_event",
    _labels(code="xid_79", action="reboot", severity="critical", **dict(_GPU)),
)
_LINK: Series = (
    "stepscope_host_health_event",
    _labels(code="ib_link_down", action="check_network", severity="warning", device="mlx5_0", port="1"),
)


def _verdict(cause: str) -> Series:
    return "stepscope_training_bottleneck_ratio", _labels(run="gpt-1", cause=cause)


def _pages(cluster: str, base_ms: int) -> list[RecordedPage]:
    """Twenty minutes at 10 s: a fault over a gap, a link that is down before and after, and three verdicts."""
    target = _labels(instance="n0:9455", rack="r1", cluster=cluster)
    pages = []
    for second in range(0, 1200, 10):
        if 300 <= second < 420:
            pages.append(RecordedPage(target, base_ms + second * 1000, None))
            continue
        if 900 <= second < 1000:
            continue  # nobody asked
        values: dict[Series, float] = {("stepscope_gpu_up", _GPU): 1.0}
        if 200 <= second < 500:
            values[_XID] = 1.0
        if second < 100 or second >= 1100:
            values[_LINK] = 1.0
        if second < 250:
            values[_verdict("data_loading")] = 0.5
        elif 500 <= second < 700:
            values[_verdict("communication")] = 0.25
        elif second >= 700:
            values[_verdict("compute_bound")] = 0.0
        pages.append(RecordedPage(target, base_ms + second * 1000, values))
    return pages


def _near(event: HistoryEvent, base_ms: int, begin: int, end: int | None) -> bool:
    begin_ns = (base_ms + begin * 1000) * _NS_PER_MS
    is_near = abs(event.start_ns - begin_ns) <= _STEP
    if end is None or event.end_ns is None:
        return is_near and event.end_ns is None and end is None
    return is_near and abs(event.end_ns - (base_ms + end * 1000) * _NS_PER_MS) <= _STEP


@pytest.mark.parametrize("name", ["prometheus", "victoria-metrics"])
def test_events_are_those_of_the_pages(servers: dict[str, str], base_ms: int, name: str) -> None:
    cluster = f"events-{name}"
    write_pages(servers[name], _pages(cluster, base_ms))
    history = PrometheusHistory(servers[name])
    where = {"cluster": cluster}
    start_ns, end_ns = base_ms * _NS_PER_MS, (base_ms + 1_200_000) * _NS_PER_MS
    events = history.events(start_ns, end_ns, where=where)
    assert events == sorted(events, key=lambda event: event.start_ns)
    target = _labels(instance="n0:9455", rack="r1", cluster=cluster)
    expected = [
        (HistoryEventKind.GAP, "scrape_failed", target, 300, 420),
        (HistoryEventKind.GAP, "not_scraped", target, 900, 1000),
        (HistoryEventKind.HEALTH, "xid_79", tuple(sorted((*target, *_GPU))), 200, 500),
        (HistoryEventKind.HEALTH, "ib_link_down", _labels(**dict(target), device="mlx5_0", port="1"), 0, 100),
        (HistoryEventKind.HEALTH, "ib_link_down", _labels(**dict(target), device="mlx5_0", port="1"), 1100, None),
        (HistoryEventKind.VERDICT, "data_loading", _labels(run="gpt-1"), 0, 250),
        (HistoryEventKind.VERDICT, "communication", _labels(run="gpt-1"), 500, 700),
        (HistoryEventKind.VERDICT, "compute_bound", _labels(run="gpt-1"), 700, None),
    ]
    for kind, code, labels, begin, end in expected:
        found = [event for event in events if (event.kind, event.code, event.labels) == (kind, code, labels)]
        assert [event for event in found if _near(event, base_ms, begin, end)], (kind, code, begin, end, found)
    assert len(events) == len(expected), events
    texts = {event.code: event.text for event in events}
    assert texts["xid_79"] == "critical: xid_79; take the work off the machine and reboot it"
    assert texts["data_loading"] == "Data loading: 50.0% of training time"
    assert texts["compute_bound"].startswith("no bottleneck: ")
    # a span that begins in the middle of an event has its beginning
    later = history.events(start_ns + 250 * 10**9, end_ns, where={**where, "code": "xid_79"})
    (event,) = [event for event in later if event.kind is HistoryEventKind.HEALTH]
    assert abs(event.start_ns - (start_ns + 200 * 10**9)) <= _STEP
    assert not history.events(start_ns, end_ns, where={"cluster": "none"})


def test_what_is_no_label_is_refused(servers: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="not the name of a label"):
        PrometheusHistory(servers["prometheus"]).events(0, 10**9, where={"a b": "c"})


@st.composite
def _timelines(draw: st.DrawFn, cluster: str, base_ms: int) -> list[RecordedPage]:
    """Pages of two nodes, further apart than a step of 15 s, so that no event is shorter."""
    pages = []
    for node in range(2):
        target = _labels(instance=f"n{node}:9455", cluster=cluster)
        time_ms = base_ms + draw(st.integers(1, 10_000))
        for _ in range(draw(st.integers(4, 25))):
            values: dict[Series, float] = {("stepscope_gpu_up", _GPU): 1.0}
            for series in (_XID, _LINK):
                if draw(st.booleans()):
                    values[series] = 1.0
            cause = draw(st.sampled_from(["", "data_loading", "communication"]))
            if cause:
                verdict = _labels(run=f"{cluster}-{node}", cause=cause)
                values["stepscope_training_bottleneck_ratio", verdict] = 0.5
            pages.append(RecordedPage(target, time_ms, values if draw(st.integers(0, 3)) else None))
            time_ms += draw(st.integers(20_000, 26_000))
    return pages


def _by_recorder(pages: list[RecordedPage]) -> list[HistoryEvent]:
    """The events that our recorder makes of the pages."""
    episodes = Episodes()
    for page in sorted(pages, key=lambda page: page.time_ms):
        time_ns = page.time_ms * _NS_PER_MS
        if page.values is None:
            episodes.failed(page.target, time_ns, GapReason.REFUSED, "")
        else:
            watched = [
                PageSeries(name, tuple(sorted((*page.target, *labels))), value)
                for (name, labels), value in page.values.items()
                if name in WATCHED
            ]
            episodes.answered(page.target, time_ns, watched)
    return list(episodes.take())


@given(st.data())
@settings(max_examples=10, deadline=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck])
def test_events_are_those_of_the_recorder(servers: dict[str, str], base_ms: int, data: st.DataObject) -> None:
    cluster = f"timeline{next(_EXAMPLES)}"
    pages = data.draw(_timelines(cluster, base_ms))
    end_ms = max(page.time_ms for page in pages) + 1
    expected = _by_recorder(pages)
    for name, url in servers.items():
        write_pages(url, pages)
        events = PrometheusHistory(url).events(base_ms * _NS_PER_MS, end_ms * _NS_PER_MS, where={"cluster": cluster})
        for kind in HistoryEventKind:
            own = sorted((one.labels, one.start_ns, one) for one in expected if one.kind is kind)
            found = sorted((one.labels, one.start_ns, one) for one in events if one.kind is kind)
            assert len(own) == len(found), (name, kind, own, found)
            for (labels, start_ns, one), (found_labels, found_ns, other) in zip(own, found, strict=True):
                assert labels == found_labels
                assert abs(start_ns - found_ns) <= _STEP
                assert (one.end_ns is None) == (other.end_ns is None), (name, one, other)
                assert abs((one.end_ns or 0) - (other.end_ns or 0)) <= _STEP, (name, one, other)
                assert kind is HistoryEventKind.GAP or (one.code, one.text) == (other.code, other.text)
