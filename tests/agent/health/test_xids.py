"""XIDs alone, with others, and again and again; SXids."""

from __future__ import annotations

import pytest

from stepscope.core.hardware.health import Action, HealthState, Severity
from stepscope.core.metrics.gpu import SWITCH
from stepscope.core.metrics.readings import GPU, Finding, labels_of, with_labels
from tests.agent.health.machines import LABELS, SECOND, Machine, codes_of


def _xid(machine: Machine, number: int, *, gpu: int = 0, times: int = 1, pid: int | None = None) -> None:
    """It comes, now."""
    if pid is not None:
        held = [key for key in machine.gpus[gpu] if key.startswith("process_memory_bytes")]
        machine.set({**dict.fromkeys(held), f"process_memory_bytes{{kind=compute,pid={pid}}}": 1e9}, gpu)
        machine.looks(3)
    name = f"xid_errors_total{{xid={number}}}"
    machine.set({name: machine.gpus[gpu].get(name, 0.0) + times}, gpu)


def test_a_contained_memory_error_costs_its_application_only() -> None:
    machine = Machine()
    machine.set({"ecc_uncorrected_errors_total": 0.0})
    machine.look()
    _xid(machine, 94)
    machine.set({"ecc_uncorrected_errors_total": 1.0})
    machine.looks(3)
    assert {(one.code, one.severity, one.action) for one in machine.open()} == {
        ("xid_94", Severity.WARNING, Action.RESTART_APP),
        ("ecc_uncorrected", Severity.WARNING, Action.RESTART_APP),
    }
    assert machine.health().state is HealthState.DEGRADED
    _xid(machine, 95)  # and now one of which it is not known what it hit
    machine.looks(3)
    assert machine.health().state is HealthState.FAILED
    assert {one.action for one in machine.open() if one.severity is Severity.CRITICAL} == {Action.RESET_GPU}


@pytest.mark.parametrize("name", ["ecc_uncorrected_errors_total", "sram_uncorrected_errors_total"])
def test_errors_after_a_cleared_count_are_not_known_to_be_contained(name: str) -> None:
    """An earlier XID 94 says nothing about them; energy goes on where the count alone was cleared."""
    machine = Machine()
    machine.set({name: 0.0})
    machine.look()
    _xid(machine, 94)
    machine.set({name: 1.0})
    machine.looks(3)
    assert [one.severity for one in machine.open() if one.code == "ecc_uncorrected"] == [Severity.WARNING]
    machine.set({name: 0.0})
    machine.looks(3)
    machine.set({name: 4.0})
    machine.looks(3)
    (event,) = (one for one in machine.open() if one.code == "ecc_uncorrected")
    assert (event.severity, event.action) == (Severity.CRITICAL, Action.RESET_GPU)
    assert "contained" not in event.message


@pytest.mark.parametrize("first", [48, 63])
def test_48_with_a_row_remap_drains_first(first: int) -> None:
    machine = Machine()
    machine.look()
    _xid(machine, first)
    machine.look()
    _xid(machine, 111 - first)  # the other
    machine.look()
    events = {one.code: one for one in machine.open()}
    assert events["xid_48"].action is Action.DRAIN
    assert events["xid_48"].count == 1
    assert events["xid_63"].severity is Severity.INFO


def test_48_alone_resets() -> None:
    machine = Machine()
    machine.look()
    _xid(machine, 48)
    machine.looks(20)
    assert [(one.code, one.action) for one in machine.open()] == [("xid_48", Action.RESET_GPU)]


def _earlier(machine: Machine, number: int) -> None:
    """A page of DCGM's shows that it came before the first look."""
    message = f"XID {number} stood on the first page: it came before, when is not known"
    machine.findings[:] = [Finding("xid_earlier", message, with_labels(LABELS, xid=number), machine.now_ns)]


