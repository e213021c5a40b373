"""Which panels has the Grafana board of GPUs? Writes gpus.json beside: python deploy/grafana/board.py

The board asks for metrics of the node agent alone; a test sees to it that each of them is one, that Prometheus
understands each query, and that the file is what this program writes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("gpus.json")
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24
_WHOSE = '{instance=~"$instance",gpu=~"$gpu"}'
_HOST = '{instance=~"$instance"}'
_NAME = "{{instance}} GPU {{gpu}} {{mig_profile}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title, description: of it.
        unit: Grafana's name of the unit.
        queries: PromQL and legend.
        kind: timeseries, stat, table.
        width, height: in Grafana's columns and rows.
        most: top of the axis; None: as it comes.
    """

    title: str
    description: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    most: float | None = None


def _gpu(metric: str) -> str:
    return f"stepscope_gpu_{metric}{_WHOSE}"


def _ratio(title: str, description: str, metric: str) -> Panel:
    return Panel(title, description, "percentunit", ((_gpu(metric), _NAME),), most=1.0)


def _rate(metric: str) -> str:
    return f"rate(stepscope_gpu_{metric}{_WHOSE}[$__rate_interval])"


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Fleet",
        (
            Panel("GPUs that answer", "", "none", ((f"sum({_gpu('up')})", "up"),), "stat", 4, 4),
            Panel(
                "GPUs that do not", "", "none", ((f"count({_gpu('up')} == 0) or vector(0)", "down"),), "stat", 4, 4
            ),
            Panel(
                "Sick GPUs",
                "Failed by the agent's judgement.",
                "none",
                ((f'sum(stepscope_gpu_health{{state="failed",{_WHOSE[1:]}) or vector(0)', "failed"),),
                "stat",
                4,
                4,
            ),
            Panel(
                "Held and idle",
                "Somebody has them, and no kernel ran for minutes.",
                "none",
                ((f'sum(stepscope_gpu_use_state{{state="held_but_idle",{_WHOSE[1:]}) or vector(0)', "idle"),),
                "stat",
                4,
                4,
            ),
            Panel("Power", "", "watt", ((f"sum({_gpu('power_watts')})", "power"),), "stat", 4, 4),
            Panel(
                "Agents that do not answer",
                "",
                "none",
                (('count(up{job="stepscope"} == 0) or vector(0)', "down"),),
                "stat",
                4,
                4,
            ),
            Panel(
                "Who has which GPU",
                "Of the node agent's own jobs: Slurm, Kubernetes, or processes.",
                "none",
                ((f"stepscope_gpu_job_info{_WHOSE} * on (instance, job_kind, job_id) group_left (job_name, user, team) "
                  "stepscope_job_info", ""),),
                "table",
                24,
            ),
        ),
    ),
    (
        "What the GPUs do",
        (
            Panel(
                "GPUs by what they spent the last minute on",
                "The agent's judgement by counters alone; docs/explanation/fleet-class.md.",
                "none",
                ((f"sum by (cause) ({_gpu('class')}) > 0", "{{cause}}"),),
                width=12,
            ),
            Panel(
                "Where their time went",
                "Estimated shares, all GPUs together.",
                "percentunit",
                ((f"avg by (spent) ({_gpu('time_ratio')})", "{{spent}}"),),
                width=12,
                most=1.0,
            ),
            _ratio("Tensor cores", "Share of cycles in which a tensor core pipe was active.", "tensor_active_ratio"),
            _ratio("Memory traffic", "Share of cycles in which memory moved data.", "dram_active_ratio"),
            _ratio("SMs", "Share of SM cycles with a warp resident.", "sm_active_ratio"),
            _ratio("Utilisation", "Share of time in which any kernel ran; tells nothing of how well.",
                   "utilization_ratio"),
            Panel(
                "Memory used",
                "",
                "percentunit",
                ((f"{_gpu('memory_used_bytes')} / {_gpu('memory_total_bytes')}", _NAME),),
                most=1.0,
            ),
            Panel(
                "NVLink",
                "Out above, in below.",
                "Bps",
                (
                    (_gpu("nvlink_transmit_bytes_per_second"), f"{_NAME} out"),
                    (f"-{_gpu('nvlink_receive_bytes_per_second')}", f"{_NAME} in"),
                ),
            ),
        ),
    ),
    (
        "What slows them",
        (
            Panel(
                "Power of its limit",
                "",
                "percentunit",
                ((f"{_gpu('power_watts')} / {_gpu('power_limit_watts')}", _NAME),),
            ),
            Panel(
                "Clock of the SMs",
                "",
                "hertz",
                ((_gpu("sm_clock_hertz"), _NAME),),
            ),
            Panel(
                "Throttled",
                "Reasons beside idling.",
                "none",
                ((f'stepscope_gpu_throttle_reason{{reason!="idle",{_WHOSE[1:]} == 1', f"{_NAME} {{{{reason}}}}"),),
            ),
            Panel("Temperature", "", "celsius", ((_gpu("temperature_celsius"), _NAME),)),
            Panel("Temperature of the memory", "", "celsius", ((_gpu("memory_temperature_celsius"), _NAME),)),
            Panel(
                "PCIe",
                "Out above, in below.",
                "Bps",
                (
                    (_gpu("pcie_transmit_bytes_per_second"), f"{_NAME} out"),
                    (f"-{_gpu('pcie_receive_bytes_per_second')}", f"{_NAME} in"),
                ),
            ),
        ),
    ),
    (
        "What is wrong with them",
        (
            Panel(
                "Open events",
                "What the agent found and what is to be done.",
                "none",
                ((f"stepscope_gpu_health_event{_WHOSE}", ""),),
                "table",
                12,
            ),
            Panel(
                "XIDs",
                "Within the last hour.",
                "none",
                ((f"time() - stepscope_gpu_xid_last_timestamp_seconds{_WHOSE} < 3600", f"{_NAME} XID {{{{xid}}}}"),),
                width=12,
            ),
            Panel(
                "Memory errors a second",
                "Corrected ones that come fast stall a GPU before it fails.",
                "cps",
                (
                    (_rate("ecc_corrected_errors_total"), f"{_NAME} corrected"),
                    (_rate("ecc_uncorrected_errors_total"), f"{_NAME} uncorrected"),
                ),
            ),
            Panel(
                "NVLink errors a second",
                "",
                "cps",
                (
                    (_rate("nvlink_crc_flit_errors_total"), f"{_NAME} flits"),
                    (_rate("nvlink_replay_errors_total"), f"{_NAME} replays"),
                ),
            ),
            Panel("PCIe replays a second", "", "cps", ((_rate("pcie_replays_total"), _NAME),)),
        ),
    ),
    (
        "Machine and agent",
        (
            Panel(
                "CPU pressure",
                "Share of time in which some thread waited for a core.",
                "percentunit",
                ((f'rate(stepscope_host_pressure_seconds_total{{resource="cpu",share="some",{_HOST[1:]}'
                  "[$__rate_interval])", "{{instance}}"),),
                most=1.0,
            ),
            Panel(
                "Memory that can be had",
                "",
                "percentunit",
                ((f"stepscope_host_memory_available_bytes{_HOST} / stepscope_host_memory_total_bytes{_HOST}",
                  "{{instance}}"),),
                most=1.0,
            ),
            Panel(
                "Sources that give nothing",
                "With the reason.",
                "none",
                ((f"stepscope_agent_collector_up{_HOST} == 0", "{{instance}} {{collector}} {{reason}}"),),
            ),
        ),
    ),
)  # fmt: skip


