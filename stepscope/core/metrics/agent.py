"""Metrics of the agent itself, and what it derives: training processes, jobs, fleet classes, health.

Series of a training process carry its run and rank and exist as long as the process; its other facts are labels of
`info` alone. The label of a job is `job_id`, as Prometheus has a `job` of its own. A job's time is wall time
(koku-metrics-operator#938): each second of a device is in one state, and jobs that share a device split it.
"""

from __future__ import annotations

from stepscope.core.metrics import DefaultSeries, Metric, MetricGroup
from stepscope.core.metrics.readings import GPU, HOST

_ALL, _NONZERO = DefaultSeries.ALL, DefaultSeries.NONZERO

AGENT = "stepscope_agent_"
_agent = MetricGroup(AGENT).metric

# fmt: off
AGENT_METRICS: tuple[Metric, ...] = (
    _agent("info", "Version of the agent as a label; always 1.", "version", default=_ALL),
    _agent("collector_up", "1: the collector works. 0: it does not; label reason.", "collector", "reason",
           default=_ALL),
    _agent("collector_duration_seconds", "Duration of a collector's latest collection.", "collector"),
    _agent("collector_age_seconds", "Time since a collector's latest collection ended.", "collector"),
    _agent("collections_total", "Finished collections of a collector.", "collector"),
    _agent("collector_errors_total", "Collections that failed or timed out.", "collector"),
    _agent("collector_readings", "Values of a collector's latest collection.", "collector"),
    _agent("readings_dropped", "Values of a collector's latest collection that are not exported.",
           "collector", "reason"),
    _agent("missing", "Number of devices (GPUs, disks) that lack this metric; metric empty: all metrics.",
           "collector", "metric", "reason"),
    _agent("finding", "Findings of this kind in a collector's latest collection.", "collector", "code", "gpu", "uuid"),
    _agent("sample_age_seconds", "Age of a GPU's newest value.", "collector", "gpu", "uuid", default=_ALL),
    _agent("probe_starts_total", "Probe processes started to read GPUs."),
    _agent("probe_timeouts_total", "Answers of probe processes that timed out."),
    _agent("probe_crashes_total", "Probe processes that crashed."),
    _agent("probes_left_behind", "Killed probe processes that still hang in the kernel.", default=_ALL),
    _agent("log_lines_dropped_total", "Lines that the agent's log did not take: nobody read it, or its disk is full.",
           default=_ALL),
    _agent("otlp_pushes_total", "Pushes to the OTLP endpoint: ok, failed, or skipped as one took too long.",
           "result", default=_ALL),
    _agent("otlp_points_dropped_total", "Values of failed pushes to the OTLP endpoint.", default=_ALL),
    _agent("otlp_push_age_seconds", "Time since the OTLP endpoint took a push, or since the start before the first.",
           default=_ALL),
    _agent("verdict_calls_total", "Calls of the webhook and the command on changes of live verdicts: ok, failed.",
           "target", "result", default=_ALL),
    _agent("kubernetes_writes_total", "Changes of the Kubernetes node, by kind (condition, event) and result.",
           "kind", "result", default=_ALL),
    _agent("kubernetes_events_dropped_total", "Events for Kubernetes that were not sent, as too many came at once.",
           default=_ALL),
    _agent("xids_untold_total", "XIDs that are counted but not logged, as too many came at once."),
)

TRAINING = "stepscope_training_"
LINK = "stepscope_agent_training_"
KINETO = "stepscope_agent_kineto_"

_training, _rank = MetricGroup(TRAINING).metric, MetricGroup(TRAINING, ("run", "rank")).metric
_link, _kineto = MetricGroup(LINK).metric, MetricGroup(KINETO).metric

