"""Health checks: both sides of each threshold, and the action of each event."""

from __future__ import annotations

import pytest

from stepscope.agent.config.settings import HealthThresholds
from stepscope.agent.health.checks.links import pcie_replay_limit
from stepscope.core.hardware.health import Action, HealthState, Severity
from stepscope.core.metrics.readings import HOST, Finding, Missing, MissingReason, labels_of
from tests.agent.health.machines import LABELS, Machine, codes_of

_WARNING, _CRITICAL = Severity.WARNING, Severity.CRITICAL


def _throttled(reason: str) -> dict[str, float | None]:
    return {f"throttle_reason{{reason={reason}}}": 1.0}


@pytest.mark.parametrize(
    ("values", "code", "severity", "action"),
    [
        ({"ecc_uncorrected_errors_total": 1.0}, "ecc_uncorrected", _CRITICAL, Action.RESET_GPU),
        ({"ecc_uncorrected_errors_total": 0.0}, None, None, None),
        ({"row_remap_failed": 1.0}, "row_remap_failed", _CRITICAL, Action.REPLACE),
        ({"row_remap_failed": 0.0}, None, None, None),
        ({"row_remap_pending": 1.0}, "row_remap_pending", _WARNING, Action.RESET_GPU),
        ({"row_remap_pending": 0.0}, None, None, None),
        ({"sram_threshold_exceeded": 1.0}, "sram_threshold", _CRITICAL, Action.REPLACE),
        ({"sram_threshold_exceeded": 0.0}, None, None, None),
        ({"sram_uncorrected_errors_total": 4.0}, "ecc_uncorrected", _CRITICAL, Action.RESET_GPU),
        (
            {"ecc_uncorrected_errors_total": 0.0, "sram_uncorrected_errors_total": 1.0},
            *("ecc_uncorrected", _CRITICAL, Action.RESET_GPU),
        ),
        ({"sram_corrected_errors_total": 12.0}, None, None, None),
        ({"remapped_rows_uncorrected_total": 512.0}, "remapped_rows", _WARNING, Action.REPLACE),
        ({"remapped_rows_uncorrected_total": 511.0}, None, None, None),
        (
            {"retired_pages_corrected_total": 60.0, "retired_pages_uncorrected_total": 3.0},
            *("retired_pages", _CRITICAL, Action.REPLACE),
        ),
        ({"retired_pages_corrected_total": 60.0, "retired_pages_uncorrected_total": 2.0}, None, None, None),
        ({"retired_pages_corrected_total": 0.0, "retired_pages_uncorrected_total": 16.0}, None, None, None),
        ({"retired_pages_pending": 1.0}, "retired_pages_pending", _WARNING, Action.RESET_GPU),
        ({"nvlink_effective_bit_error_ratio": 1.1e-12}, "nvlink_bit_errors", _CRITICAL, Action.RUN_DIAGNOSTICS),
        ({"nvlink_effective_bit_error_ratio": 1e-12}, None, None, None),
        ({"nvlink_effective_bit_error_ratio": 0.0, "nvlink_symbol_error_ratio": 0.0}, None, None, None),
        ({"nvlink_symbol_error_ratio": 15e-255}, None, None, None),  # zero, as it is written
        ({"nvlink_symbol_error_ratio": 15e-238}, None, None, None),  # and as Blackwell's sum of links has it
        ({"nvlink_symbol_error_ratio": 15e-237}, "nvlink_bit_errors", _CRITICAL, Action.RUN_DIAGNOSTICS),
        ({"temperature_margin_celsius": 0.0}, "temperature_margin", _WARNING, Action.CHECK_THERMALS),
        ({"temperature_margin_celsius": 1.0}, None, None, None),
        ({"recovery_action{action=none}": 1.0}, None, None, None),
        ({"recovery_action{action=gpu_reset}": 1.0}, "recovery_action", _CRITICAL, Action.RESET_GPU),
        ({"recovery_action{action=node_reboot}": 1.0}, "recovery_action", _CRITICAL, Action.REBOOT),
        ({"recovery_action{action=drain_and_reset}": 1.0}, "recovery_action", _CRITICAL, Action.DRAIN),
        ({"recovery_action{action=drain_p2p}": 1.0}, "recovery_action", _WARNING, Action.DRAIN),
        ({"recovery_action{action=action_9}": 1.0}, "recovery_action", _CRITICAL, Action.CONTACT_SUPPORT),
        ({"fabric_state{state=completed}": 1.0}, None, None, None),
        ({"fabric_state{state=not_supported}": 1.0}, None, None, None),  # a GPU without NVSwitches
        ({"fabric_state{state=in_progress}": 1.0}, "fabric_state", _WARNING, Action.RESTART_FABRIC_MANAGER),
        ({"fabric_state{state=not_started}": 1.0}, "fabric_state", _CRITICAL, Action.RESTART_FABRIC_MANAGER),
        ({"fabric_state{state=failed}": 1.0}, "fabric_state", _CRITICAL, Action.RESTART_FABRIC_MANAGER),
        ({"fabric_health{aspect=route}": 0.0}, "fabric_unhealthy", _CRITICAL, Action.RESTART_FABRIC_MANAGER),
        ({"fabric_health{aspect=bandwidth}": 0.0}, "fabric_unhealthy", _CRITICAL, Action.RESTART_FABRIC_MANAGER),
        ({"fabric_health{aspect=route_recovery}": 0.0}, "fabric_unhealthy", _WARNING, Action.RESTART_FABRIC_MANAGER),
        ({"fabric_health{aspect=route}": 1.0}, None, None, None),
        ({"fabric_health{aspect=no_partition}": 0.0}, "fabric_unhealthy", _CRITICAL, Action.RESTART_FABRIC_MANAGER),
        ({"fabric_health{aspect=configuration}": 0.0}, "fabric_unhealthy", _CRITICAL, Action.RESTART_FABRIC_MANAGER),
        ({"fabric_health{aspect=summary}": 0.0}, "fabric_unhealthy", _CRITICAL, Action.RESTART_FABRIC_MANAGER),
        ({"fabric_health{aspect=capacity}": 0.0}, "fabric_unhealthy", _WARNING, Action.RESTART_FABRIC_MANAGER),
        (
            {"fabric_health{aspect=route_recovery}": 0.0, "fabric_health{aspect=summary}": 0.0},
            *("fabric_unhealthy", _WARNING, Action.RESTART_FABRIC_MANAGER),  # the summary says no more than the aspect
        ),
        ({"dcgm_health_status{watch=mem,error=DBE}": 20.0}, "dcgm_health", _CRITICAL, Action.RUN_DIAGNOSTICS),
        ({"dcgm_health_status{watch=pcie,error=}": 10.0}, "dcgm_health", _WARNING, Action.RUN_DIAGNOSTICS),
        ({"dcgm_health_status{watch=pcie,error=}": 0.0}, None, None, None),
        ({"up": 0.0, "up{reason=gone}": 0.0}, "gpu_lost", _CRITICAL, Action.REBOOT),
        ({"up": 0.0, "up{reason=timed_out}": 0.0}, "gpu_hung", _CRITICAL, Action.REBOOT),
        ({"up": 0.0, "up{reason=failed}": 0.0}, "gpu_unreadable", _CRITICAL, Action.RUN_DIAGNOSTICS),
        ({"up": 0.0, "up{reason=no_permission}": 0.0}, None, None, None),
        ({"up": 1.0}, None, None, None),
    ],
)
def test_a_state_on_each_side_of_its_threshold(
    values: dict[str, float | None], code: str | None, severity: Severity | None, action: Action | None
) -> None:
    machine = Machine()
    if any(name.startswith("up{") for name in values):
        machine.set({"up": None})
        values = {name: value for name, value in values.items() if name != "up"}
    machine.set(values)
    machine.looks(20)
    assert [(one.code, one.severity, one.action) for one in machine.open()] == (
        [(code, severity, action)] if code else []
    )
    if code:
        state = HealthState.FAILED if severity is _CRITICAL else HealthState.DEGRADED
        assert machine.health().state is state
        assert machine.health().reason == machine.open()[0].message
        assert machine.open()[0].since_start