@pytest.mark.parametrize(
    ("number", "action"),
    [(79, Action.REBOOT), (119, Action.RESET_GPU), (48, Action.RESET_GPU), (74, Action.RUN_DIAGNOSTICS)],
)
def test_one_from_before_the_first_look_is_a_note_while_the_page_shows_it(number: int, action: Action) -> None:
    machine = Machine(source="dcgm_exporter")
    _earlier(machine, number)
    machine.looks(30)
    (event,) = machine.changes
    assert (event.code, event.severity, event.action) == ("xid_earlier", Severity.INFO, action)
    assert event.since_start
    assert f"XID {number} stood on DCGM's page at the first look, when it came is not known" in event.message
    assert (machine.health().state, machine.health().reason) == (HealthState.HEALTHY, event.message)
    machine.findings.clear()
    (ended,) = machine.look()
    assert (ended.code, ended.ended_ns is not None) == ("xid_earlier", True)
    assert (machine.health().state, machine.health().reason) == (HealthState.HEALTHY, "")


def test_a_reset_ends_one_from_before_for_good() -> None:
    machine = Machine(source="dcgm_exporter")
    machine.set({"energy_joules_total": 5000.0})
    _earlier(machine, 48)
    machine.look()
    machine.set({"energy_joules_total": 3.0})
    (ended,) = machine.look()
    assert (ended.code, ended.ended_ns is not None) == ("xid_earlier", True)
    machine.grow("energy_joules_total", 100.0, times=60)  # DCGM goes on showing it
    assert machine.codes() == []
    machine.findings[:] = [Finding("xid", "XID 48", with_labels(LABELS, xid=48), machine.now_ns)]
    machine.look()
    assert machine.codes() == ["xid_48"]


def test_one_that_may_have_come_after_the_reset_stays() -> None:
    """The page is first read between the reset and the reading of energy that tells it."""
    machine = Machine(source="dcgm_exporter")
    machine.set({"energy_joules_total": 5000.0})
    machine.look()
    machine.set({"energy_joules_total": None})
    _earlier(machine, 48)
    machine.look()
    machine.set({"energy_joules_total": 3.0})
    machine.looks(5)
    assert machine.codes() == ["xid_earlier"]


@pytest.mark.parametrize("number", [13, 31, 43, 45, 63, 94, 154])
def test_one_from_before_that_passes_by_itself_is_no_event(number: int) -> None:
    machine = Machine(source="dcgm_exporter")
    _earlier(machine, number)
    machine.looks(3)
    assert machine.changes == []
    assert "xid_earlier" not in machine.health().unchecked


def test_a_page_that_is_not_read_ends_no_warning_of_what_came_before() -> None:
    machine = Machine(source="dcgm_exporter")
    _earlier(machine, 79)
    machine.look()
    del machine.gpus[0]
    machine.findings.clear()
    machine.looks(3)
    assert machine.codes() == ["xid_earlier"]


def test_79_and_the_loss_that_the_driver_tells_are_one_episode() -> None:
    machine = Machine()
    machine.look()
    _xid(machine, 79)
    assert codes_of(machine.look(1)) == ["gpu_lost"]
    machine.set({"up": None, "up{reason=gone}": 0.0})
    assert not machine.looks(50)
    machine.set({"up": 1.0, "up{reason=gone}": None})
    (ended,) = machine.looks(8)
    assert (ended.code, ended.action) == ("gpu_lost", Action.REBOOT)


def test_what_needs_a_reset_is_open_until_the_gpu_was_reset() -> None:
    machine = Machine()
    machine.set({"energy_joules_total": 5000.0})
    machine.look()
    _xid(machine, 119)
    machine.grow("energy_joules_total", 100.0, times=500)
    assert machine.codes() == ["xid_119"]
    machine.set({"energy_joules_total": 3.0})
    (ended,) = machine.look()
    assert ended.code == "xid_119"
    assert machine.health().state is HealthState.HEALTHY


