"""Board of a fleet: counts, quantiles and outliers, with the variables cluster, rack, job and node.

No panel has a line a GPU: with 10,000 of them neither Prometheus nor a reader could use it. The labels `cluster` and
`rack` come from the targets; without them these variables are empty and choose everything.
"""

from __future__ import annotations

from deploy.grafana.model import Panel, Rows, Variable

UID, TITLE = "stepscope-fleet", "stepscope: fleet"
_PLACE = 'cluster=~"$cluster",rack=~"$rack",instance=~"$node"'
_NODE = f"{{{_PLACE}}}"
_JOB = '{cluster=~"$cluster",job_id=~"$job"}'
_CLUSTER = '{cluster=~"$cluster"}'
_OF_JOB = '{__name__=~"stepscope_gpu_(job_info|up)",job_id=~"$job"}'
"""GPUs of the chosen jobs; of all jobs also those without one: an absent label matches `.*`."""
_GPU = "{{instance}} GPU {{gpu}} {{mig_profile}}"
_QUANTILES = (("0.05", "5% lowest"), ("0.5", "median"), ("0.95", "5% highest"))
VARIABLES = (
    Variable("cluster", "Cluster", 'up{job="stepscope"}', "cluster"),
    Variable("rack", "Rack", 'up{job="stepscope",cluster=~"$cluster"}', "rack"),
    Variable("job", "Job", 'stepscope_gpu_job_info{cluster=~"$cluster",rack=~"$rack"}', "job_id"),
    Variable(
        "node",
        "Node",
        '{__name__=~"stepscope_gpu_(job_info|up)",cluster=~"$cluster",rack=~"$rack",job_id=~"$job"}',
        "instance",
    ),
)


def _gpu(metric: str, labels: str = "") -> str:
    """Series of the chosen GPUs."""
    return f"(stepscope_gpu_{metric}{{{labels}{_PLACE}}} and on (instance, uuid) {_OF_JOB})"


def _rate(metric: str) -> str:
    return f"(rate(stepscope_gpu_{metric}{_NODE}[5m]) and on (instance, uuid) {_OF_JOB})"


def _count(title: str, description: str, query: str, unit: str = "none") -> Panel:
    return Panel(title, description, unit, ((query, title),), "stat", 3, 4)


def _quantiles(title: str, description: str, metric: str, unit: str = "percentunit") -> Panel:
    queries = tuple((f"quantile({share}, {_gpu(metric)})", name) for share, name in _QUANTILES)
    return Panel(title, description, unit, queries, axis_max=1.0 if unit == "percentunit" else None)


def _top(title: str, description: str, query: str, unit: str, legend: str = _GPU) -> Panel:
    return Panel(title, description, unit, ((query, legend),), "bargauge", 8, 9)


_MAP = " or ".join(
    f'instance:stepscope_gpu_health:count{{state="{state}",{_PLACE}}} * 0 + {value}'
    for value, state in enumerate(("healthy", "degraded", "unknown", "failed"))
)