_FAILS, _WARNS = "dcgm_health_status{watch=nvlink,error=DCGM_FR_NVLINK_DOWN}", "dcgm_health_status{watch=mem,error=}"


@pytest.mark.parametrize(
    ("model", "values", "severity"),
    [
        ("NVIDIA L40S", {_FAILS: 20.0}, Severity.INFO),
        ("NVIDIA L40S", {"dcgm_health_status{watch=nvswitch_fatal,error=}": 20.0}, Severity.INFO),
        ("NVIDIA L40S", {_FAILS: 20.0, _WARNS: 10.0}, _WARNING),  # the other watch's
        ("NVIDIA L40S", {_FAILS: 0.0}, None),
        ("NVIDIA H100 PCIe", {_FAILS: 20.0}, _WARNING),  # a bridge may be there
        ("NVIDIA H100 PCIe", {_FAILS: 20.0, "nvlink_up{link=3}": 1.0}, _CRITICAL),
        ("NVIDIA H100 80GB HBM3", {_FAILS: 20.0}, _CRITICAL),
        ("NVIDIA H100 80GB HBM3", {_FAILS: 10.0}, _WARNING),
        ("NVIDIA X1000", {_FAILS: 20.0}, _WARNING),
        ("NVIDIA X1000", {_FAILS: 20.0, "nvlink_up{link=3}": 1.0}, _CRITICAL),
        ("", {_FAILS: 20.0}, _WARNING),
        ("NVIDIA L40S", {"dcgm_health_status{watch=mem,error=DBE}": 20.0}, _CRITICAL),
    ],
)
def test_dcgm_s_watch_of_nvlink_is_a_fault_where_the_model_has_nvlink(
    model: str, values: dict[str, float | None], severity: Severity | None
) -> None:
    """NVIDIA/NVSentinel#1481."""
    machine = Machine()
    if model:
        machine.set({f"info{{name={model}}}": 1.0})
    machine.set(values)
    machine.looks(20)
    assert [(one.code, one.severity) for one in machine.open()] == ([("dcgm_health", severity)] if severity else [])
    if severity is Severity.INFO:
        assert machine.health().state is HealthState.HEALTHY
        assert machine.open()[0].message.endswith("not a fault: NVIDIA L40S has no NVLink")


