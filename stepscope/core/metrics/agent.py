"""Metrics of the agent itself, and what it derives: training processes, jobs, fleet classes, health.

Series of a training process have its run and rank, and are there as long as it is; who it is stands on `info` alone.
The label of a job is `job_id`: Prometheus has a `job` of its own. A job's time is wall time
(koku-metrics-operator#938), each second of a device in one state; a job that shares a device gets its part of the
second, so that jobs never add up to more.
"""

from __future__ import annotations

from stepscope.core.metrics import Metric, MetricKind, Unit
from stepscope.core.metrics.gpu import GPU
from stepscope.core.metrics.host import HOST

AGENT = "stepscope_agent_"


def _gauge(name: str, unit: Unit, text: str, *labels: str) -> Metric:
    return Metric(AGENT + name, MetricKind.GAUGE, unit, text, None, labels)


def _count(name: str, unit: Unit, text: str, *labels: str) -> Metric:
    return Metric(AGENT + name, MetricKind.COUNTER, unit, text, None, labels)


U = Unit
# fmt: off
AGENT_METRICS: tuple[Metric, ...] = (
    _gauge("info", U.NONE, "1; its labels say which agent this is.", "version"),
    _gauge("collector_up", U.NONE, "1: the collector answers. 0: it does not; label reason.", "collector", "reason"),
    _gauge("collector_duration_seconds", U.SECONDS, "How long its last collection took.", "collector"),
    _gauge("collector_age_seconds", U.SECONDS, "Time since its last collection ended.", "collector"),
    _count("collections_total", U.NONE, "Collections that ended.", "collector"),
    _count("collector_errors_total", U.NONE, "Times that it failed, or did not answer in time.", "collector"),
    _gauge("collector_readings", U.NONE, "Values of its last collection.", "collector"),
    _gauge("readings_dropped", U.NONE, "Values of its last collection that are not on this page.",
           "collector", "reason"),
    _gauge("missing", U.NONE, "Of how many things (GPUs, disks) this metric is missing; metric empty: all metrics.",
           "collector", "metric", "reason"),
    _gauge("finding", U.NONE, "How many findings of this kind the last collection has.",
           "collector", "code", "gpu", "uuid"),
    _gauge("sample_age_seconds", U.SECONDS, "Age of a GPU's newest value.", "collector", "gpu", "uuid"),
    _count("probe_starts_total", U.NONE, "Processes started to read GPUs."),
    _count("probe_timeouts_total", U.NONE, "Answers of those that did not come in time."),
    _count("probe_crashes_total", U.NONE, "Those that ended without being asked to."),
    _gauge("probes_left_behind", U.NONE, "Those that hang in the kernel though they were killed."),
    _count("xids_untold_total", U.NONE, "XIDs that are counted, but too many at once to be logged."),
)
# fmt: on


TRAINING = "stepscope_training_"
LINK = "stepscope_agent_training_"
KINETO = "stepscope_agent_kineto_"

_RANK = ("run", "rank")


def _of_rank(name: str, unit: Unit, text: str, *labels: str) -> Metric:
    return Metric(TRAINING + name, MetricKind.GAUGE, unit, text, None, (*_RANK, *labels))


def _of_link(name: str, kind: MetricKind, text: str, *labels: str) -> Metric:
    return Metric(LINK + name, kind, Unit.NONE, text, None, labels)


def _of_kineto(name: str, kind: MetricKind, text: str) -> Metric:
    return Metric(KINETO + name, kind, Unit.NONE, text, None, ())


# fmt: off
TRAINING_METRICS: tuple[Metric, ...] = (
    _of_rank("info", U.NONE, "1; its labels say which process this is; mesh as dp=2,tp=4.",
             "pid", "uuid", "local_rank", "world_size", "mesh"),
    _of_rank("step", U.NONE, "Newest finished optimizer step, counted from 0."),
    _of_rank("step_seconds", U.SECONDS, "How long that step took."),
    _of_rank("step_age_seconds", U.SECONDS, "Time since it ended, before the first since the start."),
    _of_rank("data_wait_seconds", U.SECONDS, "Time that it waited for data."),
    _of_rank("phase_seconds", U.SECONDS, "Time of its phases.", "phase"),
    _of_rank("figure", U.NONE, "Loss, tokens and what else training tells of the newest step that has them all.",
             "figure"),
    _of_rank("capturing", U.NONE, "1: the open step is being traced, or is the one before."),
    _of_rank("heartbeat_age_seconds", U.SECONDS, "Time since the process was heard; it speaks once a second."),
    Metric(TRAINING + "hang", MetricKind.GAUGE, Unit.NONE,
           "1: no rank of the run gets on; kind: host, device, desync, unknown.", None, ("run", "kind")),
    _of_rank("hang_guilty", U.NONE, "1: this rank holds the run up."),
    Metric(TRAINING + "nccl_stalled_seconds", MetricKind.GAUGE, Unit.SECONDS,
           "Time for which NCCL's RAS has seen ranks of a communicator stand at different counts.", None,
           ("run", "communicator")),
    _of_link("connections", MetricKind.GAUGE, "Training processes that are connected."),
    _of_kineto("processes", MetricKind.GAUGE, "Processes started with KINETO_USE_DAEMON=1 that ask the agent."),
    _of_kineto("rejected_total", MetricKind.COUNTER, "Datagrams to that socket that were no questions."),
    _of_link("refused_total", MetricKind.COUNTER, "Connections that the agent ended, by why.", "reason"),
)
# fmt: on


JOB = "stepscope_job_"
_KEY = ("job_kind", "job_id")
JOB_FACTS = ("job_name", "user", "account", "team", "project", "queue", "workload", "array")
_GAUGE, _COUNTER = MetricKind.GAUGE, MetricKind.COUNTER


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


_KIND = MetricKind.GAUGE


# fmt: off
FLEET_METRICS: tuple[Metric, ...] = (
    Metric(GPU + "class", _KIND, U.NONE, "1: what the GPU spent the last minute on. 0: it was something else.", None,
           ("cause",)),
    Metric(GPU + "class_confidence_ratio", _KIND, U.RATIO, "How sure that is.", None),
    Metric(GPU + "time_ratio", _KIND, U.RATIO,
           "Estimated share of that minute; spent: computing, waiting, copying, empty.", None, ("spent",)),
    Metric(JOB + "class", _KIND, U.NONE, "1: what the job's GPUs on this machine spent the last minute on.", None,
           (*_KEY, "cause")),
    Metric(JOB + "class_confidence_ratio", _KIND, U.RATIO, "How sure that is.", None, _KEY),
)
# fmt: on


GPU_HEALTH = GPU + "health"
HOST_HEALTH = HOST + "health"
_PLACE = ("device", "port", "pci_bus_id", "switch")


def _rows(prefix: str, what: str, *labels: str) -> tuple[Metric, ...]:
    gauge, counter, none = MetricKind.GAUGE, MetricKind.COUNTER, Unit.NONE
    event = ("code", "action", "severity", *labels)
    return (
        Metric(
            prefix, gauge, none, f"1: this is how {what} is; unknown is neither healthy nor sick.", None, ("state",)
        ),
        Metric(prefix + "_event", gauge, none, f"1: this is wrong with {what} now.", None, event),
        Metric(
            prefix + "_events_total", counter, none, f"Times that it began to be so of {what}.", None, ("code", *labels)
        ),
    )


HEALTH_METRICS: tuple[Metric, ...] = (
    *_rows(GPU_HEALTH, "the GPU"),
    *_rows(HOST_HEALTH, "the machine beside its GPUs", *_PLACE),
)
