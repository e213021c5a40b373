"""Is a job that was written into readings the same when it is read from them?"""

from __future__ import annotations

import re

import pytest

from stepscope.core.documents.jobs import (
    Assignment,
    DeviceUse,
    Job,
    JobKind,
    JobSource,
    Share,
    UseState,
    assignments_of,
    job_facts,
    job_labels,
    uses_of,
)
from stepscope.core.metrics import Metric, MetricKind, Unit
from stepscope.core.metrics.agent import JOB, JOB_METRICS
from stepscope.core.metrics.gpu import BY_NAME, GPU
from stepscope.core.metrics.readings import Collection, Labels, Reading, labels_of, with_labels

_GPU = labels_of(gpu=0, uuid="GPU-a")
_MIG = labels_of(gpu=1, uuid="MIG-b", gpu_instance=7, compute_instance=0, mig_profile="1g.10gb")
_SLURM = Job(JobKind.SLURM, "123", "llama", "eve", "nlp", "core", "llm", "gpu", "", "120_3")
_POD = Job(JobKind.KUBERNETES, "ml/llama-0", workload="JobSet/llama")
_RUN = Job(JobKind.PROCESSES, "4711-99", "train.py")


def _reading(metric: str, labels: Labels, further: Labels = ()) -> Reading:
    return Reading(metric, 1.0, with_labels(labels, **dict(further)), 5)


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


def test_assignments_come_out_as_they_went_in() -> None:
    meant = (
        Assignment(_SLURM, _GPU, Share.EXCLUSIVE, (JobSource.PROCESS, JobSource.SLURM_ENVIRONMENT), (5, 7), ("0",)),
        Assignment(_POD, _MIG, Share.TIME_SLICED, (JobSource.KUBELET,)),
        Assignment(_RUN, _GPU, Share.MPS, (JobSource.PROCESS,), (9,)),
    )
    readings = []
    for one in meant:
        key = job_labels(one.job)
        readings.append(_reading(JOB + "info", key, job_facts(one.job)))
        facts = labels_of(share=one.share, source="+".join(one.sources), step="+".join(one.steps))
        readings.append(_reading(GPU + "job_info", one.device, (*key, *facts)))
        readings += [_reading(JOB + "process_info", one.device, (*key, ("pid", str(pid)))) for pid in one.pids]
    assert assignments_of(Collection(tuple(readings))) == meant


def test_uses_come_out_as_they_went_in() -> None:
    readings = (_reading(GPU + "use_state", _MIG, (("state", "held_but_idle"),)), _reading(GPU + "up", _GPU))
    assert uses_of(Collection(readings)) == (DeviceUse(_MIG, UseState.HELD_BUT_IDLE),)


@pytest.mark.parametrize("name", ["123", "120_3", "llama"])
def test_a_slurm_job_is_called_by_number_array_task_or_name(name: str) -> None:
    assert _SLURM.is_called(name)
    assert not _SLURM.is_called("")


def test_a_pod_is_called_by_what_it_is_part_of_and_processes_by_the_leader() -> None:
    assert all(_POD.is_called(name) for name in ("ml/llama-0", "llama-0", "JobSet/llama", "llama"))
    assert all(_RUN.is_called(name) for name in ("4711", "4711-99", "train.py"))
    assert not Job(JobKind.KUBERNETES, "a-b/c").is_called("a")