@pytest.mark.parametrize(
    ("name", "a_minute", "code", "severity"),
    [
        ("ecc_corrected_errors_total", 60.0, "ecc_corrected_rate", _WARNING),
        ("ecc_corrected_errors_total", 59.0, None, None),
        ("ecc_corrected_errors_total", 60_000.0, "ecc_corrected_rate", _CRITICAL),
        ("ecc_corrected_errors_total", 59_999.0, "ecc_corrected_rate", _WARNING),
        ("nvlink_crc_flit_errors_total", 60.0, "nvlink_crc_errors", _WARNING),
        ("nvlink_crc_flit_errors_total", 59.0, None, None),
        ("nvlink_crc_data_errors_total", 6000.0, "nvlink_crc_errors", _CRITICAL),
        ("nvlink_crc_data_errors_total", 5999.0, "nvlink_crc_errors", _WARNING),
        ("nvlink_replay_errors_total", 1.0, "nvlink_replays", _WARNING),
        ("nvlink_recovery_errors_total", 1.0, "nvlink_recoveries", _CRITICAL),
        ("nvlink_recoveries_total", 1.0, "nvlink_recoveries", _CRITICAL),
        ("nvlink_recoveries_failed_total", 1.0, "nvlink_recoveries", _CRITICAL),
        ("nvlink_receive_errors_total", 1.0, "nvlink_errors", _CRITICAL),
        ("nvlink_integrity_errors_total", 1.0, "nvlink_errors", _CRITICAL),
        ("nvlink_integrity_errors_total", 0.0, None, None),
        ("nvlink_crc_errors_total", 60.0, "nvlink_crc_errors", _WARNING),
        ("nvlink_crc_errors_total", 59.0, None, None),
        ("nvlink_malformed_packets_total", 1.0, "nvlink_errors", _CRITICAL),
        ("nvlink_dropped_packets_total", 1.0, "nvlink_errors", _CRITICAL),
        ("nvlink_remote_errors_total", 1.0, "nvlink_errors", _CRITICAL),
        ("nvlink_general_errors_total", 1.0, "nvlink_errors", _CRITICAL),
        ("nvlink_effective_errors_total", 1.0, "nvlink_errors", _CRITICAL),
        ("nvlink_symbol_errors_total", 1.0, "nvlink_errors", _CRITICAL),
        ("nvlink_link_errors_total{kind=replay}", 1.0, "nvlink_replays", _WARNING),  # DCGM's, without a link
        ("nvlink_link_errors_total{kind=recovery}", 1.0, "nvlink_recoveries", _CRITICAL),
        ("thermal_violation_seconds_total", 0.5, "thermal_violation", _WARNING),
        ("thermal_violation_seconds_total", 0.0, None, None),
        ("power_violation_seconds_total", 60.0, None, None),  # at its power limit: as it is meant to run
        ("retired_pages_uncorrected_total", 2.0, "retired_pages", _CRITICAL),  # 16 and 2 of them this week
        ("retired_pages_uncorrected_total", 1.0, None, None),
    ],
)
def test_a_counter_on_each_side_of_its_rate(
    name: str, a_minute: float, code: str | None, severity: Severity | None
) -> None:
    machine = Machine()
    machine.set({"retired_pages_corrected_total": 0.0, "retired_pages_uncorrected_total": 14.0})
    machine.set({name: machine.gpus[0].get(name, 1e6)})
    machine.look()
    times = 1 if a_minute < 6 else 6
    machine.grow(name, a_minute / times, times=times)
    assert [(one.code, one.severity) for one in machine.open()] == ([(code, severity)] if code else [])
    assert not [one for one in machine.open() if one.since_start]  # its counter was seen to move


