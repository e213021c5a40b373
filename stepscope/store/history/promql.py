"""PromQL of questions to the metric history.

    avg by (rack) (
      avg_over_time(stepscope_gpu_power_watts{cluster="a"}[59999ms])
      * on (cluster, instance, uuid, gpu_instance) group_left (job_id, job_kind) (jobs that have a GPU alone)
    )

Values of users appear only as quoted strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepscope.core.documents.jobs import Share
from stepscope.core.errors import UsageError
from stepscope.core.metrics.agent import (
    AGENT_METRICS,
    FLEET_METRICS,
    HEALTH_METRICS,
    JOB_FACTS,
    JOB_METRICS,
    TRAINING_METRICS,
)
from stepscope.store.history.questions import GROUP_LABELS, Question, Statistic, Where

METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__name__$)[a-zA-Z_][a-zA-Z0-9_]*")
_NOT_LITERAL = re.compile(r"[\\.+*?()|\[\]{}^$]")

_JOB_KEY = ("job_kind", "job_id")
_OWNER_KEY = ("cluster", "instance", *_JOB_KEY)
_DEVICE_KEY = ("cluster", "instance", "uuid", "gpu_instance")
_TARGET_LABELS = frozenset({"cluster", "instance", "rack", "gpu", "uuid", "gpu_instance"})
"""Labels that the series of a GPU and those of its job have alike."""
_FACTS_MS = 300_000
"""Prometheus' own lookback."""

_AGGREGATIONS = {
    Statistic.MEAN: "avg",
    Statistic.MIN: "min",
    Statistic.MAX: "max",
    Statistic.SUM: "sum",
    Statistic.COUNT: "count",
}
_OVER_TIME = {Statistic.MIN: "min_over_time", Statistic.MAX: "max_over_time"}
_OWN_LABELS = {
    metric.name: frozenset(metric.labels)
    for metric in (*AGENT_METRICS, *JOB_METRICS, *FLEET_METRICS, *TRAINING_METRICS, *HEALTH_METRICS)
}


LEFT_OPEN_PROBE = "count_over_time(vector(1)[1m:1m])"
"""At a whole minute 1 where a window does not include its start."""
METRICSQL_PROBE = "count(increase_prometheus(vector(1)[1m])) or vector(1)"
"""An error where the server does not know MetricsQL."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a server evaluates PromQL.

    Attributes:
        is_left_open: a window of samples does not include its start: Prometheus 3, VictoriaMetrics.
        has_metricsql: it has the functions of MetricsQL; its `rate` counts the sample before the window.
    """

    is_left_open: bool = False
    has_metricsql: bool = False

    def window_ms(self, step_ms: int) -> int:
        """Window of (t - step, t]: samples have whole milliseconds."""
        return step_ms if self.is_left_open or step_ms == 1 else step_ms - 1


def range_query(
    question: Question, step_ms: int, *, is_counter: bool, server: Dialect, ignored: Sequence[str] = ()
) -> str:
    """The query of values over time, for evaluation at the end of each step.

    Args:
        is_counter: the metric is one.
        server: who shall evaluate it.
        ignored: labels of replicas, which have the same series.

    Raises:
        UsageError: a name in the question is not valid.
    """
    series, window = series_selector(question.metric, _own(question)), f"[{server.window_ms(step_ms)}ms]"
    if not is_counter:
        values = f"{_OVER_TIME.get(question.statistic, 'avg_over_time')}({series}{window})"
    elif server.has_metricsql:
        seconds = f"(tlast_over_time({series}{window}) - tfirst_over_time({series}{window}))"
        values = f"increase_prometheus({series}{window}) / {seconds}"
    else:
        values = f"rate({series}{window})"
    return _grouped(question, values, _AGGREGATIONS[question.statistic], ignored, step_ms)


def samples_query(question: Question, span_ms: int) -> str:
    """The query of a question's samples within a span before the time of evaluation.

    Raises:
        UsageError: a name in the question is not valid.
    """
    return f"{series_selector(question.metric, _own(question))}[{span_ms}ms]"


def owned_query(question: Question, step_ms: int, *, server: Dialect, ignored: Sequence[str] = ()) -> str:
    """The query of which series, with all their labels, are in the answer to a question; else as `range_query`."""
    series = series_selector(question.metric, _own(question))
    values = f"count_over_time({series}[{server.window_ms(step_ms)}ms])"
    return _with_owner(question, _joined(values, ignored), step_ms)


def owner_labels(question: Question) -> frozenset[str]:
    """Labels that the series of an answer have from the job that has the GPU."""
    own = _own_labels(question.metric)
    wanted = {label for group in question.by for label in GROUP_LABELS[group]} | question.where.keys()
    facts = (wanted & set(JOB_FACTS)) - own
    if not facts and not (wanted & set(_JOB_KEY)) - own:
        return frozenset()
    return frozenset({*_JOB_KEY, *facts}) - own


def latest_queries(question: Question, after_ms: int, *, ignored: Sequence[str] = ()) -> tuple[str, str]:
    """The queries of the newest values and of their times, seconds since the epoch.

    Args:
        after_ms: samples up to this time are too old; ms since the epoch.
        ignored: labels of replicas, which have the same series.

    Raises:
        UsageError: a name in the question is not valid.
    """
    series = series_selector(question.metric, _own(question))
    is_fresh = f"timestamp({series}) > {after_ms / 1e3:.3f}"
    values = f"({series} and {is_fresh})"
    times = f"({is_fresh} and {series})"  # VictoriaMetrics has a timestamp of series that ended, too
    return (
        _grouped(question, values, _AGGREGATIONS[question.statistic], ignored, _FACTS_MS),
        _grouped(question, times, "max", ignored, _FACTS_MS),
    )


