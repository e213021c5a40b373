"""A field gives the same metric in all versions' spellings, of the right entity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.dcgm_exporter.page import parse_dcgm_value
from stepscope.core.metrics.gpu import BY_DCGM_NAME
from stepscope.core.metrics.readings import GPU, MissingReason
from tests.collectors.dcgm_exporter.pages import UUIDS, Line, collect, missing, readings, render, values


@pytest.mark.parametrize("field", sorted(BY_DCGM_NAME))
def test_both_names_of_each_field_are_read(field: str) -> None:
    metric = BY_DCGM_NAME[field]
    assert metric.dcgm is not None
    page = collect(render([Line(field, 1)]))
    (value,) = values(page, metric.name.removeprefix(GPU))
    assert value == pytest.approx(metric.dcgm.scale)


@pytest.mark.parametrize(
    ("field", "name", "theirs", "ours"),
    [
        ("dcgm_gpu_utilization", "utilization_ratio", 57, 0.57),
        ("dcgm_fb_used", "memory_used_bytes", 2, 2 * 1024**2),
        ("dcgm_power_usage", "power_watts", "71.5", 71.5),
        ("dcgm_fi_prof_gr_engine_active", "graphics_engine_active_ratio", "0.5", 0.5),
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", "utilization_ratio", 57, 0.57),  # renamed, a percentage still
        ("DCGM_FI_PROF_SM_UTIL_RATIO", "sm_active_ratio", "0.57", 0.57),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "energy_joules_total", 1500, 1.5),
        ("DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES", "nvlink_transmit_bytes_total", 160_000_000_000_000, 1.6e14),
    ],
)
def test_values_are_in_base_units(field: str, name: str, theirs: object, ours: float) -> None:
    assert values(collect(render([Line(field, theirs)])), name) == [ours]


def test_a_field_under_two_names_is_one_value() -> None:
    page = collect(render([Line("DCGM_FI_DEV_GPU_UTIL", 97), Line("DCGM_FI_DEV_GPU_UTIL_RATIO", 97)]))
    assert values(page, "utilization_ratio") == [0.97]


@given(st.integers(0, 2**63 - 17))
def test_whole_numbers_are_what_they_are_but_for_the_blanks(number: int) -> None:
    value = parse_dcgm_value(str(number))
    blanks = {0x7FFFFFF0 + kind for kind in range(4)} | {140737488355328 + kind for kind in range(4)}
    if number in blanks:
        assert isinstance(value, tuple)
    elif number < 9.22e18:
        assert value == float(number)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("9223372036854775792", MissingReason.UNREADABLE),
        ("9223372036854775794", MissingReason.NOT_SUPPORTED),
        ("9223372036854775795", MissingReason.NO_PERMISSION),
        ("9.223372036854776e+18", MissingReason.UNREADABLE),
        ("2147483634", MissingReason.NOT_SUPPORTED),
        ("140737488355330.000000", MissingReason.NOT_SUPPORTED),
        ("140737488355331.0", MissingReason.NO_PERMISSION),
        ("NaN", MissingReason.UNREADABLE),
        ("1_000", MissingReason.UNREADABLE),
        ("+Inf", MissingReason.UNREADABLE),
        ("<<<NOT_SUPPORTED>>>", MissingReason.NOT_SUPPORTED),
        ("ERROR - FAILED TO CONVERT TO STRING", MissingReason.UNREADABLE),
    ],
)
def test_words_for_none(text: str, reason: MissingReason) -> None:
    value = parse_dcgm_value(text)
    assert isinstance(value, tuple)
    assert value[0] is reason


def test_a_memory_at_zero_degrees_is_one_without_a_sensor() -> None:
    page = collect(render([Line("DCGM_FI_DEV_MEMORY_TEMP", 0), Line("DCGM_FI_DEV_GPU_TEMP", 41)]))
    assert values(page, "memory_temperature_celsius") == []
    assert missing(page, "memory_temperature_celsius")[0].reason is MissingReason.NOT_SUPPORTED
    assert values(page, "temperature_celsius") == [41.0]


def test_a_negative_temperature_margin_is_a_value_and_negative_power_is_none() -> None:
    page = collect(render([Line("DCGM_FI_DEV_GPU_TEMP_LIMIT", -3), Line("DCGM_FI_DEV_POWER_USAGE", "-3.0")]))
    assert values(page, "temperature_margin_celsius") == [-3.0]


def test_a_negative_number_that_was_read_as_unsigned() -> None:
    wrapped = 2**32 - 5
    page = collect(render([Line("DCGM_FI_DEV_GPU_TEMP", wrapped), Line("DCGM_FI_DEV_SM_CLOCK", wrapped)]))
    assert values(page, "temperature_celsius") == [-5.0]
    assert values(page, "sm_clock_hertz") == []
    assert missing(page, "sm_clock_hertz")[0].detail == "the page says 4.29497e+09, which is not possible"
    assert values(page, "power_watts") == []


def test_throttle_reasons_are_told_apart() -> None:
    page = collect(render([Line("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0x44)]))
    on = {dict(r.labels)["reason"] for r in readings(page, "throttle_reason") if r.value}
    assert on == {"software_power_cap", "hardware_thermal"}
    assert len(readings(page, "throttle_reason")) == 9


def test_series_of_the_exporter_itself() -> None:
    lines = [
        Line("DCGM_EXP_CLOCK_EVENTS_COUNT", 3, labels={"clock_event": "hw_thermal", "window_size_in_ms": "300000"}),
        Line("DCGM_EXP_GPU_HEALTH_STATUS", 20, labels={"health_error_code": "DCGM_FR_NVLINK_DOWN",
                                                       "health_watch": "NVLINK"}),
        Line("DCGM_EXP_P2P_STATUS", 2, labels={"link_status": "GPUNotSupported", "peer_gpu": "1"}),
        Line("DCGM_EXP_XID_ERRORS_COUNT", 0, labels={"window_size_in_ms": "300000"}),
    ]  # fmt: skip
    page = collect(render(lines))
    assert values(page, "throttle_recent", reason="hardware_thermal", window_seconds="300") == [3.0]
    assert values(page, "dcgm_health_status", watch="nvlink", error="DCGM_FR_NVLINK_DOWN") == [20.0]
    assert values(page, "p2p_status", peer="1", status="GPUNotSupported") == [2.0]
    assert values(page, "xid_recent") == []


def test_errors_of_links_are_told_by_link_and_not_added_to_those_of_all() -> None:
    common = (
        f'gpu="0",gpu_uuid="{UUIDS[0]}",pci_bus_id="00000000:01:00.0",device="nvidia0",model_name="H100",hostname="n"'
    )
    text = render([Line("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 7)]) + "".join(
        f'DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_PER_LINK_TOTAL{{nvlink="{link}",{common}}} {count}\n'
        for link, count in (("0", 3), ("1", 4))
    )
    text += render([Line("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L11", 5)])
    page = collect(text)
    assert values(page, "nvlink_crc_flit_errors_total") == [7.0]
    assert values(page, "nvlink_link_errors_total", kind="crc_flit", link="0", uuid=UUIDS[0]) == [3.0]
    assert values(page, "nvlink_link_errors_total", kind="crc_flit", link="1") == [4.0]
    assert values(page, "nvlink_link_errors_total", kind="replay", link="11") == [5.0]


def test_switches_and_cpus_are_no_gpus() -> None:
    page = collect(
        'DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT{nvswitch="nvswitch0",hostname="n"} 45\n'
        'DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS{nvswitch="nvswitch0",hostname="n"} 20001\n'
        'DCGM_FI_DEV_NVSWITCH_LINK_CRC_ERRORS{nvlink="3",nvswitch="nvswitch0",hostname="n"} 9\n'
        'DCGM_FI_DEV_CPU_POWER_UTIL_CURRENT{cpu="0",Hostname="n"} 120.500000\n'
        'DCGM_FI_DEV_CPU_UTIL_TOTAL{cpucore="17",cpu="0",Hostname="n"} 0.250000\n'
        'DCGM_FI_DEV_GPU_TEMP{cpu="0"} 50\n'
    )
    assert {(r.metric, r.labels): r.value for r in page.readings} == {
        ("stepscope_nvswitch_temperature_celsius", (("switch", "nvswitch0"),)): 45.0,
        ("stepscope_nvswitch_sxid_fatal_last", (("switch", "nvswitch0"),)): 20001.0,
        ("stepscope_nvswitch_link_crc_errors_total", (("link", "3"), ("switch", "nvswitch0"))): 9.0,
        ("stepscope_host_cpu_power_watts", (("cpu", "0"),)): 120.5,
        ("stepscope_host_cpu_utilization_ratio", (("core", "17"), ("cpu", "0"))): 0.25,
    }


def test_mig_uuids_of_old_and_new() -> None:
    old = f'DCGM_FI_DEV_FB_USED{{gpu="0",UUID="MIG-{UUIDS[0]}/7/0"}} 5\n'
    new = render([Line("DCGM_FI_DEV_FB_USED", 6, instance=("1g.10gb", "9"), labels={"dra_mig_device_uuid": "MIG-1-2"})])
    page = collect(old + new)
    assert values(page, "memory_used_bytes", gpu_instance="7") == [5 * 1024**2]
    (reading,) = readings(page, "memory_used_bytes", gpu_instance="9")
    assert dict(reading.labels)["uuid"] == "MIG-1-2"
    assert len(readings(page, "info")) == 1