@pytest.mark.parametrize(
    ("links", "where"),
    [
        ({3: 10.0}, " (link 3)"),
        ({3: 10.0, 11: 6.0, 7: 4.0}, " (links 3, 11)"),  # link 7 has less than half of the worst
        (dict.fromkeys(range(18), 1.0), " (18 links)"),
        ({}, ""),
    ],
)
def test_the_links_with_the_errors_are_named(links: dict[int, float], where: str) -> None:
    """Counts of links appear with their first error."""
    machine = Machine()
    machine.set({"nvlink_recovery_errors_total": 0.0})
    machine.look()
    for times in range(1, 4):
        machine.set({"nvlink_recovery_errors_total": 10.0 * times})
        machine.set({f"nvlink_link_errors_total{{kind=recovery,link={link}}}": n * times for link, n in links.items()})
        machine.look()
    (event,) = machine.open()
    assert event.message == f"NVLink: 30 recoveries of a link in a minute{where}"


def test_the_same_errors_counted_twice_are_one_rate() -> None:
    """Fields 38 and 45 of all links, and 163 of each."""
    machine = Machine()
    names = ("nvlink_crc_flit_errors_total", "nvlink_crc_data_errors_total", "nvlink_crc_errors_total")
    machine.set(dict.fromkeys(names, 0.0))
    machine.look()
    for times in range(1, 7):
        machine.set(dict.fromkeys(names, 200.0 * times))
        machine.look()
    (event,) = machine.open()
    assert event.value == pytest.approx(40.0)


