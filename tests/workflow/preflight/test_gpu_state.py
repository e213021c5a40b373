"""GPU state checks: both sides of each threshold, and unknown values never pass."""

from __future__ import annotations

import pytest

from stepscope.core.documents.machine_checks import CHECKS, CheckGroup, Outcome
from stepscope.core.metrics.readings import GPU, Collection, Finding, Missing, MissingReason, Reading, labels_of
from stepscope.workflow.preflight.gpu_state import GpuState, judge_state

_ME = labels_of(gpu=0, uuid="GPU-0")


def told(*findings: Finding, **values: float) -> Collection:
    """Values by metric; what follows two underscores is a label and its value: throttle_reason__reason__idle."""
    readings = []
    for key, value in values.items():
        name, *label = key.split("__")
        labels = labels_of(gpu=0, uuid="GPU-0", **({label[0]: label[1]} if label else {}))
        readings.append(Reading(GPU + name, value, labels, 0))
    return Collection(tuple(readings), (), findings)


def outcome_of(
    check: str,
    after: Collection,
    *,
    before: Collection | None = None,
    samples: tuple[Collection, ...] = (),
    is_board: bool = True,
    is_loaded: bool = True,
    logged: tuple[Finding, ...] | None = (),
) -> Outcome:
    state = GpuState(after if before is None else before, samples, after, logged)
    results = judge_state(0, state, is_board=is_board, is_loaded=is_loaded)
    (result,) = (one for one in results if one.check == check)
    return result.outcome


@pytest.mark.parametrize(
    ("check", "values", "outcome"),
    [
        ("in_use", {"memory_used_bytes": 1e9, "processes__kind__compute": 0}, Outcome.PASS),
        ("in_use", {"memory_used_bytes": 1.2e9}, Outcome.WARN),
        ("in_use", {"processes__kind__mps": 1}, Outcome.WARN),
        ("ecc", {"ecc_enabled": 1, "ecc_uncorrected_errors_total": 0}, Outcome.PASS),
        ("ecc", {"ecc_enabled": 0}, Outcome.WARN),
        ("ecc", {"ecc_enabled": 1, "ecc_uncorrected_errors_total": 1}, Outcome.FAIL),
        ("row_remap", {"row_remap_pending": 0, "row_remap_failed": 0}, Outcome.PASS),
        ("row_remap", {"row_remap_pending": 1}, Outcome.FAIL),
        ("row_remap", {"row_remap_failed": 1}, Outcome.FAIL),
        ("row_remap", {"row_remap_failed": 0, "remapped_rows_uncorrected_total": 511}, Outcome.PASS),
        ("row_remap", {"row_remap_failed": 0, "remapped_rows_uncorrected_total": 512}, Outcome.WARN),
        ("row_remap", {"row_remap_failed": 0, "row_remap_banks__availability__none": 1}, Outcome.WARN),
        ("retired_pages", {"retired_pages_corrected_total": 40, "retired_pages_uncorrected_total": 22}, Outcome.PASS),
        ("retired_pages", {"retired_pages_corrected_total": 40, "retired_pages_uncorrected_total": 23}, Outcome.FAIL),
        ("retired_pages", {"retired_pages_corrected_total": 0, "retired_pages_pending": 1}, Outcome.WARN),
        ("pcie_link", {"pcie_link_width": 16, "pcie_link_width_max": 16}, Outcome.PASS),
        ("pcie_link", {"pcie_link_width": 8, "pcie_link_width_max": 16}, Outcome.FAIL),
        ("nvlink", {"nvlink_links__state__up": 18, "nvlink_links__state__down": 0}, Outcome.PASS),
        ("nvlink", {"nvlink_links__state__up": 17, "nvlink_links__state__down": 1}, Outcome.FAIL),
        ("fabric", {"fabric_state__state__completed": 1, "fabric_health__aspect__route": 1}, Outcome.PASS),
        ("fabric", {"fabric_state__state__completed": 1, "fabric_health__aspect__route": 0}, Outcome.FAIL),
        ("fabric", {"fabric_state__state__in_progress": 1}, Outcome.WARN),
        ("fabric", {"fabric_state__state__not_started": 1}, Outcome.FAIL),
    ],
)
def test_thresholds(check: str, values: dict[str, float], outcome: Outcome) -> None:
    assert outcome_of(check, told(**values)) is outcome


