"""Rates of counters from samples, for servers whose `rate` extrapolates: Prometheus, Thanos, Mimir.

`rate` divides by the window: in a step that a gap cuts it is too low by the gap's share. So the samples themselves are
read and the server says to which job a series belongs, as long as there are not too many of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stepscope.store.history.prometheus_api import ApiSeries, PrometheusApi, TooMuchError, labels_of, number_of
from stepscope.store.history.prometheus_steps import stepped_values
from stepscope.store.history.promql import (
    Dialect,
    owned_query,
    owner_labels,
    samples_query,
)
from stepscope.store.history.questions import GROUP_LABELS, Labels, Question, Statistic

_MAX_SAMPLES = 2_000_000
"""About 60 MB of JSON, and some seconds."""
_SAMPLES_A_REQUEST = 500_000
_FIRST_STEPS = 10
_MAX_NAMED = 4_000
"""GPUs that are named in a query: 160 kB."""

Floats = NDArray[np.float64]
Times = NDArray[np.int64]


def sampled_rates(
    api: PrometheusApi,
    question: Question,
    times_ms: Times,
    step_ms: int,
    *,
    server: Dialect,
    ignored: Sequence[str],
    deadline: float,
) -> dict[Labels, Floats] | None:
    """Values of a question about a counter by group, NaN where unknown; None if there are too many samples.

    Args:
        times_ms: end of each step, ms since the epoch.
        ignored: labels of replicas, which have the same series.
        deadline: of all requests, in monotonic seconds.

    Raises:
        UsageError: a name in the question is not valid.
        UnreachableError: the server does not answer.
        DataError: it does not answer as Prometheus does, or refuses a query.
    """
    added = owner_labels(question)
    owned: dict[Labels, Floats] = {}
    asked = question
    if added:
        query = owned_query(question, step_ms, server=server, ignored=ignored)
        owned = stepped_values(api, query, times_ms, step_ms, deadline=deadline)
        asked = _only_of(question, owned)
    rates = _read_rates(api, asked, times_ms, step_ms, ignored, deadline) if owned or not added else {}
    if rates is None:
        return None
    names = {label for group in question.by for label in GROUP_LABELS[group]}
    members: dict[Labels, list[Floats]] = {}
    for labels, row in rates.items() if not added else ():
        members.setdefault(_only(labels, names), []).append(row)
    for labels, is_owned in owned.items():
        own = tuple(pair for pair in labels if pair[0] not in added)
        if own in rates:
            members.setdefault(_only(labels, names), []).append(np.where(np.isnan(is_owned), np.nan, rates[own]))
    return {group: _combined(question.statistic, rows) for group, rows in members.items()}


def _only_of(question: Question, owned: Iterable[Labels]) -> Question:
    """The question about the GPUs, or else the targets, of these series alone: samples of others are not needed."""
    names = [dict(labels) for labels in owned]
    for label in ("uuid", "instance"):
        values = {one.get(label, "") for one in names}
        if "" not in values and len(values) <= _MAX_NAMED:
            return replace(question, where={**question.where, label: sorted(values)})
    return question


def step_rates(times_ms: Times, values: Floats, start_ms: int, step_ms: int, num_steps: int) -> Floats:
    """Rate of a counter in each step: increase over the time between its first and last sample there, NaN of fewer.

    Args:
        times_ms: of the samples, ascending; ms since the epoch.
        values: of the samples; a lower one than before is a restart at 0.
        start_ms: of the first step, which does not include it.
    """
    step = -(-(times_ms - start_ms) // step_ms) - 1
    inside = (step >= 0) & (step < num_steps) & ~np.isnan(values)
    step, times_ms, values = step[inside], times_ms[inside], values[inside]
    rates = np.full(num_steps, np.nan)
    is_pair = step[1:] == step[:-1]
    before, after = values[:-1][is_pair], values[1:][is_pair]
    grown = np.where(after < before, after, after - before)
    seconds = (times_ms[1:] - times_ms[:-1])[is_pair] / 1e3
    steps, place = np.unique(step[1:][is_pair], return_inverse=True)
    total = np.bincount(place, seconds, len(steps))
    rates[steps[total > 0.0]] = (np.bincount(place, grown, len(steps)) / np.where(total > 0.0, total, 1.0))[total > 0.0]
    return rates


def _read_rates(
    api: PrometheusApi, question: Question, times_ms: Times, step_ms: int, ignored: Sequence[str], deadline: float
) -> dict[Labels, Floats] | None:
    rates: dict[Labels, Floats] = {}
    first, count, num_samples = 0, _FIRST_STEPS, 0
    while first < len(times_ms):
        count = min(count, len(times_ms) - first)
        end_ms, span_ms = int(times_ms[first + count - 1]), count * step_ms
        try:
            found = api.samples(samples_query(question, span_ms), end_ms, deadline=deadline)
        except TooMuchError:
            return None
        num_samples += sum(len(series.values) for series in found)
        if num_samples / (first + count) * len(times_ms) > _MAX_SAMPLES:
            return None
        for series in found:
            labels = tuple(pair for pair in labels_of(series) if pair[0] not in ignored)
            row = rates.setdefault(labels, np.full(len(times_ms), np.nan))
            part = row[first : first + count]
            np.fmax(part, step_rates(*_samples(series), end_ms - span_ms, step_ms, count), out=part)
        first += count
        a_step = max(num_samples / first, 1.0)
        count = max(int(_SAMPLES_A_REQUEST / a_step), 1)
    return rates


def _samples(series: ApiSeries) -> tuple[Times, Floats]:
    times = np.rint(np.array([at for at, _ in series.values]) * 1e3).astype(np.int64)
    return times, np.array([number_of(text) for _, text in series.values])


def _only(labels: Labels, names: set[str]) -> Labels:
    return tuple(pair for pair in labels if pair[0] in names)


def _combined(statistic: Statistic, rows: Sequence[Floats]) -> Floats:
    """One value of several for each step; NaN where none has one."""
    values = np.array(rows)
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    if statistic is Statistic.COUNT:
        combined = count.astype(np.float64)
    elif statistic is Statistic.MIN:
        combined = np.where(known, values, np.inf).min(axis=0)
    elif statistic is Statistic.MAX:
        combined = np.where(known, values, -np.inf).max(axis=0)
    else:
        combined = np.where(known, values, 0.0).sum(axis=0)
        combined = combined / np.maximum(count, 1) if statistic is Statistic.MEAN else combined
    return np.where(count > 0, combined, np.nan)