def test_uncorrected_errors_on_the_die_are_said_to_be_there() -> None:
    machine = Machine()
    machine.set({"ecc_uncorrected_errors_total": 2.0, "sram_uncorrected_errors_total": 2.0})
    machine.looks(3)
    assert (
        machine.open()[0].message
        == "2 memory errors on the die (SRAM) could not be corrected since the driver was loaded"
    )


def test_what_counters_say_while_ecc_is_off_is_no_event() -> None:
    machine = Machine()
    left_over = {
        "ecc_uncorrected_errors_total": 3.0,
        "sram_uncorrected_errors_total": 3.0,
        "ecc_corrected_errors_total": 9e9,
        "sram_threshold_exceeded": 1.0,
    }
    machine.set({"ecc_enabled": 0.0, **left_over})
    assert not machine.looks(5)
    machine.grow("ecc_corrected_errors_total", 1e6)
    assert not machine.changes
    machine.set({"ecc_enabled": 1.0, **dict.fromkeys(left_over, 0.0), "ecc_corrected_errors_total": 2e10})
    assert not machine.looks(5)  # no growth of a count of before
    machine.set({"sram_uncorrected_errors_total": 1.0})
    machine.looks(3)
    assert codes_of(machine.changes) == ["ecc_uncorrected"]


def test_events_of_memory_errors_end_when_ecc_is_turned_off() -> None:
    machine = Machine()
    machine.set({"ecc_enabled": 1.0, "sram_uncorrected_errors_total": 2.0, "ecc_corrected_errors_total": 0.0})
    machine.grow("ecc_corrected_errors_total", 1e6)
    assert sorted(codes_of(machine.open())) == ["ecc_corrected_rate", "ecc_uncorrected"]
    machine.set({"ecc_enabled": 0.0})
    assert {one.code for one in machine.look() if one.ended_ns} == {"ecc_corrected_rate", "ecc_uncorrected"}
    assert machine.health().state is HealthState.HEALTHY


def test_old_errors_of_a_counter_are_no_event() -> None:
    machine = Machine()
    machine.set(dict.fromkeys(("nvlink_recoveries_total", "pcie_replays_total", "ecc_corrected_errors_total"), 1e9))
    assert not machine.looks(10)
    assert machine.health().state is HealthState.HEALTHY


@pytest.mark.parametrize(
    ("generation", "lanes", "limit"),
    [(1, 16, 3), (2, 16, 5), (3, 16, 8), (4, 16, 16), (5, 16, 31), (6, 16, 62), (4, 8, 8)],
)
def test_pcie_replays_by_generation_and_width(generation: int, lanes: int, limit: int) -> None:
    assert pcie_replay_limit(generation, lanes) == limit
    for growth, is_bad in ((limit, False), (limit + 1, True)):
        machine = Machine()
        machine.set(
            {
                "pcie_replays_total": 7.0,
                "pcie_link_generation": 1.0,  # it rests
                "pcie_link_generation_max": float(generation),
                "pcie_link_width": float(lanes),
                "pcie_link_width_max": float(lanes),
            }
        )
        machine.look()
        machine.grow("pcie_replays_total", float(growth), times=1)
        assert machine.codes() == (["pcie_replays"] if is_bad else [])


def test_pcie_replays_of_an_unknown_link_have_the_highest_limit() -> None:
    machine = Machine()
    machine.set({"pcie_replays_total": 7.0})
    machine.look()
    machine.grow("pcie_replays_total", 62.0, times=1)
    assert machine.codes() == []
    machine.grow("pcie_replays_total", 1.0, times=1)
    assert machine.codes() == ["pcie_replays"]


_LINK: dict[str, float | None] = {
    "pcie_link_generation": 1.0,
    "pcie_link_width": 16.0,
    "pcie_link_generation_max": 5.0,
    "pcie_link_width_max": 16.0,
}