TRAINING_METRICS: tuple[Metric, ...] = (
    _rank("info", "Process, GPU and mesh (dp=2,tp=4) of a rank as labels; always 1.",
          "pid", "uuid", "local_rank", "world_size", "mesh", "uid", default=_ALL),
    _rank("step", "Latest finished optimizer step, counted from 0.", default=_ALL),
    _rank("step_seconds", "Duration of the latest finished step.", default=_ALL),
    _rank("step_age_seconds", "Time since the latest step ended, or since the start before the first.", default=_ALL),
    _rank("data_wait_seconds", "Time for which the latest step waited for data.", default=_ALL),
    _rank("phase_seconds", "Time of a phase in the latest step.", "phase"),
    _rank("figure", "Loss, tokens and other figures of the latest step that has all of them.", "figure"),
    _rank("capturing", "1: the profiler records the open step, or starts at the next."),
    _rank("heartbeat_age_seconds", "Time since the latest heartbeat of the process; it sends one every second."),
    _training("hang", "1: the run hangs; kind: host, device, desync, unknown.", "run", "kind", default=_ALL),
    _rank("hang_guilty", "1: this rank causes the hang.", default=_ALL),
    _training("nccl_stalled_seconds", "Time for which NCCL RAS reports unequal counts of operations.",
              "run", "communicator", default=_ALL),
    _training("bottleneck_ratio", "Share of training time lost to the live verdict's bottleneck; 0: there is none.",
              "run", "cause", default=_ALL),
    _training("verdict_age_seconds", "Time since the live verdict of the run was worked out.", "run", default=_ALL),
    _link("connections", "Connected training processes."),
    _kineto("processes", "Processes with KINETO_USE_DAEMON=1 that poll the agent."),
    _kineto("rejected_total", "Datagrams to the Kineto socket that were not valid requests."),
    _link("refused_total", "Connections that the agent closed, by reason.", "reason", default=_ALL),
    _link("series_left_out", "Series of a user's training processes beyond the user's budget.", "uid", default=_ALL),
    _link("counters_left_total", "Processes that get no more counters, as they did not read them.", default=_ALL),
    _kineto("refused_total", "Polls of processes beyond the largest number of processes of a user, or of all.",
            default=_ALL),
)

JOB = "stepscope_job_"
_KEY = ("job_kind", "job_id")
JOB_FACTS = ("job_name", "user", "account", "team", "project", "queue", "workload", "array")
_job, _gpu = MetricGroup(JOB, _KEY).metric, MetricGroup(GPU).metric

JOB_METRICS: tuple[Metric, ...] = (
    _job("info", "Name, user and other facts of a job as labels; always 1.", *JOB_FACTS, default=_ALL),
    _gpu("job_info", "Job that has the GPU or MIG instance, as labels; always 1.", *_KEY, "share", "source", "step",
         default=_ALL),
    _gpu("use_state", "1: the GPU or MIG instance is in this state: busy, held_but_idle, free, unattributed, unknown.",
         "state", default=_NONZERO),
    _gpu("use_seconds_total", "Time that the GPU or MIG instance spent in this state.", "state"),
    _job("gpu_seconds_total", "GPU time of a job in this state, by MIG profile.", "mig_profile", "state", default=_ALL),
    _job("sm_utilization_ratio", "Share of time in which kernels of a job's processes ran on the GPU."),
    _job("gpu_memory_bytes", "GPU memory of a job's processes."),
    _job("process_info", "Process of a job that holds the GPU, as a label; always 1.", "pid"),
)

FLEET_METRICS: tuple[Metric, ...] = (
    _gpu("class", "1: the GPU spent the last minute mostly on this. 0: on something else.", "cause", default=_NONZERO),
    _gpu("class_confidence_ratio", "Confidence of the GPU's class.", default=_ALL),
    _gpu("time_ratio", "Estimated share of the last minute; spent: computing, waiting, copying, empty.", "spent",
         default=_ALL),
    _job("class", "1: the job's GPUs on this machine spent the last minute mostly on this.", "cause", default=_NONZERO),
    _job("class_confidence_ratio", "Confidence of the job's class.", default=_ALL),
)
# fmt: on


GPU_HEALTH = GPU + "health"
HOST_HEALTH = HOST + "health"
_PLACE = ("device", "port", "pci_bus_id", "switch")


def _health(prefix: str, what: str, *labels: str) -> tuple[Metric, ...]:
    state, event = MetricGroup(prefix).metric, MetricGroup(prefix, ("code",)).metric
    return (
        state("", f"1: {what} is in this state; unknown is neither healthy nor sick.", "state", default=_NONZERO),
        event("_event", f"1: this health event of {what} is open.", "action", "severity", *labels, default=_ALL),
        event(
            "_event_acknowledged",
            "1: an operator knows of this open health event.",
            "action",
            "severity",
            *labels,
            default=_ALL,
        ),
        event("_events_total", f"Health events of {what}, by code.", *labels, default=_ALL),
    )


HEALTH_METRICS: tuple[Metric, ...] = (
    *_health(GPU_HEALTH, "the GPU"),
    *_health(HOST_HEALTH, "the machine beside its GPUs", *_PLACE),
)
