"""Regression tests for bugs reported in other monitors: the agent behaves correctly in each case."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.hardware.health import Action, HealthState, Severity
from stepscope.core.metrics.gpu import THROTTLE_REASONS
from stepscope.core.metrics.readings import Finding, Missing, MissingReason, labels_of
from tests.agent.health.machines import LABELS, SECOND, Machine, codes_of, labels_of_gpu


def _hang(machine: Machine, gpu: int = 0) -> None:
    machine.gpus[gpu] = {"up{reason=timed_out}": 0.0}


def test_gpu_monitoring_tools_46_a_gpu_that_hangs_is_an_event_and_not_a_healthy_one() -> None:
    machine = Machine(2)
    machine.look()
    _hang(machine)
    machine.look()
    assert machine.health().state is HealthState.UNKNOWN  # for now
    machine.looks(4)
    assert machine.health().state is HealthState.FAILED
    assert machine.health(1).state is HealthState.HEALTHY


def test_nvsentinel_1576_a_driver_that_hangs_for_ever_is_one_event() -> None:
    machine = Machine()
    machine.look()
    _hang(machine)
    machine.looks(5000)
    assert codes_of(machine.changes) == ["gpu_hung"]
    assert "a call of its driver does not return" in machine.open()[0].message


def test_nvsentinel_1576_a_driver_that_hangs_is_one_event_and_none_of_its_gpus() -> None:
    """The GPU that was read when it began to hang is silent a little longer than the driver."""
    machine = Machine(8)
    machine.look()
    _hang(machine)
    machine.look()
    for gpu in range(8):
        _hang(machine, gpu)
    machine.missing.append(Missing("", (), MissingReason.TIMED_OUT, "the driver does not answer"))
    machine.looks(30)
    assert machine.codes() == ["driver_hung"]
    assert {machine.health(gpu).state for gpu in range(8)} == {HealthState.UNKNOWN}
    machine.missing.clear()
    machine.gpus |= {gpu: {"up": 1.0} for gpu in range(1, 8)}
    machine.looks(8)
    assert machine.codes() == ["gpu_hung"]  # that one hangs of its own
    assert machine.open()[0].labels == labels_of_gpu(0)


def test_a_gpu_that_hangs_stays_an_event_when_the_driver_hangs_too() -> None:
    machine = Machine(2)
    machine.look()
    _hang(machine)
    machine.looks(5)
    machine.missing.append(Missing("", (), MissingReason.TIMED_OUT, "the driver does not answer"))
    _hang(machine, 1)
    machine.looks(8)
    assert sorted(machine.codes()) == ["driver_hung", "gpu_hung"]


def test_nvsentinel_1748_corrected_errors_at_a_high_rate_are_said_also_when_reading_stalls() -> None:
    machine = Machine()
    machine.set({"ecc_corrected_errors_total": 9.6e9})
    machine.look()
    machine.grow("ecc_corrected_errors_total", 17_657.0 * 45, times=4, seconds=45)
    (event,) = machine.open()
    assert (event.code, event.severity) == ("ecc_corrected_rate", Severity.CRITICAL)
    assert event.value == pytest.approx(17_657)
    _hang(machine)
    machine.looks(10)
    assert machine.codes() == ["gpu_hung", "ecc_corrected_rate"]  # why it hangs stays known


def test_nvsentinel_1748_45_in_masses_takes_no_node_out_of_service() -> None:
    machine = Machine(4)
    machine.look()
    for _ in range(120):
        for gpu in machine.gpus:
            machine.gpus[gpu]["xid_errors_total{xid=45}"] = machine.gpus[gpu].get("xid_errors_total{xid=45}", 0) + 98
        machine.look()
    assert len(machine.changes) == 4
    assert {machine.health(gpu).state for gpu in machine.gpus} == {HealthState.HEALTHY}


def test_nvsentinel_1748_a_gpu_that_stalls_again_and_again_is_said_though_it_never_hangs_for_long() -> None:
    machine = Machine()
    for minute in range(10):
        machine.set({"up": 1.0, "up{reason=timed_out}": None})
        machine.looks(5)
        if minute % 3 == 0:
            machine.set({"up": None, "up{reason=timed_out}": 0.0})
        machine.look()
    machine.set({"up": 1.0, "up{reason=timed_out}": None})
    machine.look()
    (event,) = machine.open()
    assert (event.code, event.severity, event.action) == ("gpu_stalls", Severity.WARNING, Action.RUN_DIAGNOSTICS)
    machine.looks(120)
    assert machine.codes() == []


def test_one_stall_is_a_passing_thing() -> None:
    machine = Machine()
    machine.looks(3)
    machine.set({"up": None, "up{reason=timed_out}": 0.0})
    machine.looks(2)
    machine.set({"up": 1.0, "up{reason=timed_out}": None})
    machine.looks(30)
    assert not machine.changes


def test_nvidia_gpu_exporter_65_and_354_a_driver_that_is_mended_is_well_again() -> None:
    machine = Machine(0)
    machine.missing.append(Missing("", (), MissingReason.FAILED, "NVML is not initialised: the driver was reloaded"))
    machine.looks(5)
    assert machine.codes() == ["driver_failed"]
    machine.missing.clear()
    machine.gpus[0] = {"up": 1.0}
    machine.looks(8)
    assert machine.codes() == []
    assert machine.health().state is HealthState.HEALTHY
    assert machine.machine().state is HealthState.HEALTHY


def test_a_gpu_that_hung_before_it_told_its_name_is_no_second_gpu_afterwards() -> None:
    machine = Machine(2)
    machine.gpus[1] = {"nameless": 1.0, "up{reason=timed_out}": 0.0}
    machine.looks(8)
    assert machine.codes() == ["gpu_hung"]
    assert machine.open()[0].labels == labels_of(gpu=1)
    machine.gpus[1] = {"up": 1.0}
    (ended,) = machine.look()
    assert (ended.code, ended.labels) == ("gpu_hung", labels_of(gpu=1))
    assert machine.num_gpus() == 2
    assert machine.health(1).state is HealthState.HEALTHY


def test_gpud_117_a_gpu_that_hangs_after_a_45() -> None:
    machine = Machine()
    machine.look()
    machine.set({"xid_errors_total{xid=45}": 1.0})
    machine.look()
    machine.gpus[0] = {"up{reason=timed_out}": 0.0, "xid_errors_total{xid=45}": 1.0}
    machine.looks(6)
    assert machine.codes() == ["gpu_hung", "xid_45"]


def test_nvitop_139_a_gpu_whose_reading_ends_the_process() -> None:
    machine = Machine(2)
    machine.look()
    machine.gpus[0] = {"up{reason=failed}": 0.0}
    machine.missing.append(Missing("", LABELS, MissingReason.FAILED, "reading it ended the process"))
    machine.looks(5)
    assert machine.codes() == ["gpu_unreadable"]
    assert machine.open()[0].message == "the GPU cannot be read: reading it ended the process"
    assert machine.health(1).state is HealthState.HEALTHY


def test_nvgpu_6_one_lost_gpu_leaves_the_others_healthy() -> None:
    machine = Machine(8)
    machine.look()
    machine.gpus[3] = {"up{reason=gone}": 0.0}
    machine.looks(3)
    assert [machine.health(gpu).state is HealthState.HEALTHY for gpu in range(8)] == [gpu != 3 for gpu in range(8)]


def test_gpud_604_a_lost_gpu_is_called_lost_whatever_call_found_out() -> None:
    machine = Machine()
    machine.gpus[0] = {"up{reason=gone}": 0.0}
    detail = "the GPU is lost: it fell off the bus (XID 79); it answered last 7 s ago"
    machine.missing.append(Missing("", LABELS, MissingReason.GONE, detail))
    machine.looks(3)
    (event,) = machine.open()
    assert event.message == "the GPU is lost: it fell off the bus (XID 79)"


def test_nvsentinel_155_off_the_bus_without_an_xid_is_the_same_event_as_with_one() -> None:
    machine = Machine()
    machine.look()
    machine.gpus[0] = {"up{reason=gone}": 0.0}
    machine.looks(2)
    machine.set({"xid_errors_total{xid=79}": 1.0})  # the kernel log's text, told as the XID that it stands for
    machine.looks(5)
    assert codes_of(machine.changes) == ["gpu_lost"]


@pytest.mark.parametrize("report", ["nvidia_gpu_exporter_63", "nvtop_95", "pai_5452"])
def test_a_version_mismatch_is_said_with_what_to_do(report: str) -> None:
    machine = Machine(0)
    detail = "the driver's library and kernel module are of different versions: reboot, or reload the module"
    machine.missing.append(Missing("", (), MissingReason.VERSION_MISMATCH, detail))
    machine.looks(2)
    (event,) = machine.open()
    assert (event.code, event.action) == ("driver_mismatch", Action.RELOAD_DRIVER), report
    assert machine.machine().state is HealthState.FAILED


def test_dcgm_exporter_662_and_dcgm_303_counters_that_are_silent() -> None:
    machine = Machine()
    machine.findings.append(Finding("profiling_silent", "all profiling counters are 0", LABELS, 5))
    machine.looks(3)
    assert machine.health().state is HealthState.DEGRADED
    assert machine.open()[0].action is Action.RESTART_COLLECTOR


def test_dcgm_exporter_500_the_same_xid_twice_is_two_and_an_old_one_is_no_event() -> None:
    machine = Machine()
    machine.set({"xid_last": 31.0})  # for ever, as DCGM has it
    machine.looks(20)
    assert not machine.changes
    machine.set({"xid_errors_total{xid=94}": 1.0})
    machine.look()
    machine.set({"xid_errors_total{xid=94}": 2.0})
    machine.look()
    assert machine.open()[0].count == 2


def test_gpu_monitoring_tools_188_old_values_served_as_new_prove_nothing() -> None:
    machine = Machine()
    machine.set({"temperature_margin_celsius": 5.0})
    machine.looks(3)
    for _ in range(20):
        assert not machine.look(is_stale=True)
    assert machine.health().state is HealthState.UNKNOWN
    assert machine.health().reason == "no source reports new values of it"


def test_an_old_value_that_is_bad_begins_no_event() -> None:
    machine = Machine()
    machine.set({"temperature_margin_celsius": -5.0})
    machine.look()
    for _ in range(20):
        assert not machine.look(1, is_stale=True)  # one sample, repeated


def test_go_dcgm_38_a_gpu_that_nobody_tells_of_any_more_is_unknown() -> None:
    machine = Machine(2)
    machine.looks(3)
    del machine.gpus[1]
    machine.looks(10)
    assert machine.health(1).state is HealthState.UNKNOWN
    assert machine.health(0).state is HealthState.HEALTHY


def test_nvsentinel_889_a_fabric_manager_that_does_not_run_is_seen_within_minutes() -> None:
    machine = Machine()
    machine.set({"fabric_state{state=not_started}": 1.0, "fabric_state{state=completed}": 0.0})
    machine.looks(14)
    assert machine.codes() == ["fabric_state"]
    assert "is the fabric manager running?" in machine.open()[0].message


def test_a_gpu_that_leaves_the_fabric_is_seen_within_a_minute() -> None:
    machine = Machine()
    machine.set({"fabric_state{state=completed}": 1.0, "fabric_state{state=in_progress}": 0.0})
    assert not machine.looks(5)
    machine.set({"fabric_state{state=completed}": 0.0, "fabric_state{state=in_progress}": 1.0})
    machine.looks(5)
    assert machine.codes() == ["fabric_state"]


def test_eks_node_monitoring_agent_141_a_machine_without_that_service_misses_none() -> None:
    machine = Machine()
    machine.set({"fabric_state{state=completed}": 1.0, "fabric_state{state=not_started}": 0.0})  # GB200: no service
    assert not machine.looks(100)


def test_lium_io_1140_a_ghost_that_is_busy_without_a_process() -> None:
    machine = Machine()
    machine.findings.append(Finding("busy_without_process", "100 % utilisation, no process", LABELS, 5))
    machine.looks(3)
    assert [(one.code, one.action) for one in machine.open()] == [("busy_without_process", Action.RESET_GPU)]


def test_a_page_without_values_for_a_check_says_what_is_not_checked() -> None:
    machine = Machine(source="dcgm_exporter")  # the default page has neither ECC nor links
    machine.set({"row_remap_failed": 0.0, "power_watts": 125.0})
    machine.looks(5)
    health = machine.health()
    assert health.state is HealthState.HEALTHY
    assert {"ecc_uncorrected", "ecc_corrected_rate", "pcie_replays", "nvlink_crc_errors"} <= set(health.unchecked)
    assert "row_remap_failed" not in health.unchecked


@pytest.mark.shared
def test_two_recorded_h100s_at_work_are_well_also_at_their_power_cap(shared_traces: Path) -> None:
    machine = Machine(2)
    at_the_cap = 0
    with (shared_traces / "h100x2" / "nvml_gpm_samples_5hz.csv").open() as lines:
        for row in csv.DictReader(lines):
            bits, gpu, time_ns = int(row["reasons"]), int(row["gpu"]), int(float(row["t"]) * SECOND)
            at_the_cap += bits == 4
            machine.set(
                {f"throttle_reason{{reason={name}}}": float(bits & bit > 0) for bit, name in THROTTLE_REASONS}, gpu
            )
            machine.set({"utilization_ratio": float(row["gpu_util"]) / 100}, gpu)
            if time_ns - machine.now_ns >= 5 * SECOND:
                machine.look((time_ns - machine.now_ns) / SECOND)
    assert at_the_cap == 148
    assert not machine.changes
    assert [machine.health(gpu).state for gpu in (0, 1)] == [HealthState.HEALTHY] * 2


_HEALTHY = {
    **dict.fromkeys(("ecc_uncorrected_errors_total", "row_remap_failed", "row_remap_pending"), 0.0),
    "ecc_corrected_errors_total": 7.0,
    "remapped_rows_uncorrected_total": 4.0,
    "pcie_replays_total": 12.0,
    "nvlink_crc_flit_errors_total": 3.0,
    "nvlink_replay_errors_total": 2.0,
    "nvlink_recoveries_total": 1.0,
    "nvlink_effective_bit_error_ratio": 0.0,
    "temperature_margin_celsius": 30.0,
    "energy_joules_total": 9.0,
    "thermal_violation_seconds_total": 50.0,
    "throttle_reason{reason=software_power_cap}": 1.0,
    "throttle_reason{reason=hardware_slowdown}": 0.0,
    "recovery_action{action=none}": 1.0,
    "fabric_state{state=completed}": 1.0,
    "nvlink_up{link=0}": 1.0,
}
_COUNTERS = [name for name in _HEALTHY if name.endswith("_total")]


@given(st.lists(st.tuples(st.integers(1, 200), st.booleans()), max_size=40))
def test_a_healthy_gpu_has_no_event_however_it_is_looked_at(looks: list[tuple[int, bool]]) -> None:
    machine = Machine()
    machine.set(_HEALTHY)
    for seconds, is_stale in [(1, False), *looks]:
        assert not machine.look(seconds, is_stale=is_stale)


@given(st.lists(st.tuples(st.sampled_from(_COUNTERS), st.integers(1, 60)), max_size=40))
def test_a_driver_that_is_reloaded_makes_no_errors(resets: list[tuple[str, int]]) -> None:
    """Counters that begin anew with what they had at first."""
    machine = Machine()
    machine.set(_HEALTHY)
    machine.look()
    for name, seconds in resets:
        if name != "ecc_uncorrected_errors_total":
            machine.set({name: 0.0})
            machine.look(seconds)
    assert not machine.changes


_ANY = st.sampled_from(
    [
        *_HEALTHY,
        *("up", "up{reason=gone}", "up{reason=timed_out}", "utilization_ratio", "pcie_link_generation"),
        *("pcie_link_generation_max", "pcie_link_width", "pcie_link_width_max", "retired_pages_corrected_total"),
        *("retired_pages_uncorrected_total", "xid_errors_total{xid=45}", "xid_errors_total{xid=48}"),
        *("xid_errors_total{xid=63}", "xid_errors_total{xid=79}", "xid_errors_total{xid=31}"),
        *("process_memory_bytes{kind=compute,pid=1}", "process_memory_bytes{kind=compute,pid=2}"),
        "fabric_state{state=not_started}",
    ]
)
_VALUES = st.one_of(st.none(), st.floats(-1e3, 1e15), st.sampled_from([0.0, 1.0, 5.0, 512.0]))


@given(st.lists(st.tuples(st.dictionaries(_ANY, _VALUES, max_size=6), st.integers(-60, 120)), max_size=40))
def test_whatever_the_values_are_one_event_of_a_kind_is_open_at_most(
    looks: list[tuple[dict[str, float | None], int]],
) -> None:
    machine = Machine(2)
    for values, seconds in looks:
        for gpu in machine.gpus:
            machine.set(values, gpu)
        machine.look(seconds)
        opened = machine.open()
        assert len({(event.code, event.labels) for event in opened}) == len(opened)
        for event in (*machine.changes, *opened):
            assert event.first_ns <= event.last_ns
            assert event.ended_ns is None or event.last_ns <= event.ended_ns
            assert "nan" not in event.message