ROWS: Rows = (
    (
        "Now",
        (
            _count("Nodes", "Machines with an agent that answers.", f'sum(up{{job="stepscope",{_PLACE}}})'),
            _count("Agents down", "Node agents that do not answer.",
                   f'count(up{{job="stepscope",{_PLACE}}} == 0) or vector(0)'),
            _count("GPUs up", "GPUs that answer their agent.", f"sum({_gpu('up')})"),
            _count("GPUs down", "GPUs that do not answer their agent.", f"count({_gpu('up')} == 0) or vector(0)"),
            _count("Failed GPUs", "GPUs whose health state is `failed`.",
                   "count(" + _gpu("health", 'state="failed",') + " == 1) or vector(0)"),
            _count("Critical events", "Open critical health events, also of agents that do not answer.",
                   f'count(stepscope:health_event:held{{severity="critical",{_PLACE}}}) or vector(0)'),
            _count("Allocated but idle", "GPUs that a job holds without running a kernel for minutes.",
                   "count(" + _gpu("use_state", 'state="held_but_idle",') + " == 1) or vector(0)"),
            _count("Power", "Total power draw.", f"sum({_gpu('power_watts')})", "watt"),
        ),
    ),
    (
        "Health",
        (
            Panel(
                "Nodes by their worst GPU",
                "A field a node; a node whose agent does not answer is `no answer`.",
                "none",
                ((f'max by (instance) ({_MAP} or (up{{job="stepscope",{_PLACE}}} == 0) + 4)', "{{instance}}"),),
                "map",
                24,
                10,
                colors=(
                    (0, "healthy", "green"),
                    (1, "degraded", "yellow"),
                    (2, "unknown", "purple"),
                    (3, "failed", "red"),
                    (4, "no answer", "dark-red"),
                ),
            ),
            Panel(
                "Open health events",
                "Events with severity and action, the first 200.",
                "none",
                ((f'topk(200, stepscope:health_event:held{{severity!="info",{_PLACE}}})', ""),),
                "table",
                16,
                9,
            ),
            _top("Racks with most GPUs that are not healthy", "GPUs that are degraded, failed or unknown.",
                 f'topk(10, sum by (rack) (instance:stepscope_gpu_health:count{{state!="healthy",{_PLACE}}}))', "none",
                 "{{rack}}"),
            Panel(
                "GPUs by health",
                "Number of GPUs in each state.",
                "none",
                (("count by (state) (" + _gpu("health") + " == 1)", "{{state}}"),),
            ),
            Panel(
                "Events by kind",
                "Open events by code.",
                "none",
                ((f"count by (code) (stepscope:health_event:held{_NODE})", "{{code}}"),),
            ),
            Panel(
                "Throttled GPUs",
                "GPUs by active throttle reason, without idle.",
                "none",
                (("count by (reason) (" + _gpu("throttle_reason", 'reason!="idle",') + " == 1)", "{{reason}}"),),
            ),
        ),
    ),
    (
        "Utilization",
        (
            _quantiles("SM activity", "Share of SM cycles with a resident warp: quantiles over GPUs.",
                       "sm_active_ratio"),
            _quantiles("Tensor core activity", "Share of cycles in which a tensor core pipe was active.",
                       "tensor_active_ratio"),
            _quantiles("Memory bandwidth", "Share of cycles in which device memory moved data.", "dram_active_ratio"),
            Panel(
                "GPUs by bottleneck",
                "Main use of the last minute, classified from counters; docs/explanation/fleet-class.md.",
                "none",
                (("count by (cause) (" + _gpu("class") + " == 1)", "{{cause}}"),),
            ),
            Panel(
                "GPU time by activity",
                "Estimated shares of time, average of all GPUs.",
                "percentunit",
                ((f"avg by (spent) ({_gpu('time_ratio')})", "{{spent}}"),),
                axis_max=1.0,
            ),
            Panel(
                "GPUs by use",
                "GPUs that are busy, held without work, free, or of unknown use.",
                "none",
                (("count by (state) (" + _gpu("use_state") + " == 1)", "{{state}}"),),
            ),
        ),
    ),
    (
        "Outliers",
        (
            _top("Less active than their job", "SM activity below the average of the job's GPUs: a straggler, or idle.",
                 'bottomk(10, (max by (cluster, instance, gpu, uuid, job_kind, job_id) (stepscope_gpu_job_info'
                 f'{{share="exclusive",job_id=~"$job",{_PLACE}}}) * on (instance, uuid) group_left () '
                 "stepscope_gpu_sm_active_ratio) - on (cluster, job_kind, job_id) group_left () "
                 "job_id:stepscope_gpu_sm_active_ratio:avg)", "percentunit", "{{instance}} GPU {{gpu}} job {{job_id}}"),
            _top("Lowest clock of busy GPUs", "SM clock as a share of its maximum, of GPUs that are busy.",
                 f"bottomk(10, {_gpu('sm_clock_hertz')} / on (instance, uuid, gpu, mig_profile) "
                 f"stepscope_gpu_sm_clock_max_hertz and on (instance, uuid) stepscope_gpu_utilization_ratio > 0.9)",
                 "percentunit"),
            _top("Hottest GPUs", "Temperature of the GPU die.", f"topk(10, {_gpu('temperature_celsius')})", "celsius"),
            _top("Corrected ECC errors per second", "A high rate stalls a GPU before it fails.",
                 f"topk(10, {_rate('ecc_corrected_errors_total')} > 0)", "cps"),
            _top("NVLink errors per second", "CRC errors of flits, and replays.",
                 f"topk(10, {_rate('nvlink_crc_flit_errors_total')} + "
                 f"on (instance, uuid, gpu) {_rate('nvlink_replay_errors_total')} > 0)", "cps"),
            _top("PCIe replays per second", "Packets sent again after a transmission error.",
                 f"topk(10, {_rate('pcie_replays_total')} > 0)", "cps"),
        ),
    ),
    (
        "Jobs",
        (
            _top("Largest jobs", "GPUs of each job.", f"topk(15, job_id:stepscope_gpus:count{_JOB})", "none",
                 "{{job_id}}"),
            _top("Least active jobs", "Average SM activity of the job's GPUs.",
                 f"bottomk(15, job_id:stepscope_gpu_sm_active_ratio:avg{_JOB})", "percentunit", "{{job_id}}"),
            _top("GPUs held without work", "By job, average of the last 5 minutes.",
                 'topk(15, job_id:stepscope_job_gpu_seconds:rate5m{state="held_but_idle",' + _JOB[1:] + " > 0)", "none",
                 "{{job_id}}"),
            _top("Jobs on GPUs that are not healthy", "GPUs of the job that are degraded, failed or unknown.",
                 'topk(15, sum by (job_id) (job_id:stepscope_gpu_health:count{state!="healthy",' + _JOB[1:] + "))",
                 "none", "{{job_id}}"),
            Panel(
                "Training steps per second",
                "Of runs that use profile().",
                "none",
                ((f"topk(10, run:stepscope_training_steps:rate5m{_CLUSTER})", "{{run}}"),),
            ),
            Panel(
                "Waiting for data",
                "Share of the newest step that the slowest rank waited for data.",
                "percentunit",
                ((f"topk(10, run:stepscope_training_data_wait_ratio:max{_CLUSTER})", "{{run}}"),),
                axis_max=1.0,
            ),
            Panel(
                "Bottlenecks of running jobs",
                "Share of training time lost to the bottleneck, of runs with live_verdict.",
                "percentunit",
                (
                    (
                        f"topk(10, max by (run, cause) (stepscope_training_bottleneck_ratio{_CLUSTER}))",
                        "{{run}} {{cause}}",
                    ),
                ),
                axis_max=1.0,
            ),
        ),
    ),
    (
        "Power and agents",
        (
            Panel("Power by rack", "Power draw of the GPUs, the ten largest.", "watt",
                  ((f"topk(10, sum by (rack) (instance:stepscope_gpu_power_watts:sum{_NODE}))", "{{rack}}"),)),
            _quantiles("Temperature", "Temperature of the GPU die: quantiles over GPUs.", "temperature_celsius",
                       "celsius"),
            Panel(
                "Collectors without data",
                "Number of nodes by collector and reason.",
                "none",
                (('count by (collector, reason) (stepscope_agent_collector_up{reason!="not_installed",'
                  f"{_PLACE}}} == 0)", "{{collector}} {{reason}}"),),
            ),
        ),
    ),
)  # fmt: skip
