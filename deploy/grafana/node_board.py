"""Board of single nodes: a line a GPU, with the variables node and GPU."""

from __future__ import annotations

from deploy.grafana.model import Panel, Rows, Variable

UID, TITLE = "stepscope-gpus", "stepscope: GPUs"
_WHOSE = '{instance=~"$instance",gpu=~"$gpu"}'
_HOST = '{instance=~"$instance"}'
_NAME = "{{instance}} GPU {{gpu}} {{mig_profile}}"
VARIABLES = (
    Variable("instance", "Node", "stepscope_gpu_up", "instance"),
    Variable("gpu", "GPU", 'stepscope_gpu_up{instance=~"$instance"}', "gpu"),
)


def _gpu(metric: str) -> str:
    return f"stepscope_gpu_{metric}{_WHOSE}"


def _ratio(title: str, description: str, metric: str) -> Panel:
    return Panel(title, description, "percentunit", ((_gpu(metric), _NAME),), axis_max=1.0)


def _rate(metric: str) -> str:
    return f"rate(stepscope_gpu_{metric}{_WHOSE}[$__rate_interval])"


_EVENTS = (
    f'label_replace({_gpu("health_event")} unless {_gpu("health_event_acknowledged")}, "acknowledged", "no", "", "") '
    f'or label_replace({_gpu("health_event_acknowledged")}, "acknowledged", "yes", "", "")'
)


def _in_and_out(title: str, transmitted: str, received: str) -> Panel:
    queries = ((_gpu(transmitted), f"{_NAME} out"), (f"-{_gpu(received)}", f"{_NAME} in"))
    return Panel(title, "Transmitted above zero, received below.", "Bps", queries)


