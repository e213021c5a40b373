"""What is measured of jobs on GPUs? One row a metric.

The label is `job_id`: Prometheus has a `job` of its own. Time is wall time (koku-metrics-operator#938), each second of
a device in one state; a job that shares a device gets its part of the second, so that jobs never add up to more.
"""

from __future__ import annotations

from stepscope.core.gpu_metrics import GPU
from stepscope.core.metrics import Metric, MetricKind, Unit

JOB = "stepscope_job_"
_KEY = ("job_kind", "job_id")
JOB_FACTS = ("job_name", "user", "account", "team", "project", "queue", "workload", "array")
_GAUGE, _COUNTER = MetricKind.GAUGE, MetricKind.COUNTER

U = Unit
# fmt: off
JOB_METRICS: tuple[Metric, ...] = (
    Metric(JOB + "info", _GAUGE, U.NONE, "1; its labels say what the job is.", None, (*_KEY, *JOB_FACTS)),
    Metric(GPU + "job_info", _GAUGE, U.NONE, "1; its labels say which job has the GPU or MIG instance, and how.", None,
           (*_KEY, "share", "source", "step")),
    Metric(GPU + "use_state", _GAUGE, U.NONE, "1; label state: busy, held_but_idle, free, unattributed, unknown.", None,
           ("state",)),
    Metric(GPU + "use_seconds_total", _COUNTER, U.SECONDS, "Time of the GPU or MIG instance in this state.", None,
           ("state",)),
    Metric(JOB + "gpu_seconds_total", _COUNTER, U.SECONDS,
           "Time for which a job had GPUs, or MIG instances of a profile, in this state.", None,
           (*_KEY, "mig_profile", "state")),
    Metric(JOB + "sm_utilization_ratio", _GAUGE, U.RATIO,
           "Share of time in which a job's kernels ran on the GPU, by its processes.", None, _KEY),
    Metric(JOB + "gpu_memory_bytes", _GAUGE, U.BYTES, "Memory that a job's processes hold on the GPU.", None, _KEY),
    Metric(JOB + "process_info", _GAUGE, U.NONE, "1; its labels say which process of a job holds the GPU.", None,
           (*_KEY, "pid")),
)
# fmt: on