def test_what_comes_between_a_reset_and_the_next_reading_of_energy_stays_open() -> None:
    """Energy is read every ten seconds."""
    machine = Machine()
    machine.set({"energy_joules_total": 5000.0})
    machine.look()
    _xid(machine, 119)
    machine.grow("energy_joules_total", 100.0, times=5)
    machine.set({"energy_joules_total": None})  # nothing new is read, and it is reset
    machine.look()
    _xid(machine, 95)
    machine.look()
    assert set(machine.codes()) == {"xid_119", "xid_95"}
    machine.set({"energy_joules_total": 3.0})
    assert [one.code for one in machine.look()] == ["xid_119"]
    assert machine.codes() == ["xid_95"]


def test_a_reset_ends_it_also_where_nothing_could_be_read_since() -> None:
    machine = Machine()
    machine.set({"energy_joules_total": 5000.0})
    machine.looks(3)
    machine.set({"energy_joules_total": None})
    _xid(machine, 119)
    machine.looks(33)
    machine.set({"energy_joules_total": 10.0})
    assert [one.code for one in machine.looks(5)] == ["xid_119"]
    assert machine.codes() == []


def test_a_clock_that_is_set_back_leaves_nothing_open() -> None:
    machine = Machine()
    machine.set({"energy_joules_total": 5000.0})
    machine.look()
    _xid(machine, 119)
    machine.looks(3)
    machine.now_ns -= 3600 * 10**9
    machine.grow("energy_joules_total", 1.0, times=60)
    machine.set({"energy_joules_total": 3.0})
    machine.look()
    assert machine.codes() == []


def test_an_applications_fault_is_info_and_over_after_ten_minutes() -> None:
    machine = Machine()
    machine.look()
    _xid(machine, 31)
    machine.look()
    (event,) = machine.open()
    assert (event.code, event.severity, event.action) == ("xid_31", Severity.INFO, Action.RESTART_APP)
    assert not event.since_start
    assert machine.health().state is HealthState.HEALTHY
    machine.looks(62)
    assert machine.codes() == []


def test_an_xid_again_within_ten_minutes_is_the_same_episode() -> None:
    machine = Machine()
    machine.look()
    for _ in range(10):
        _xid(machine, 31, times=3)
        machine.looks(30)
    (event,) = machine.open()
    assert event.count == 30
    assert len(machine.changes) == 1


def test_31_with_one_process_after_the_other_on_one_gpu_may_be_the_gpu() -> None:
    machine = Machine(2)
    machine.look()
    for pid in (11, 12):
        _xid(machine, 31, pid=pid)
        machine.looks(100)
    assert "xid_repeats" not in machine.codes()
    _xid(machine, 31, pid=13)
    machine.look()
    (event,) = (one for one in machine.open() if one.code == "xid_repeats")
    assert (event.severity, event.action, event.value) == (Severity.WARNING, Action.RUN_DIAGNOSTICS, 3.0)
    assert machine.health(1).state is HealthState.HEALTHY


def test_31_again_and_again_of_one_process_is_its_own_fault() -> None:
    machine = Machine()
    machine.look()
    for _ in range(10):
        _xid(machine, 31, pid=11)
        machine.looks(100)
    assert "xid_repeats" not in [one.code for one in machine.changes]


def test_13_on_all_gpus_alike_is_the_applications_fault() -> None:
    machine = Machine(2)
    machine.look()
    for pid in (11, 12, 13, 14):
        _xid(machine, 13, gpu=0, pid=pid)
        _xid(machine, 13, gpu=1, pid=100 + pid)
        machine.looks(100)
    assert "xid_repeats" not in [one.code for one in machine.changes]


def test_45_alone_never_pages_and_says_so_once() -> None:
    machine = Machine()
    machine.look()
    _xid(machine, 45, times=11_760)
    machine.looks(3)
    (event,) = machine.open()
    assert (event.code, event.severity, event.count) == ("xid_45", Severity.INFO, 11_760)
    assert machine.health().state is HealthState.HEALTHY