def test_a_slow_pcie_link_counts_under_load_only() -> None:
    machine = Machine()
    machine.set({**_LINK, "utilization_ratio": 0.0})
    assert not machine.looks(30)
    machine.set({"utilization_ratio": 1.0})
    assert not machine.looks(3)
    machine.looks(2)
    (event,) = machine.open()
    assert (event.code, event.severity, event.action) == ("pcie_downgrade", _WARNING, Action.CHECK_MECHANICALS)
    assert event.value == pytest.approx(1 / 16)
    assert "generation 1 x16 under load" in event.message
    machine.set({"utilization_ratio": 0.0})
    assert not machine.looks(10)  # idle again: it may be slow, which proves nothing
    assert machine.codes() == ["pcie_downgrade"]
    machine.set({"pcie_link_generation": 5.0})
    machine.looks(8)
    assert machine.codes() == []


def test_a_pcie_link_is_measured_against_what_gpu_and_slot_can_both_do() -> None:
    machine = Machine()
    machine.set({**_LINK, "pcie_link_generation": 4.0, "pcie_link_generation_max": 4.0, "utilization_ratio": 1.0})
    assert not machine.looks(30)  # a generation 5 GPU in a generation 4 slot
    machine.set({"pcie_link_width": 8.0})
    machine.looks(10)
    assert machine.codes() == ["pcie_downgrade"]


def test_a_pcie_link_whose_maximum_width_is_0_proves_nothing() -> None:
    machine = Machine()
    machine.set({**_LINK, "pcie_link_width": 0.0, "pcie_link_width_max": 0.0, "utilization_ratio": 1.0})
    assert not machine.looks(30)
    assert "pcie_downgrade" in machine.health().unchecked


def test_a_pcie_link_without_a_load_that_is_known_proves_nothing() -> None:
    machine = Machine()
    machine.set(_LINK)
    assert not machine.looks(30)
    assert "pcie_downgrade" in machine.health().unchecked


@pytest.mark.parametrize(
    ("reason", "action"),
    [
        ("hardware_slowdown", Action.RUN_DIAGNOSTICS),
        ("hardware_thermal", Action.CHECK_THERMALS),
        ("hardware_power_brake", Action.CHECK_MECHANICALS),
    ],
)
def test_a_slowdown_by_the_hardware_in_6_of_10_minutes(reason: str, action: Action) -> None:
    machine = Machine()
    on, off = _throttled(reason), {f"throttle_reason{{reason={reason}}}": 0.0}
    for _ in range(5):
        machine.set(on)
        machine.look(30)
        machine.set(off)
        machine.look(30)
    assert machine.codes() == []
    machine.set(on)
    machine.look(30)
    (event,) = machine.open()
    assert (event.code, event.severity, event.action) == ("hardware_slowdown", _WARNING, action)
    assert event.value == pytest.approx(0.6)
    machine.set(off)
    machine.looks(60, 30)
    assert machine.codes() == []


def test_a_slowdown_that_lasts_is_known_within_a_minute() -> None:
    machine = Machine()
    machine.look(1)
    machine.set(_throttled("hardware_power_brake"))
    machine.looks(29, 1)
    assert machine.codes() == []
    machine.looks(2, 1)
    (event,) = machine.open()
    assert (event.code, event.action) == ("hardware_slowdown", Action.CHECK_MECHANICALS)
    assert event.message == "the clocks have been lowered by the power supply's brake for 30 s without a break"
    machine.set({"throttle_reason{reason=hardware_power_brake}": 0.0})
    machine.looks(40)
    assert machine.codes() == []


def test_samples_of_a_slowdown_that_are_far_apart_do_not_show_that_it_lasted() -> None:
    machine = Machine()
    machine.set(_throttled("hardware_thermal"))
    machine.looks(5, 70)
    assert machine.codes() == []


