"""Silent counters differ from idleness, and a stuck utilization from work."""

from __future__ import annotations

import pytest

from stepscope.collectors.contradictions import ContradictionWatch
from stepscope.core.metrics.readings import GPU, Collection, MissingReason, Reading, labels_of, with_labels

LABELS = labels_of(gpu=0, uuid="GPU-0")
BUSY = {"utilization_ratio": 1.0, "power_watts": 400.0, "power_limit_watts": 700.0}


def sample(values: dict[str, float], *, processes: float | None = None) -> Collection:
    readings = [Reading(GPU + name, value, LABELS, 1) for name, value in values.items()]
    if processes is not None:
        readings.append(Reading(GPU + "processes", processes, with_labels(LABELS, kind="compute"), 1))
    return Collection(tuple(readings))


def codes(*samples: Collection) -> list[str]:
    watch = ContradictionWatch()
    return [finding.code for one in samples for finding in watch.observe(one, 5)]


def test_bug_17_and_303_counters_of_zero_while_the_gpu_works_are_a_finding() -> None:
    silent = sample({**BUSY, "sm_active_ratio": 0.0, "dram_active_ratio": 0.0})
    assert codes(*[silent] * 9) == []
    assert codes(*[silent] * 11) == ["profiling_silent"] * 2


def test_what_is_to_be_done_is_the_events_and_not_said_twice() -> None:
    watch, silent = ContradictionWatch(), sample({**BUSY, "sm_active_ratio": 0.0})
    (finding,) = [watch.observe(silent, 5) for _ in range(10)][-1]
    assert finding.message == "all profiling counters are 0 at 100% utilisation and 400 W: they are not counting"


def test_one_good_sample_begins_anew() -> None:
    silent = sample({**BUSY, "sm_active_ratio": 0.0})
    assert codes(*[silent] * 9, sample({**BUSY, "sm_active_ratio": 0.3}), *[silent] * 9) == []


SILENT = {**BUSY, "sm_active_ratio": 0.0, "fp64_active_ratio": 0.0, "pcie_transmit_bytes_per_second": 0.0}


def test_bug_17_silent_counters_are_missing_until_they_count_again_also_while_the_gpu_rests() -> None:
    watch = ContradictionWatch()
    told = []
    resting = {**SILENT, "utilization_ratio": 0.0, "power_watts": 70.0}
    for values in (*[SILENT] * 10, resting, {**SILENT, "sm_active_ratio": 0.5}, resting):
        one = sample(values)
        findings = watch.observe(one, 5)
        told.append((watch.without_silent(one), [finding.code for finding in findings]))
    before, silent, at_rest, again, at_rest_again = told[-5:]
    assert before == (sample(SILENT), [])
    for collection, codes_told in (silent, at_rest):
        assert {reading.metric for reading in collection.readings} == {GPU + name for name in BUSY}
        assert {missing.metric for missing in collection.missing} == {
            GPU + name for name in SILENT.keys() - BUSY.keys()
        }
        assert {(missing.labels, missing.reason) for missing in collection.missing} == {
            (LABELS, MissingReason.UNREADABLE)
        }
        assert all(
            missing.detail.endswith("; restart this agent")
            for missing in collection.missing  # NVML's are its own
        )
        assert codes_told == ["profiling_silent"]
    for collection, words in ((silent[0], "they are not counting"), (at_rest[0], "not known until they count")):
        assert all(words in missing.detail for missing in collection.missing)
    assert again == (sample({**SILENT, "sm_active_ratio": 0.5}), [])
    assert at_rest_again == (sample(resting), [])


RESTING = {**SILENT, "utilization_ratio": 0.0, "power_watts": 90.0}


def test_at_rest_silence_is_told_of_when_the_gpu_worked() -> None:
    watch = ContradictionWatch()
    told = [watch.observe(sample(values), 5) for values in (*[SILENT] * 12, RESTING, SILENT)]
    (at_rest,), (at_work,) = told[-2:]
    assert at_rest.message == (
        "all profiling counters were 0 when it last worked (100% utilisation, 400 W); not known until they count"
    )
    assert at_work.message == "all profiling counters are 0 at 100% utilisation and 400 W: they are not counting"


@pytest.mark.parametrize(
    "after",
    [
        {**RESTING, "pcie_transmit_bytes_per_second": 1e9},
        {**SILENT, "fp64_active_ratio": 0.1},
        {name: value for name, value in RESTING.items() if name in BUSY},  # no counters are told any more
    ],
)
def test_silence_ends_where_any_counter_counts_or_none_is_told(after: dict[str, float]) -> None:
    watch = ContradictionWatch()
    told = [watch.observe(sample(values), 5) for values in (*[SILENT] * 12, after)]
    assert (len(told[-2]), told[-1]) == (1, [])
    assert watch.without_silent(sample(after)) == sample(after)
    assert watch.observe(sample(RESTING), 5) == []


def test_the_counters_of_other_gpus_stay() -> None:
    watch, other = ContradictionWatch(), labels_of(gpu=1, uuid="GPU-1")
    counts = Reading(GPU + "sm_active_ratio", 0.0, other, 1)
    both = Collection((*sample(SILENT).readings, counts))
    for _ in range(10):
        watch.observe(both, 5)
    assert counts in watch.without_silent(both).readings


@pytest.mark.parametrize(
    "values",
    [
        BUSY,  # no counters: not known is not silent
        {**BUSY, "tensor_active_ratio": 0.0, "dram_active_ratio": 0.0},  # a kernel that spins
        {**BUSY, "sm_active_ratio": 0.0, "pcie_transmit_bytes_per_second": 1e9},  # they stop together, or not at all
        {**BUSY, "power_watts": 140.0, "sm_active_ratio": 0.0},  # idle, the utilisation lags behind
        {**BUSY, "utilization_ratio": 0.0, "sm_active_ratio": 0.0},
        {"sm_active_ratio": 0.0, "power_watts": 700.0, "power_limit_watts": 700.0},
    ],
)
def test_what_is_not_known_contradicts_nothing(values: dict[str, float]) -> None:
    assert codes(*[sample(values)] * 20) == []


GHOST = {"utilization_ratio": 1.0, "memory_used_bytes": 5e8, "memory_total_bytes": 8e10}


def test_bug_46_a_ghost_that_is_busy_without_a_process() -> None:
    assert codes(*[sample(GHOST, processes=0)] * 10) == ["busy_without_process"]


@pytest.mark.parametrize(
    ("values", "processes"),
    [
        (GHOST, 1),
        (GHOST, None),  # whether there are processes is not known
        ({**GHOST, "sm_active_ratio": 0.9}, 0),
        ({**GHOST, "memory_used_bytes": 2e10}, 0),  # a process of another container holds it
        ({"utilization_ratio": 1.0}, 0),
    ],
)
def test_a_gpu_that_somebody_may_hold_is_no_ghost(values: dict[str, float], processes: float | None) -> None:
    assert codes(*[sample(values, processes=processes)] * 20) == []
