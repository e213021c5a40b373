"""What is measured of a machine beside its GPUs? One row a metric: our name, unit and help.

Counters stay counters, in base units: rates are for whoever asks. Values of one process or cgroup have its labels.
"""

from __future__ import annotations

from stepscope.core.metrics import Dcgm, Metric, MetricKind, Unit

HOST = "stepscope_host_"
PROCESS = "stepscope_process_"
CGROUP = "stepscope_cgroup_"
_GAUGE, _COUNTER = MetricKind.GAUGE, MetricKind.COUNTER
_FIELD = "DCGM_FI_DEV_CPU_"


def _row(name: str, kind: MetricKind, unit: Unit, text: str, *labels: str) -> Metric:
    return Metric(name, kind, unit, text, None, labels)


U = Unit
# fmt: off
CPU_METRICS_OF_DCGM: tuple[Metric, ...] = (
    Metric(HOST + "cpu_temperature_celsius", _GAUGE, U.CELSIUS, "Temperature of a Grace CPU.",
           Dcgm(_FIELD + "TEMP_CURRENT", _FIELD + "TEMP_CELSIUS"), ("cpu",)),
    Metric(HOST + "cpu_power_watts", _GAUGE, U.WATTS, "Power of a Grace CPU.",
           Dcgm(_FIELD + "POWER_UTIL_CURRENT", _FIELD + "POWER_WATTS"), ("cpu",)),
    Metric(HOST + "cpu_power_limit_watts", _GAUGE, U.WATTS, "Power limit of a Grace CPU.",
           Dcgm(_FIELD + "POWER_LIMIT", _FIELD + "POWER_LIMIT_WATTS"), ("cpu",)),
    Metric(HOST + "cpu_utilization_ratio", _GAUGE, U.RATIO, "Share of time in which a Grace CPU or core worked.",
           Dcgm(_FIELD + "UTIL_TOTAL", _FIELD + "UTIL_TOTAL"), ("cpu", "core")),  # 0..1: DcgmModuleSysmon.cpp
)
# fmt: on