@pytest.mark.parametrize("check", [name for name, group in CHECKS.items() if group is CheckGroup.STATE])
def test_what_is_not_told_is_skipped(check: str) -> None:
    missing = Missing(GPU + "xid_errors_total", _ME, MissingReason.NOT_SUPPORTED)
    expected = Outcome.PASS if check == "driver" else Outcome.SKIPPED
    assert outcome_of(check, Collection(missing=(missing,)), logged=None) is expected


def test_a_lost_gpu_has_no_further_checks() -> None:
    lost = Collection(missing=(Missing("", _ME, MissingReason.GONE, "the GPU is lost"),))
    results = judge_state(0, GpuState(told(), (), lost, ()), is_board=True, is_loaded=True)
    assert [(one.check, one.outcome, one.detail) for one in results] == [("driver", Outcome.FAIL, "the GPU is lost")]


def test_corrected_errors_count_when_they_come_meanwhile() -> None:
    before = told(ecc_enabled=1, ecc_corrected_errors_total=7)
    assert outcome_of("ecc", told(ecc_enabled=1, ecc_corrected_errors_total=7), before=before) is Outcome.PASS
    assert outcome_of("ecc", told(ecc_enabled=1, ecc_corrected_errors_total=8), before=before) is Outcome.WARN


@pytest.mark.parametrize(
    ("reasons", "outcome"),
    [
        (("idle", "software_power_cap", "software_power_cap", "software_power_cap"), Outcome.PASS),
        (("idle", "software_thermal", "idle", "idle"), Outcome.WARN),
        (("idle", "hardware_slowdown", "idle", "idle"), Outcome.WARN),
        (("idle", "hardware_power_brake", "hardware_power_brake", "idle"), Outcome.FAIL),
        (("hardware_thermal", "software_power_cap", "software_power_cap", "software_power_cap"), Outcome.WARN),
        (("hardware_thermal",), Outcome.WARN),
    ],
)
def test_throttling_by_how_often(reasons: tuple[str, ...], outcome: Outcome) -> None:
    samples = tuple(told(**{f"throttle_reason__reason__{reason}": 1}) for reason in reasons)
    assert outcome_of("throttling", told(), samples=samples) is outcome


def test_a_power_limit_that_was_lowered_explains_slow_products() -> None:
    samples = (told(throttle_reason__reason__software_power_cap=1),)
    lowered, usual = (told(power_limit_watts=w, power_limit_default_watts=700) for w in (500, 700))
    assert outcome_of("throttling", lowered, samples=samples) is Outcome.WARN
    assert outcome_of("throttling", usual, samples=samples) is Outcome.PASS


@pytest.mark.parametrize(
    ("generations", "is_loaded", "outcome"),
    [((1, 5, 1), True, Outcome.PASS), ((1, 4), True, Outcome.WARN), ((1,), False, Outcome.PASS)],
)
def test_the_generation_counts_under_load(generations: tuple[int, ...], is_loaded: bool, outcome: Outcome) -> None:
    samples = tuple(told(pcie_link_generation=generation) for generation in generations)
    after = told(pcie_link_width=16, pcie_link_width_max=16, pcie_link_generation_max=5)
    assert outcome_of("pcie_link", after, samples=samples, is_loaded=is_loaded) is outcome


def test_links_of_a_card_may_be_down() -> None:
    without_bridge = told(nvlink_links__state__up=0, nvlink_links__state__down=12)
    with_bridge = told(nvlink_links__state__up=8, nvlink_links__state__down=4)
    assert outcome_of("nvlink", without_bridge, is_board=False) is Outcome.SKIPPED
    assert outcome_of("nvlink", without_bridge, is_board=True) is Outcome.FAIL
    assert outcome_of("nvlink", with_bridge, is_board=False) is Outcome.WARN


@pytest.mark.parametrize(("number", "outcome"), [(79, Outcome.FAIL), (48, Outcome.FAIL), (13, Outcome.WARN)])
def test_an_xid_counts_by_how_bad_it_is_wherever_it_was_told(number: int, outcome: Outcome) -> None:
    xid = Finding("xid", f"XID {number}", labels_of(gpu=0, xid=number), 0)
    assert outcome_of("xid", told(xid), logged=None) is outcome
    assert outcome_of("xid", told(), samples=(told(xid), told())) is outcome
    assert outcome_of("xid", told(), logged=(xid,)) is outcome
    assert outcome_of("xid", told()) is Outcome.PASS