@pytest.mark.parametrize("follower", [43, 45])
@pytest.mark.parametrize("is_before", [False, True])
def test_45_with_another_xid_is_no_event_also_on_another_gpu(follower: int, is_before: bool) -> None:
    machine = Machine(2)
    machine.look()
    for number, gpu in ((48, 0), (follower, 1)) if not is_before else ((follower, 1), (48, 0)):
        _xid(machine, number, gpu=gpu)
        machine.look(5)
    machine.looks(30)
    assert [one.code for one in machine.changes] == ["xid_48"]


def test_xids_that_a_page_of_dcgm_tells_count_once() -> None:
    machine = Machine(source="dcgm_exporter")
    machine.look()
    machine.findings.append(Finding("xid", "XID 94", with_labels(LABELS, xid=94), machine.now_ns))
    machine.looks(5)
    assert [(one.code, one.count) for one in machine.open()] == [("xid_94", 1)]
    machine.now_ns -= 3600 * SECOND  # the clock is set back
    machine.findings[:] = [Finding("xid", "XID 94", with_labels(LABELS, xid=94), machine.now_ns)]
    machine.looks(5)
    assert [(one.code, one.count) for one in machine.open()] == [("xid_94", 2)]


def test_what_the_drivers_own_source_tells_is_counted_there() -> None:
    machine = Machine()
    machine.look()
    _xid(machine, 94)
    machine.findings.append(Finding("xid", "XID 94", with_labels(LABELS, xid=94), machine.now_ns))
    machine.looks(5)
    assert [(one.code, one.count) for one in machine.open()] == [("xid_94", 1)]


def _sxid(number: int, severity: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return SWITCH + "sxid_errors_total", labels_of(pci_bus_id="00000000:C1:00.0", sxid=number, severity=severity)


def test_sxids_are_events_of_their_switch() -> None:
    machine = Machine()
    machine.set({"energy_joules_total": 5000.0})
    machine.look()
    machine.readings = {_sxid(20034, "fatal"): 1.0, _sxid(20001, "nonfatal"): 40.0}
    machine.looks(2)
    assert [(one.code, one.severity, one.action) for one in machine.open()] == [
        ("sxid_20034", Severity.CRITICAL, Action.RESET_FABRIC),
        ("sxid_20001", Severity.INFO, Action.NONE),
    ]
    assert machine.machine().state is HealthState.FAILED
    assert machine.health().state is HealthState.HEALTHY
    machine.looks(100)
    assert machine.codes() == ["sxid_20034"]  # until the GPUs were reset, and the switches with them
    machine.set({"energy_joules_total": 1.0})
    machine.looks(2)
    assert machine.codes() == []


def test_the_last_sxid_that_dcgm_shows_may_be_of_long_ago() -> None:
    machine = Machine()
    last = (SWITCH + "sxid_fatal_last", labels_of(switch=3))
    machine.readings = {last: 12028.0}
    assert not machine.looks(5)
    machine.readings = {last: 10003.0}
    assert codes_of(machine.looks(5)) == ["sxid_10003"]


def test_xids_of_a_place_are_those_of_the_gpu_that_sits_there() -> None:
    machine = Machine()
    place = "00000000:61:00.0"
    of_place = (GPU + "xid_errors_total", labels_of(pci_bus_id=place, xid=119))
    machine.readings = {of_place: 1.0}  # before the driver told who that is
    machine.look()
    assert machine.open()[0].labels == labels_of(pci_bus_id=place)
    machine.readings[GPU + "info", with_labels(LABELS, pci_bus_id=place, name="NVIDIA H100 80GB HBM3")] = 1.0
    machine.looks(2)
    _xid(machine, 119)
    machine.looks(2)
    assert [(one.code, one.labels, one.count) for one in machine.open()] == [("xid_119", LABELS, 2)]
    assert machine.num_gpus() == 1
