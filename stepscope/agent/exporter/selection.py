"""Selection of the metrics that the agent exports: its default set, all, or those that names and patterns select."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from stepscope.core.errors import UsageError
from stepscope.core.metrics import DefaultSeries, Metric
from stepscope.core.text.numbers import unknown_name

DEFAULT, FULL = "default", "full"
"""Words that select the default set and all metrics."""


def selected_series(entries: Sequence[str], catalogue: Iterable[Metric]) -> Mapping[str, DefaultSeries]:
    """Which series of each metric the agent exports, by name.

    Args:
        entries: `default`, `full`, names, and patterns with * and ?. What a name or pattern selects has all its series.

    Raises:
        UsageError: an entry selects nothing, or there is none.
    """
    if not entries:
        raise UsageError(
            "selects no metric, so that nothing would be exported", what_next=f"leave it out, or set {DEFAULT}"
        )
    metrics = {metric.name: metric for metric in catalogue}
    selected = dict.fromkeys(metrics, DefaultSeries.NONE)
    if DEFAULT in entries:
        selected = {name: metric.default for name, metric in metrics.items()}
    for entry in entries:
        if entry == DEFAULT:
            continue
        matching = [name for name in metrics if entry == FULL or fnmatchcase(name, entry)]
        if not matching:
            raise unknown_name("metric", entry, [DEFAULT, FULL, *metrics], listing="see docs/reference/metrics.md")
        selected.update(dict.fromkeys(matching, DefaultSeries.ALL))
    return selected