@pytest.mark.parametrize(("celsius", "is_bad"), [(92.0, False), (93.0, True), (95.0, True)])
def test_without_a_margin_the_two_temperatures_tell_it(celsius: float, is_bad: bool) -> None:
    """Before Ada the driver reports none."""
    machine = Machine()
    machine.set({"temperature_celsius": celsius, "temperature_slowdown_celsius": 93.0})
    machine.looks(3)
    assert machine.codes() == (["temperature_margin"] if is_bad else [])
    machine.set({"temperature_margin_celsius": 20.0})
    machine.looks(20)
    assert machine.codes() == []


def test_the_softwares_power_cap_is_never_a_fault() -> None:
    machine = Machine()
    machine.set({**_throttled("software_power_cap"), "throttle_reason{reason=hardware_slowdown}": 0.0})
    machine.set({"power_violation_seconds_total": 0.0})
    assert not machine.grow("power_violation_seconds_total", 10.0, times=200)
    assert machine.health().state is HealthState.HEALTHY


def test_an_nvlink_that_was_up_is_missed_one_that_never_was_is_not() -> None:
    machine = Machine()
    machine.set({"nvlink_up{link=0}": 1.0, "nvlink_up{link=1}": 1.0, "nvlink_up{link=2}": 0.0})
    assert not machine.looks(10)
    machine.set({"nvlink_up{link=1}": 0.0})
    machine.looks(4)
    (event,) = machine.open()
    assert (event.code, event.message) == ("nvlink_down", "NVLink 1 is down and was up before")
    assert not event.since_start


@pytest.mark.parametrize(
    ("finding", "code", "action"),
    [
        ("profiling_silent", "profiling_silent", Action.RESTART_COLLECTOR),
        ("busy_without_process", "busy_without_process", Action.RESET_GPU),
        ("utilization_stuck", "busy_without_process", Action.RESET_GPU),
        ("clamped", None, None),
    ],
)
def test_contradictions(finding: str, code: str | None, action: Action | None) -> None:
    machine = Machine()
    machine.findings.append(Finding(finding, "what was seen", LABELS, 5))
    machine.looks(10)
    assert [(one.code, one.action) for one in machine.open()] == ([(code, action)] if code else [])
    machine.findings.clear()
    machine.looks(10)
    assert machine.codes() == []


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (MissingReason.VERSION_MISMATCH, "driver_mismatch"),
        (MissingReason.TIMED_OUT, "driver_hung"),
        (MissingReason.FAILED, "driver_failed"),
        (MissingReason.NOT_INSTALLED, "driver_gone"),
        (MissingReason.NOT_YET, None),
    ],
)
def test_a_driver_that_cannot_be_used(reason: MissingReason, code: str | None) -> None:
    machine = Machine()
    machine.look()
    machine.gpus.clear()
    machine.missing.append(Missing("", (), reason, "why"))
    machine.looks(5)
    assert machine.codes() == ([code] if code else [])
    assert machine.health().state is HealthState.UNKNOWN  # of the GPUs nothing is known
    machine.missing.clear()
    machine.gpus[0] = {"up": 1.0}
    machine.looks(8)
    assert machine.codes() == []


def test_a_machine_that_never_had_a_driver_misses_none() -> None:
    machine = Machine(0)
    machine.missing.append(Missing("", (), MissingReason.NOT_INSTALLED, "no driver"))
    assert not machine.looks(20)
    assert machine.machine().state is HealthState.UNKNOWN


@pytest.mark.parametrize(("expected", "is_bad"), [(0, False), (2, False), (3, True)])
def test_the_number_of_gpus(expected: int, is_bad: bool) -> None:
    machine = Machine(2, thresholds=HealthThresholds(expected_gpus=expected))
    machine.looks(10)
    assert machine.codes() == (["gpu_count"] if is_bad else [])
    if is_bad:
        assert machine.open()[0].message == "the driver knows 2 of 3 GPUs"
        assert machine.machine().state is HealthState.FAILED