ROWS: Rows = (
    (
        "Fleet",
        (
            Panel("GPUs up", "GPUs that answer the agent.", "none", ((f"sum({_gpu('up')})", "up"),), "stat", 4, 4),
            Panel(
                "GPUs down",
                "GPUs that do not answer the agent.",
                "none",
                ((f"count({_gpu('up')} == 0) or vector(0)", "down"),),
                "stat",
                4,
                4,
            ),
            Panel(
                "Failed GPUs",
                "GPUs whose health state is `failed`.",
                "none",
                ((f'sum(stepscope_gpu_health{{state="failed",{_WHOSE[1:]}) or vector(0)', "failed"),),
                "stat",
                4,
                4,
            ),
            Panel(
                "Allocated but idle",
                "GPUs that a job holds without running a kernel for minutes.",
                "none",
                ((f'sum(stepscope_gpu_use_state{{state="held_but_idle",{_WHOSE[1:]}) or vector(0)', "idle"),),
                "stat",
                4,
                4,
            ),
            Panel("Power", "Total power draw.", "watt", ((f"sum({_gpu('power_watts')})", "power"),), "stat", 4, 4),
            Panel(
                "Agents down",
                "Node agents that Prometheus cannot scrape.",
                "none",
                (('count(up{job="stepscope"} == 0) or vector(0)', "down"),),
                "stat",
                4,
                4,
            ),
            Panel(
                "Jobs by GPU",
                "Slurm jobs, Kubernetes pods or processes that hold each GPU.",
                "none",
                ((f"stepscope_gpu_job_info{_WHOSE} * on (instance, job_kind, job_id) group_left (job_name, user, team) "
                  "stepscope_job_info", ""),),
                "table",
                24,
            ),
        ),
    ),
    (
        "Utilization",
        (
            Panel(
                "GPUs by bottleneck",
                "Main use of the last minute, classified from counters; docs/explanation/fleet-class.md.",
                "none",
                ((f"sum by (cause) ({_gpu('class')}) > 0", "{{cause}}"),),
                width=12,
            ),
            Panel(
                "GPU time by activity",
                "Estimated shares of time, average of all GPUs.",
                "percentunit",
                ((f"avg by (spent) ({_gpu('time_ratio')})", "{{spent}}"),),
                width=12,
                axis_max=1.0,
            ),
            _ratio("Tensor core activity", "Share of cycles in which a tensor core pipe was active.",
                   "tensor_active_ratio"),
            _ratio("Memory bandwidth", "Share of cycles in which device memory moved data.", "dram_active_ratio"),
            _ratio("SM activity", "Share of SM cycles with a resident warp.", "sm_active_ratio"),
            _ratio("GPU utilization", "Share of time in which any kernel ran; no measure of efficiency.",
                   "utilization_ratio"),
            Panel(
                "Memory used",
                "Share of the GPU's memory in use.",
                "percentunit",
                ((f"{_gpu('memory_used_bytes')} / {_gpu('memory_total_bytes')}", _NAME),),
                axis_max=1.0,
            ),
            _in_and_out("NVLink traffic", "nvlink_transmit_bytes_per_second", "nvlink_receive_bytes_per_second"),
        ),
    ),
    (
        "Power, clocks and temperature",
        (
            Panel(
                "Power",
                "Power draw as a share of the power limit.",
                "percentunit",
                ((f"{_gpu('power_watts')} / {_gpu('power_limit_watts')}", _NAME),),
            ),
            Panel(
                "SM clock",
                "Frequency of the SM clock.",
                "hertz",
                ((_gpu("sm_clock_hertz"), _NAME),),
            ),
            Panel(
                "Throttling",
                "Active throttle reasons, without idle.",
                "none",
                ((f'stepscope_gpu_throttle_reason{{reason!="idle",{_WHOSE[1:]} == 1', f"{_NAME} {{{{reason}}}}"),),
            ),
            Panel("GPU temperature", "Temperature of the GPU die.", "celsius", ((_gpu("temperature_celsius"), _NAME),)),
            Panel("Memory temperature", "Temperature of the device memory.", "celsius",
                  ((_gpu("memory_temperature_celsius"), _NAME),)),
            _in_and_out("PCIe traffic", "pcie_transmit_bytes_per_second", "pcie_receive_bytes_per_second"),
        ),
    ),
    (
        "Health",
        (
            Panel(
                "Open health events",
                "Events found by the agent, with severity, action and whether an operator has acknowledged them.",
                "none",
                ((_EVENTS, ""),),
                "table",
                12,
            ),
            Panel(
                "XIDs",
                "XIDs of the last hour.",
                "none",
                ((f"time() - stepscope_gpu_xid_last_timestamp_seconds{_WHOSE} < 3600", f"{_NAME} XID {{{{xid}}}}"),),
                width=12,
            ),
            Panel(
                "ECC errors per second",
                "A high rate of corrected errors stalls a GPU before it fails.",
                "cps",
                (
                    (_rate("ecc_corrected_errors_total"), f"{_NAME} corrected"),
                    (_rate("ecc_uncorrected_errors_total"), f"{_NAME} uncorrected"),
                ),
            ),
            Panel(
                "NVLink errors per second",
                "CRC errors of flits, and replays.",
                "cps",
                (
                    (_rate("nvlink_crc_flit_errors_total"), f"{_NAME} flits"),
                    (_rate("nvlink_replay_errors_total"), f"{_NAME} replays"),
                ),
            ),
            Panel("PCIe replays per second", "Packets sent again after a transmission error.", "cps",
                  ((_rate("pcie_replays_total"), _NAME),)),
        ),
    ),
    (
        "Host and agent",
        (
            Panel(
                "CPU pressure",
                "Share of time in which at least one thread waited for a core.",
                "percentunit",
                ((f'rate(stepscope_host_pressure_seconds_total{{resource="cpu",share="some",{_HOST[1:]}'
                  "[$__rate_interval])", "{{instance}}"),),
                axis_max=1.0,
            ),
            Panel(
                "Host memory available",
                "Share of host memory available to new allocations.",
                "percentunit",
                ((f"stepscope_host_memory_available_bytes{_HOST} / stepscope_host_memory_total_bytes{_HOST}",
                  "{{instance}}"),),
                axis_max=1.0,
            ),
            Panel(
                "Collectors without data",
                "Collectors that return no data, with the reason.",
                "none",
                ((f"stepscope_agent_collector_up{_HOST} == 0", "{{instance}} {{collector}} {{reason}}"),),
            ),
        ),
    ),
)  # fmt: skip