def board() -> dict[str, Any]:
    """The board as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append({"type": "row", "title": title, "id": len(panels) + 1, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": top, "w": _COLUMNS, "h": 1}})  # fmt: skip
        top, left, height = top + 1, 0, 0
        for panel in row:
            if left + panel.width > _COLUMNS:
                top, left, height = top + height, 0, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return {
        "uid": "stepscope-gpus",
        "title": "stepscope: GPUs",
        "tags": ["stepscope", "gpu"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _panel(panel: Panel) -> dict[str, Any]:
    axis = {"min": 0.0, "max": panel.most} if panel.most is not None else {}
    targets = [
        {
            "refId": chr(ord("A") + place),
            "datasource": _SOURCE,
            "expr": query,
            "legendFormat": legend or "__auto",
            **({"format": "table", "instant": True} if panel.kind == "table" else {}),
        }
        for place, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, **axis}, "overrides": []},
        "targets": targets,
    }


def _variables() -> list[dict[str, Any]]:
    data = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    return [data, _variable("instance", "Machine", "stepscope_gpu_up"),
            _variable("gpu", "GPU", 'stepscope_gpu_up{instance=~"$instance"}')]  # fmt: skip


def _variable(name: str, label: str, series: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({series}, {name})", "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(board(), indent=1) + "\n")
