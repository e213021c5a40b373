"""GPU metric catalogue follows Prometheus's rules, with the right scales for DCGM fields."""

from __future__ import annotations

import re

import pytest

from stepscope.core.metrics import Metric, MetricKind, Unit
from stepscope.core.metrics.gpu import BY_DCGM_NAME, BY_NAME, GPU_METRICS

ids = pytest.mark.parametrize("metric", GPU_METRICS, ids=lambda metric: metric.name)


@ids
def test_names_keep_the_rules_of_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"stepscope_gpu_[a-z0-9_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    base = metric.name.removesuffix("_total")
    assert base.endswith(f"_{metric.unit}") or metric.unit is Unit.NONE
    units = tuple(f"_{unit}" for unit in Unit if unit is not Unit.NONE)
    assert not base.endswith((*units, "_percent", "_mib")) or metric.unit is not Unit.NONE


@ids
def test_help_is_a_sentence_and_labels_are_lower_snake(metric: Metric) -> None:
    assert metric.help.endswith(".")
    assert "\n" not in metric.help
    assert all(re.fullmatch("[a-z][a-z0-9_]*", label) for label in metric.labels)


def test_no_name_occurs_twice_neither_ours_nor_dcgms() -> None:
    assert len(BY_NAME) == len(GPU_METRICS)
    theirs = [name for metric in GPU_METRICS if metric.dcgm for name in {metric.dcgm.name, metric.dcgm.new_name}]
    assert len(BY_DCGM_NAME) == len(theirs)


@pytest.mark.parametrize(
    ("field", "metric", "theirs", "ours"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", "utilization_ratio", 87, 0.87),
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", "utilization_ratio", 87, 0.87),  # renamed in 4.6, still a percentage
        ("DCGM_FI_PROF_SM_ACTIVE", "sm_active_ratio", 0.87, 0.87),
        ("DCGM_FI_PROF_SM_UTIL_RATIO", "sm_active_ratio", 0.87, 0.87),
        ("DCGM_FI_DEV_FB_USED", "memory_used_bytes", 2, 2 * 1024**2),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "energy_joules_total", 1500, 1.5),
        ("DCGM_FI_DEV_SM_CLOCK", "sm_clock_hertz", 1980, 1.98e9),
        ("DCGM_FI_DEV_POWER_USAGE", "power_watts", 71.7, 71.7),
        ("DCGM_FI_DEV_POWER_VIOLATION", "power_violation_seconds_total", 2e9, 2.0),
        ("DCGM_FI_PROF_PCIE_TX_BYTES", "pcie_transmit_bytes_per_second", 5.0, 5.0),
        ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "nvlink_data_bytes_per_second", 1, 1_024_000),
    ],
)
def test_a_value_of_dcgm_becomes_ours(field: str, metric: str, theirs: float, ours: float) -> None:
    found = BY_DCGM_NAME[field]
    assert found.name == f"stepscope_gpu_{metric}"
    assert found.dcgm is not None
    assert theirs * found.dcgm.scale == pytest.approx(ours)
