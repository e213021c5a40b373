"""PromQL of a question: whatever people ask for, names are names and values are quoted strings."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import UsageError
from stepscope.store.history.promql import Dialect, latest_queries, owned_query, range_query
from stepscope.store.history.questions import GroupBy, Question, Statistic

_TOKEN = re.compile(r'"(?:[^"\\\n]|\\["\\n])*"|[^"]')
"""A quoted string, or a character outside of any."""


def _query(question: Question, *, is_counter: bool = False, server: Dialect | None = None) -> str:
    return range_query(question, 60_000, is_counter=is_counter, server=server or Dialect())


def test_a_gauge_is_its_mean_within_the_step() -> None:
    by_gpu = Question("stepscope_gpu_power_watts", where={"rack": "r1"})
    assert _query(by_gpu) == (
        'avg by (instance, gpu, uuid, gpu_instance) (avg_over_time(stepscope_gpu_power_watts{rack="r1"}[59999ms]))'
    )
    highest = Question("stepscope_gpu_power_watts", (), Statistic.MAX)
    left_open = Dialect(is_left_open=True)
    assert _query(highest, server=left_open) == "max by () (max_over_time(stepscope_gpu_power_watts[60000ms]))"


def test_a_counter_is_its_rate() -> None:
    energy = Question("stepscope_gpu_energy_joules_total", (GroupBy.NODE,), Statistic.SUM)
    assert _query(energy, is_counter=True) == "sum by (instance) (rate(stepscope_gpu_energy_joules_total[59999ms]))"
    metricsql = _query(energy, is_counter=True, server=Dialect(is_left_open=True, has_metricsql=True))
    assert "increase_prometheus(stepscope_gpu_energy_joules_total[60000ms]) / (tlast_over_time(" in metricsql


def test_the_job_is_that_which_has_the_gpu_alone() -> None:
    query = _query(Question("stepscope_gpu_power_watts", (GroupBy.USER,), where={"job_id": "7", "cluster": "a"}))
    assert 'stepscope_gpu_power_watts{cluster="a"}' in query
    assert 'stepscope_gpu_job_info{share=~"exclusive|",cluster="a",job_id="7"}' in query
    assert 'stepscope_job_info{cluster="a",user!=""}' in query
    assert "group_left (job_id, job_kind, user)" in query or "group_left (job_kind, job_id, user)" in query


def test_a_metric_of_jobs_needs_no_gpu() -> None:
    question = Question("stepscope_job_gpu_seconds_total", (GroupBy.JOB, GroupBy.USER), where={"job_id": "7"})
    query = _query(question, is_counter=True)
    assert "stepscope_gpu_job_info" not in query
    assert 'stepscope_job_gpu_seconds_total{job_id="7"}' in query
    assert "on (cluster, instance, job_kind, job_id) group_left (user)" in query
    assert "stepscope_job_info" not in _query(Question("stepscope_job_gpu_seconds_total", (GroupBy.JOB,)))


def test_replicas_are_one_series() -> None:
    question = Question("stepscope_gpu_power_watts", ())
    query = range_query(question, 60_000, is_counter=False, server=Dialect(), ignored=("replica",))
    assert query == "avg by () (max without (replica) (avg_over_time(stepscope_gpu_power_watts[59999ms])))"


def test_of_no_values_there_is_none() -> None:
    query = _query(Question("stepscope_gpu_power_watts", (), where={"rack": ()}))
    assert query == 'avg by () (avg_over_time(stepscope_gpu_power_watts{rack="",rack!=""}[59999ms]))'


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=3),
    st.sampled_from(["rack", "job_id", "user"]),
    st.lists(st.sampled_from(GroupBy), unique=True),
)
def test_values_are_quoted(value: str, values: list[str], label: str, by: list[GroupBy]) -> None:
    plain = Question("stepscope_gpu_power_watts", tuple(by), where={"rack": "x", label: "x"})
    asked = Question("stepscope_gpu_power_watts", tuple(by), where={"rack": value, label: value})
    several = Question("stepscope_gpu_power_watts", tuple(by), where={"rack": values, label: values})

    def outside(text: str) -> str:
        tokens = _TOKEN.findall(text)
        assert "".join(tokens) == text
        return "".join(token for token in tokens if not token.startswith('"'))

    for query in (_query, lambda question: owned_query(question, 60_000, server=Dialect())):
        assert outside(query(asked)) == outside(query(plain))
        assert outside(query(several)).replace("=~", "=") == outside(query(plain)).replace("=~", "=")
    for one, other in zip(latest_queries(asked, 0), latest_queries(plain, 0), strict=True):
        assert outside(one) == outside(other)


@pytest.mark.parametrize(
    "question",
    [
        Question('up{a="b"} or x'),
        Question(""),
        Question("a-b"),
        Question("up", where={"a b": "c"}),
        Question("up", where={'x="" or y': "c"}),
        Question("up", where={"__name__": "c"}),
        Question("up", where={"a": "\ud800"}),
    ],
)
def test_what_is_no_name_is_refused(question: Question) -> None:
    with pytest.raises(UsageError):
        _query(question)
    with pytest.raises(UsageError):
        latest_queries(question, 0)
