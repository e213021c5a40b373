"""Metrics of the recorder of the metric history itself."""

from __future__ import annotations

from stepscope.core.metrics import DefaultSeries, Metric, MetricGroup

HISTORY = "stepscope_history_"
_ALL = DefaultSeries.ALL
_history = MetricGroup(HISTORY).metric

# fmt: off
HISTORY_METRICS: tuple[Metric, ...] = (
    _history("info", "Version of the recorder as a label; always 1.", "version", default=_ALL),
    _history("targets", "Targets whose latest scrape had a page (up), or had none (down).", "state", default=_ALL),
    _history("scrapes_total", "Scrapes that are over, with and without a page.", default=_ALL),
    _history("scrape_failures_total", "Scrapes without a page, by reason.", "reason", default=_ALL),
    _history("scrape_seconds_total", "Sum of the durations of all scrapes.", default=_ALL),
    _history("missed_scrapes_total", "Scrapes that were not sent, as the recorder was late or the one before was open.",
             default=_ALL),
    _history("scrape_lag_seconds", "Time by which scrapes of the last one or two intervals began too late, at most.",
             default=_ALL),
    _history("received_bytes_total", "Size of all pages, unpacked.", default=_ALL),
    _history("samples_total", "Samples that the history got.", default=_ALL),
    _history("samples_left_out_total", "Samples that the history did not get: of a series that came before on its page "
             "(duplicate), beyond the limits of a target (limit), as the store was too slow (store).", "reason",
             default=_ALL),
    _history("open_events", "Gaps of targets, health events and verdicts that last.", "kind", default=_ALL),
    _history("flushes_total", "Writes to the store that are over.", default=_ALL),
    _history("failed_flushes_total", "Writes that the store did not take; the samples wait in memory.", default=_ALL),
    _history("flush_age_seconds", "Time since the store took a write, or since the start before the first.",
             default=_ALL),
)
# fmt: on
