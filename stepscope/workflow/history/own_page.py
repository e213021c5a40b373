"""The recorder's own metrics, as a page in Prometheus' text format."""

from __future__ import annotations

import time
from collections.abc import Iterator

from stepscope import __version__
from stepscope.core.metrics.history import HISTORY, HISTORY_METRICS
from stepscope.workflow.history.episodes import GapReason
from stepscope.workflow.history.recorder import LEFT_OUT
from stepscope.workflow.history.service import RecordingStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def recording_page(status: RecordingStatus, *, now: float | None = None) -> str:
    """The page of a recording; `now` in monotonic seconds."""
    values: dict[str, list[tuple[str, float]]] = {}
    for name, labels, value in _values(status, time.monotonic() if now is None else now):
        values.setdefault(HISTORY + name, []).append((labels, value))
    lines = []
    for metric in HISTORY_METRICS:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [f"{metric.name}{labels} {value!r}" for labels, value in values[metric.name]]
    return "\n".join(lines) + "\n"


def _values(status: RecordingStatus, now: float) -> Iterator[tuple[str, str, float]]:
    counts = status.counts
    yield "info", f'{{version="{__version__}"}}', 1
    yield "targets", '{state="up"}', status.num_up
    yield "targets", '{state="down"}', status.num_down
    yield "scrapes_total", "", counts.scrapes
    for reason in GapReason.of_scrapes():
        yield "scrape_failures_total", f'{{reason="{reason}"}}', counts.failures[reason]
    yield "scrape_seconds_total", "", round(counts.seconds, 3)
    yield "missed_scrapes_total", "", status.missed
    yield "scrape_lag_seconds", "", round(status.lag_seconds, 3)
    yield "received_bytes_total", "", counts.received_bytes
    yield "samples_total", "", counts.samples
    for why in LEFT_OUT:
        yield "samples_left_out_total", f'{{reason="{why}"}}', counts.left_out[why]
    for kind, count in status.open_events.items():
        yield "open_events", f'{{kind="{kind}"}}', count
    yield "flushes_total", "", counts.flushes
    yield "failed_flushes_total", "", counts.failed_flushes
    yield "flush_age_seconds", "", round(now - status.last_kept, 3)
