"""Metrics: of the agent, of the dashboard, and of the exporters of a training process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stepscope.core.metrics import DefaultSeries, Metric
from stepscope.core.metrics.agent import AGENT_METRICS, FLEET_METRICS, HEALTH_METRICS, JOB_METRICS, TRAINING_METRICS
from stepscope.core.metrics.gpu import FABRIC_METRICS, GPU_METRICS
from stepscope.core.metrics.history import HISTORY_METRICS
from stepscope.core.metrics.host import HOST_METRICS
from stepscope.core.metrics.readings import MissingReason
from stepscope_reference.fields import member_texts
from stepscope_reference.markdown import code, table, text
from stepscope_reference.snapshots import snapshot

SECTIONS: Mapping[str, tuple[Metric, ...]] = {
    "GPUs": GPU_METRICS,
    "Jobs on GPUs": JOB_METRICS,
    "GPU health": HEALTH_METRICS,
    "Fleet class": FLEET_METRICS,
    "Training processes": TRAINING_METRICS,
    "NVSwitches and InfiniBand": FABRIC_METRICS,
    "Host": HOST_METRICS,
    "The agent itself": AGENT_METRICS,
}
"""Heading -> the metrics of the agent's page that it lists."""

_INTRODUCTION = """Every GPU series also has the labels `gpu` and `uuid`; of a MIG instance also `gpu_instance`,
`compute_instance` and `mig_profile`. The unit is the name's ending; ratios are 0 to 1. Where each value comes from, and
when it is missing: [GPU metrics](../explanation/gpu-metrics.md). The last column tells what is on the page
[by default](../guides/agent.md#which-metrics): all series, or those of a state that holds.
"""

_DEFAULTS = {DefaultSeries.NONE: "", DefaultSeries.ALL: "all", DefaultSeries.NONZERO: "if not 0"}

_OTHERS = {
    "dashboard": "Dashboard",
    "training, OpenTelemetry": "OpenTelemetry",
    "training, Weights & Biases": "Weights & Biases",
    "training, MLflow": "MLflow",
}


def metrics() -> str:
    """All metrics by source, with type, labels, meaning and the DCGM field of the same meaning."""
    names = snapshot("metrics")
    meanings = member_texts(MissingReason)
    reasons = [(code(reason), text(meanings[reason.name])) for reason in MissingReason]
    return "\n".join(
        [
            f"{_INTRODUCTION}\n",
            "## Missing values\n\nUnknown is never 0: the series is absent, with one of these reasons in"
            " `stepscope_agent_missing`, `/api/v1/node` and `stepscope agent check`.\n\n"
            f"{table(('reason', 'meaning, and what to do'), reasons)}",
            *(f"## {title}\n\n{_agent_table(of_section)}" for title, of_section in SECTIONS.items()),
            "## Recorder of the metric history\n\nOn its own page, `stepscope history run --listen`.\n\n"
            f"{_history_table()}",
            *(f"## {title}\n\n{_name_table(names[source])}" for source, title in _OTHERS.items()),
        ]
    )


def _agent_table(of_section: Iterable[Metric]) -> str:
    titles = ("metric", "type", "labels", "what", "DCGM field, factor", "by default")
    rows = [
        (code(m.name), m.kind, ", ".join(m.labels), text(m.help), _dcgm(m), _DEFAULTS[m.default]) for m in of_section
    ]
    return table(titles, rows)


def _history_table() -> str:
    rows = [(code(m.name), m.kind, ", ".join(m.labels), text(m.help)) for m in HISTORY_METRICS]
    return table(("metric", "type", "labels", "what"), rows)


def _dcgm(metric: Metric) -> str:
    if metric.dcgm is None:
        return ""
    fields = " / ".join(map(code, dict.fromkeys((metric.dcgm.name, metric.dcgm.new_name))))
    return fields if metric.dcgm.scale == 1 else f"{fields} x {metric.dcgm.scale:g}"


def _name_table(names: Mapping[str, str]) -> str:
    return table(("metric", "what"), [(code(name), text(what)) for name, what in names.items()])