def _grouped(question: Question, values: str, aggregation: str, ignored: Sequence[str], step_ms: int) -> str:
    labels = [label for group in question.by for label in GROUP_LABELS[group]]
    values = _with_owner(question, _joined(values, ignored), step_ms)
    return f"{aggregation} by ({', '.join(dict.fromkeys(labels))}) ({values})"


def _joined(values: str, ignored: Sequence[str]) -> str:
    """The series of replicas as one."""
    return f"max without ({', '.join(map(_label, ignored))}) ({values})" if ignored else values


def _own(question: Question) -> Where:
    """What is asked of the labels of the series themselves, not of their job's."""
    own = _own_labels(question.metric)
    foreign = {*_JOB_KEY, *JOB_FACTS} - own
    return {label: values for label, values in question.where.items() if label not in foreign}


def _own_labels(metric: str) -> frozenset[str]:
    if metric.startswith("job_id:"):  # as the recording rules name what they make of jobs
        return frozenset(_JOB_KEY)
    return _OWN_LABELS.get(metric, frozenset())


def _with_owner(question: Question, values: str, step_ms: int) -> str:
    """Values with labels of the job that has the GPU alone, and its facts, as far as the question is about them."""
    added = owner_labels(question)
    if not added:
        return values
    facts = sorted(added - set(_JOB_KEY))
    target = {label: value for label, value in question.where.items() if label in _TARGET_LABELS}
    if added.isdisjoint(_JOB_KEY):
        owners, key, joined = _job_facts(question, facts, target, step_ms), _OWNER_KEY, facts
    else:
        owners, key, joined = _holders(question, facts, target, step_ms), _DEVICE_KEY, [*_JOB_KEY, *facts]
    return f"{values} * on ({', '.join(key)}) group_left ({', '.join(joined)}) ({owners})"


def _holders(question: Question, facts: Sequence[str], target: Where, step_ms: int) -> str:
    """Jobs that have a GPU alone."""
    jobs = {label: value for label, value in question.where.items() if label in _JOB_KEY}
    labels = ", ".join((*_DEVICE_KEY, *_JOB_KEY))
    share = {"share": (Share.EXCLUSIVE.value, "")}
    all_jobs = f"max by ({labels}) ({series_selector('stepscope_gpu_job_info', {**share, **target})})"
    holders = f"max by ({labels}) ({series_selector('stepscope_gpu_job_info', {**share, **target, **jobs})})"
    holders = _unambiguous(holders, all_jobs, _DEVICE_KEY)
    if not facts:
        return holders
    key = ", ".join(_OWNER_KEY)
    return f"{holders} * on ({key}) group_left ({', '.join(facts)}) ({_job_facts(question, facts, target, step_ms)})"


def _job_facts(question: Question, facts: Sequence[str], target: Where, step_ms: int) -> str:
    """Facts of jobs, each job with those that are known; they outlive the step's last page, unlike who has a GPU."""
    node = {label: value for label, value in target.items() if label in ("cluster", "instance", "rack")}
    asked = {label: value for label, value in question.where.items() if label in facts}
    labels = ", ".join((*_OWNER_KEY, *facts))
    known = [f'{label}!=""' for label in facts]
    selector = series_selector("stepscope_job_info", {**node, **asked}, known)
    every = series_selector("stepscope_job_info", node, known)
    window = f"[{max(step_ms, _FACTS_MS)}ms]"
    chosen, all_jobs = (f"max by ({labels}) (last_over_time({one}{window}))" for one in (selector, every))
    return _unambiguous(chosen, all_jobs, _OWNER_KEY)


def _unambiguous(chosen: str, every: str, key: Iterable[str]) -> str:
    """The chosen ones whose key only one has: PromQL refuses a join with two."""
    labels = ", ".join(key)
    return f"({chosen} and on ({labels}) (count by ({labels}) ({every}) == 1))"


def series_selector(metric: str, where: Where, further: Sequence[str] = ()) -> str:
    """The series of a metric whose labels have one of the values, with further matchers.

    Raises:
        UsageError: a name is not valid.
    """
    if METRIC_NAME.fullmatch(metric) is None:
        raise UsageError(f"{metric!r} is not the name of a metric")
    matchers = [*(_matcher(label, values) for label, values in where.items()), *further]
    return f"{metric}{{{','.join(matchers)}}}" if matchers else metric


def _label(name: str) -> str:
    if _LABEL_NAME.fullmatch(name) is None:
        raise UsageError(f"{name!r} is not the name of a label")
    return name


def _matcher(label: str, values: str | Sequence[str]) -> str:
    if isinstance(values, str):
        return f"{_label(label)}={_string(values)}"
    if not values:
        return f'{_label(label)}="",{label}!=""'  # none of no values
    pattern = "|".join(_NOT_LITERAL.sub(r"\\\g<0>", value) for value in values)
    return f"{_label(label)}=~{_string(pattern)}"


def _string(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{text!r} is not Unicode text") from None
    escaped = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'