def test_the_driver_of_expected_gpus_that_does_not_load_is_missed_after_a_minute() -> None:
    machine = Machine(0, thresholds=HealthThresholds(expected_gpus=8))
    machine.missing.append(Missing("", (), MissingReason.NOT_YET, "the driver has not answered yet"))
    machine.looks(20)
    machine.missing[:] = [Missing("", (), MissingReason.NOT_INSTALLED, "no driver")]
    machine.looks(6)
    assert machine.codes() == []  # it may still start
    machine.looks(1)
    (event,) = machine.open()
    assert (event.code, event.severity, event.action) == ("gpu_count", Severity.CRITICAL, Action.RELOAD_DRIVER)
    assert event.message == "0 of 8 GPUs are known, and no driver can be asked: no driver"
    assert machine.machine().state is HealthState.FAILED
    machine.missing.clear()
    machine.gpus = {index: {"up": 1.0} for index in range(8)}
    machine.looks(8)
    assert machine.codes() == []
    assert machine.machine().state is HealthState.HEALTHY


def test_a_driver_that_is_slow_to_start_is_no_missing_gpu() -> None:
    machine = Machine(0, thresholds=HealthThresholds(expected_gpus=2))
    machine.missing.append(Missing("", (), MissingReason.NOT_YET, "the driver has not answered yet"))
    machine.looks(5)
    machine.missing.clear()
    machine.gpus = {index: {"up": 1.0} for index in range(2)}
    assert not machine.looks(20)


def test_a_driver_that_hangs_from_the_start_is_one_event_whatever_is_expected() -> None:
    machine = Machine(0, thresholds=HealthThresholds(expected_gpus=8))
    machine.missing.append(Missing("", (), MissingReason.TIMED_OUT, "the driver does not answer"))
    machine.looks(20)
    assert machine.codes() == ["driver_hung"]


@pytest.mark.parametrize(("expected", "codes"), [(0, []), (2, []), (3, ["gpu_count"])])
def test_gpus_of_another_source_are_no_driver_that_is_gone(expected: int, codes: list[str]) -> None:
    machine = Machine(2, source="dcgm-exporter", thresholds=HealthThresholds(expected_gpus=expected))
    machine.driver_missing.append(Missing("", (), MissingReason.NOT_INSTALLED, "no driver"))
    machine.looks(20)
    assert machine.codes() == codes


_PORT = labels_of(device="mlx5_0", port=1)
_UP, _ERRORS = (HOST + "infiniband_up", _PORT), HOST + "infiniband_errors_total"
_DOWNED = (_ERRORS, labels_of(device="mlx5_0", port=1, kind="link_downed"))


def test_an_infiniband_port_that_was_up_is_missed_until_it_is_up_for_ten_minutes() -> None:
    machine = Machine(0)
    machine.readings = {_UP: 1.0, _DOWNED: 0.0}
    assert not machine.looks(3)
    machine.readings = {_UP: 0.0, _DOWNED: 1.0}
    assert codes_of(machine.looks(2)) == ["infiniband_port_down"]
    assert machine.open()[0].labels == _PORT
    assert machine.open()[0].action is Action.CHECK_NETWORK
    machine.readings = {_UP: 1.0, _DOWNED: 1.0}
    assert not machine.looks(60)
    assert len(machine.looks(2)) == 1
    assert machine.codes() == []


def test_an_infiniband_port_that_flaps_between_two_looks() -> None:
    machine = Machine(0)
    machine.readings = {_UP: 1.0, _DOWNED: 4.0}
    machine.looks(2)
    machine.readings[_DOWNED] = 7.0
    machine.looks(5)
    (event,) = machine.open()
    assert (event.code, event.severity, event.count) == ("infiniband_port_flaps", _WARNING, 3)


def test_an_infiniband_port_that_never_was_up_may_have_no_cable() -> None:
    machine = Machine(0)
    machine.readings = {_UP: 0.0, _DOWNED: 0.0}
    assert not machine.looks(100)
