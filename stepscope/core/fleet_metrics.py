"""What is told of GPUs and jobs by their fleet class? One row a metric; the words are those of `core.causes`."""

from __future__ import annotations

from stepscope.core.gpu_metrics import GPU
from stepscope.core.job_metrics import JOB
from stepscope.core.metrics import Metric, MetricKind, Unit

_GAUGE = MetricKind.GAUGE
_JOB = ("job_kind", "job_id")

U = Unit
# fmt: off
FLEET_METRICS: tuple[Metric, ...] = (
    Metric(GPU + "class", _GAUGE, U.NONE, "1: what the GPU spent the last minute on. 0: it was something else.", None,
           ("cause",)),
    Metric(GPU + "class_confidence_ratio", _GAUGE, U.RATIO, "How sure that is.", None),
    Metric(GPU + "time_ratio", _GAUGE, U.RATIO,
           "Estimated share of that minute; spent: computing, waiting, copying, empty.", None, ("spent",)),
    Metric(JOB + "class", _GAUGE, U.NONE, "1: what the job's GPUs on this machine spent the last minute on.", None,
           (*_JOB, "cause")),
    Metric(JOB + "class_confidence_ratio", _GAUGE, U.RATIO, "How sure that is.", None, _JOB),
)
# fmt: on
