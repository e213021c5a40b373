"""Jobs are found by their usual names, and their metrics have valid Prometheus names."""

from __future__ import annotations

import re

import pytest

from stepscope.core.documents.jobs import (
    Job,
    JobKind,
)
from stepscope.core.metrics import Metric, MetricKind, Unit
from stepscope.core.metrics.agent import JOB_METRICS
from stepscope.core.metrics.gpu import BY_NAME

_SLURM = Job(JobKind.SLURM, "123", "llama", "eve", "nlp", "core", "llm", "gpu", "", "120_3")
_POD = Job(JobKind.KUBERNETES, "ml/llama-0", workload="JobSet/llama")
_RUN = Job(JobKind.PROCESSES, "4711-99", "train.py")


@pytest.mark.parametrize("metric", JOB_METRICS, ids=lambda metric: metric.name)
def test_names_keep_the_rules_of_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"stepscope_(gpu|job)_[a-z0-9_]+", metric.name)
    assert metric.name not in BY_NAME
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert metric.name.removesuffix("_total").endswith(f"_{metric.unit}") or metric.unit is Unit.NONE
    assert metric.help.endswith(".")


def test_bug_28_no_label_is_one_that_prometheus_takes_for_itself() -> None:
    """NVIDIA/dcgm-exporter#85: `pod` became `exported_pod` wherever a scrape has pods of its own."""
    taken = {"job", "instance", "pod", "namespace", "container", "node", "service", "endpoint"}
    assert not taken & {label for metric in JOB_METRICS for label in metric.labels}


@pytest.mark.parametrize("name", ["123", "120_3", "llama"])
def test_a_slurm_job_is_called_by_number_array_task_or_name(name: str) -> None:
    assert _SLURM.is_called(name)
    assert not _SLURM.is_called("")


def test_a_pod_is_called_by_what_it_is_part_of_and_processes_by_the_leader() -> None:
    assert all(_POD.is_called(name) for name in ("ml/llama-0", "llama-0", "JobSet/llama", "llama"))
    assert all(_RUN.is_called(name) for name in ("4711", "4711-99", "train.py"))
    assert not Job(JobKind.KUBERNETES, "a-b/c").is_called("a")
