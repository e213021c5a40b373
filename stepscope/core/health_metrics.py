"""How is health shown? A state set for each GPU and the machine, a series for each open event, and counts."""

from __future__ import annotations

from stepscope.core.gpu_metrics import GPU
from stepscope.core.host_metrics import HOST
from stepscope.core.metrics import Metric, MetricKind, Unit

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
