"""Every value of a GPU is right and in its base unit, on each kind of GPU."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.collectors.nvml import binding
from stepscope.collectors.nvml.binding import GpuReadings
from stepscope.collectors.nvml.collector import NvmlCollector
from stepscope.core.metrics import MetricKind, Unit
from stepscope.core.metrics.gpu import BY_NAME
from stepscope.core.metrics.readings import GPU, MissingReason, labels_of
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml
from tests.collectors.nvml.reading_of import missing_of, value_of

H100_VALUES = {
    "up": 1,
    "power_watts": 71.722,
    "power_instant_watts": 72.478,
    "power_limit_watts": 700.0,
    "energy_joules_total": 1_234_567.89,
    "sm_clock_hertz": 345e6,
    "sm_clock_max_hertz": 1.98e9,
    "memory_clock_hertz": 2.619e9,
    "temperature_celsius": 34,
    "memory_temperature_celsius": 41,
    "temperature_margin_celsius": 53,
    "temperature_slowdown_celsius": 89,
    "temperature_shutdown_celsius": 92,
    "memory_total_bytes": 81_559 * 1024**2,
    "memory_reserved_bytes": 551 * 1024**2,
    "memory_used_bytes": 480 * 1024**2,
    "memory_free_bytes": (81_559 - 551 - 480) * 1024**2,
    "utilization_ratio": 0.0,
    "nvlink_transmit_bytes_total": 1000 * 1024,
    "nvlink_receive_bytes_total": 2000 * 1024,
    "pcie_link_generation": 5,
    "pcie_link_width_max": 16,
    "ecc_enabled": 1,
    "ecc_lifetime_corrected_errors_total": 3,
    "ecc_uncorrected_errors_total": 0,
    "remapped_rows_corrected_total": 1,
    "row_remap_failed": 0,
    "thermal_violation_seconds_total": 0,
    "mig_enabled": 0,
}


def test_an_h100_tells_everything_in_base_units(nvml: FakeNvml) -> None:
    nvml.add(profiles.h100(0))
    nvml.write()
    collection = NvmlCollector().collect()
    for name, value in H100_VALUES.items():
        assert value_of(collection, name) == value, name
    assert value_of(collection, "throttle_reason", reason="idle") == 1
    assert value_of(collection, "throttle_reason", reason="hardware_thermal") == 0
    assert value_of(collection, "nvlink_links", state="up") == 18
    assert value_of(collection, "fabric_state", state="completed") == 1
    assert value_of(collection, "fabric_health", aspect="bandwidth") == 1
    assert value_of(collection, "row_remap_banks", availability="max") == 2559
    assert value_of(collection, "recovery_action", action="none") == 1
    info = value_of(
        collection, "info", name="NVIDIA H100 80GB HBM3", architecture="hopper", minor_number=7, cuda="13.0"
    )
    assert info == 1
    assert {reading.metric for reading in collection.readings} <= BY_NAME.keys()
    assert all(dict(r.labels)["gpu"] == "0" and dict(r.labels)["uuid"] for r in collection.readings)


def test_what_a_gpu_has_not_is_said_once_and_asked_no_more(nvml: FakeNvml) -> None:
    nvml.add(profiles.h100(0))
    nvml.write()
    collector = NvmlCollector(slow_poll_seconds=0.0)
    for _ in range(3):
        collection = collector.collect()
        assert missing_of(collection, "fan_speed_ratio") == (MissingReason.NOT_SUPPORTED, "")
        assert value_of(collection, "fan_speed_ratio") is None
    nvml.set(0, fan=50)
    nvml.write()
    assert value_of(collector.collect(), "fan_speed_ratio") is None
    assert value_of(NvmlCollector().collect(), "fan_speed_ratio") == 0.5


def test_what_a_gpu_did_not_support_is_asked_again_after_a_minute(nvml: FakeNvml) -> None:
    """ECC that is switched on, or a service of the driver that starts, gives values that were not there before."""
    nvml.add({**profiles.h100(0), "sram_exceeded": None, "fabric_state": None, "field__82": None})
    nvml.write()
    collector = NvmlCollector(slow_poll_seconds=0.0)
    for _ in range(5):
        assert value_of(collector.collect(), "sram_threshold_exceeded") is None
    nvml.set(0, sram_exceeded=1, fabric_state=3, field__82="u 41")
    nvml.write()
    assert value_of(collector.collect(), "sram_threshold_exceeded") is None
    collection = collector.collect()
    assert value_of(collection, "sram_threshold_exceeded") == 1
    assert value_of(collection, "fabric_state", state="completed") == 1
    assert value_of(collection, "memory_temperature_celsius") == 41
    assert missing_of(collection, "sram_threshold_exceeded") is None


def test_an_older_driver_is_asked_in_the_old_way(nvml: FakeNvml) -> None:
    nvml.add(profiles.a100(0))
    nvml.write()
    collector = NvmlCollector()
    for _ in range(2):
        collection = collector.collect()
        assert value_of(collection, "throttle_reason", reason="idle") == 1
        assert missing_of(collection, "throttle_reason") is None
        assert missing_of(collection, "fabric_state") == (MissingReason.NOT_SUPPORTED, "")
    assert value_of(collection, "nvlink_links", state="up") == 12


def test_nvlink_5_counts_bytes_where_nvlink_4_counts_kib(nvml: FakeNvml) -> None:
    nvml.add(profiles.b200(0))
    nvml.write()
    collector = NvmlCollector()
    for _ in range(2):
        collection = collector.collect()
        assert value_of(collection, "nvlink_transmit_bytes_total") == 123456789
        assert value_of(collection, "nvlink_receive_bytes_total") == 987654321
        assert missing_of(collection, "nvlink_crc_flit_errors_total") == (MissingReason.NOT_SUPPORTED, "")
    assert value_of(collection, "nvlink_effective_bit_error_ratio") == 0.0  # 15e-255 stands for none
    assert value_of(collection, "nvlink_symbol_error_ratio") == pytest.approx(3e-12)
    assert value_of(collection, "nvlink_recoveries_total") == 2


@pytest.mark.parametrize(("state", "status", "told"), [(2, 0, "in_progress"), (3, 0, "completed"), (3, 999, "failed")])
def test_a_fabric_that_is_not_there_yet_is_no_healthy_one(nvml: FakeNvml, state: int, status: int, told: str) -> None:
    nvml.add({**profiles.h100(0), "fabric_state": state, "fabric_status": status, "fabric_health": 0b01})
    nvml.write()
    collection = NvmlCollector().collect()
    for known in ("not_started", "in_progress", "completed", "failed"):
        assert value_of(collection, "fabric_state", state=known) == (known == told)
    assert value_of(collection, "fabric_health", aspect="bandwidth") == 0  # degraded: 1 means so
    assert value_of(collection, "fabric_health", aspect="route") is None  # 0: not supported


def test_one_call_that_is_refused_takes_no_other_with_it(nvml: FakeNvml) -> None:
    nvml.add({**profiles.h100(0), "error__nvmlDeviceGetPowerUsage": 4, "field__186": "999"})
    nvml.write()
    collection = NvmlCollector().collect()
    power, instant = missing_of(collection, "power_watts"), missing_of(collection, "power_instant_watts")
    assert power is not None
    assert instant is not None
    assert (power[0], instant[0]) == (MissingReason.NO_PERMISSION, MissingReason.FAILED)
    assert value_of(collection, "temperature_celsius") == 34
    assert value_of(collection, "memory_temperature_celsius") == 41


def test_a_temperature_below_zero_and_numbers_that_cannot_be(nvml: FakeNvml) -> None:
    wrapped = 2**32 - 5
    nvml.add({**profiles.h100(0), "temperature__0": wrapped, "power_mw": wrapped, "clock__1": wrapped})
    nvml.set(0, field__82=f"u {wrapped}", threshold__0=2**31 + 7, pcie_width=wrapped)
    nvml.write()
    collection = NvmlCollector().collect()
    assert value_of(collection, "temperature_celsius") == -5
    assert value_of(collection, "memory_temperature_celsius") == -5
    for name in ("power_watts", "sm_clock_hertz", "temperature_shutdown_celsius", "pcie_link_width"):
        why = missing_of(collection, name)
        assert why is not None, name
        assert (why[0], "which is not possible" in why[1]) == (MissingReason.UNREADABLE, True)


gauges = sorted(name for name, metric in BY_NAME.items() if metric.kind is MetricKind.GAUGE)


@given(name=st.sampled_from(gauges), negative=st.integers(-65_536, -2))
def test_a_negative_number_read_as_unsigned_is_never_a_huge_value(name: str, negative: int) -> None:
    into = GpuReadings(labels_of(gpu=0), 1)
    into.add_raw(name.removeprefix(GPU), negative + 2**32)
    told, unit = into.collection(), BY_NAME[name].unit
    if unit is Unit.CELSIUS and negative > -274:
        assert [reading.value for reading in told.readings] == [negative]
    elif unit is not Unit.BYTES:
        assert [missing.reason for missing in told.missing] == [MissingReason.UNREADABLE]


numbers = st.integers(0, 2**53)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(power=st.integers(0, 10**6), clock=st.integers(0, 5000), used=st.integers(0, 79), kib=numbers, ns=numbers)
def test_scales_hold_for_all_values(nvml: FakeNvml, power: int, clock: int, used: int, kib: int, ns: int) -> None:
    nvml.values["gpus"] = "0"
    nvml.add({**profiles.h100(0), "power_mw": power, "clock__1": clock, "memory_used": used * 1024**3})
    nvml.set(0, **{f"field__138__{2**32 - 1}": f"c {kib}", "field__74": f"c {ns}"})
    nvml.write()
    collector = NvmlCollector()
    collection = collector.collect()
    assert value_of(collection, "power_watts") == pytest.approx(power / 1e3)
    assert value_of(collection, "sm_clock_hertz") == clock * 1e6
    assert value_of(collection, "memory_used_bytes") == used * 1024**3
    assert value_of(collection, "nvlink_transmit_bytes_total") == kib * 1024
    assert value_of(collection, "power_violation_seconds_total") == pytest.approx(ns / 1e9)


raw_numbers = st.floats() | st.integers(-(2**64), 2**65) | st.integers(-2, 200) | st.integers(2**31 - 2, 2**32 + 2)


@given(st.sampled_from([*BY_NAME, GPU + "unknown"]), raw_numbers, st.sampled_from([1.0, 0.01, 1e-3, 1e-9, 1e6, 1024.0]))
def test_numbers_taken_without_all_checks_are_those_that_pass_them(name: str, raw: float, scale: float) -> None:
    added = []
    for first_doubtful in (binding._FIRST_DOUBTFUL, -math.inf):
        into = GpuReadings(labels_of(gpu=0), 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(binding, "_FIRST_DOUBTFUL", first_doubtful)
            into.add_raw(name.removeprefix(GPU), raw, scale)
        added.append(into.collection())
    assert added[0] == added[1]


ratios = sorted(name.removeprefix(GPU) for name, metric in BY_NAME.items() if metric.unit is Unit.RATIO)


@given(name=st.sampled_from(ratios), raw=st.floats(allow_nan=True, allow_infinity=True) | st.integers(0, 2**64))
def test_no_ratio_is_ever_outside_of_0_to_1(name: str, raw: float) -> None:
    into = GpuReadings(labels_of(gpu=0), 1)
    into.add_raw(name, raw, 0.01)
    told = into.collection()
    assert len(told.readings) + len(told.missing) == 1
    for reading in told.readings:
        assert 0.0 <= reading.value <= 1.0
        assert bool(told.findings) == (raw > 100)
    for missing in told.missing:
        assert missing.reason is MissingReason.UNREADABLE
        assert not 0 <= raw <= 100
