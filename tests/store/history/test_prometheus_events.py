"""Events of a real Prometheus and a real VictoriaMetrics: health, gaps and verdicts, each within a step of 15 s."""

from __future__ import annotations

import pytest

from benchmarks.history.servers import RecordedPage, Series, write_pages
from stepscope.core.errors import UsageError
from stepscope.store.history.prometheus import PrometheusHistory
from stepscope.store.history.questions import HistoryEvent, HistoryEventKind, Labels

_NS_PER_MS = 10**6
_STEP = 15_000 * _NS_PER_MS


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
