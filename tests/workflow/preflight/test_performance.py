"""Performance checks: rates, results and peers against their limits, and a faster GPU never rates worse."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.documents.machine_checks import DTYPES, CheckResult, Outcome, worst
from stepscope.core.hardware.gpu_catalogue import find_gpu
from stepscope.workflow.preflight import performance
from stepscope.workflow.preflight.device import Pace, num_runs_of, time_runs, timing_of
from stepscope.workflow.preflight.performance import (
    Expectation,
    judge_failure,
    judge_products,
    judge_rate,
    low_outliers,
    with_neighbours,
)
from stepscope.workflow.preflight.workers import FailureKind, Unsupported, WorkerFailure

_RATE = st.floats(min_value=1e3, max_value=1e16)
_ORDER = list(Outcome)


def judged(value: float, expectation: Expectation | None, spread: float = 0.0) -> CheckResult:
    reply = {"seconds": 1.0, "spread": spread, "num_runs": 10}
    return judge_rate("copy", (0,), reply, amount=value, unit="bytes/s", expectation=expectation)


@given(_RATE, _RATE, _RATE)
def test_who_gives_more_is_never_judged_worse(one: float, other: float, expected: float) -> None:
    expectation = Expectation(expected, "a data sheet")
    low, high = (judged(value, expectation).outcome for value in sorted((one, other)))
    assert _ORDER.index(high) <= _ORDER.index(low)


@given(_RATE)
def test_the_limits_themselves_are_good_enough(expected: float) -> None:
    expectation = Expectation(expected, "a data sheet")
    assert judged(expectation.warn_below, expectation).outcome is Outcome.PASS
    assert judged(expectation.fail_below, expectation).outcome is Outcome.WARN
    assert judged(expectation.fail_below * 0.999, expectation).outcome is Outcome.FAIL
    assert judged(expected, None).outcome is Outcome.PASS


def test_runs_that_differ_are_worth_a_warning() -> None:
    assert judged(1.0, None, spread=0.11).outcome is Outcome.WARN
    assert judged(1.0, None, spread=0.09).outcome is Outcome.PASS


def test_a_clock_that_stands_still_is_a_failure() -> None:
    reply = {"seconds": 0.0, "spread": 0.0, "num_runs": 10}
    assert judge_rate("copy", (0,), reply, amount=1.0, unit="bytes/s", expectation=None).outcome is Outcome.FAIL


def test_what_cannot_be_is_skipped_and_what_did_not_come_is_a_failure() -> None:
    assert judge_failure("copy", (1,), Unsupported("no units")) == CheckResult(
        "copy", (1,), Outcome.SKIPPED, "no units"
    )
    for kind in FailureKind:
        assert judge_failure("copy", (1,), WorkerFailure(kind, "why")).outcome is Outcome.FAIL


@given(st.integers(0, 3), st.integers(0, 3))
def test_one_wrong_result_is_a_failure(differing: int, wrong: int) -> None:
    result = judge_products("r", (0,), {"num_repeats": 20, "num_differing": differing, "num_wrong": wrong})
    assert (result.outcome is Outcome.FAIL) == (differing + wrong > 0)
    assert result.value == differing + wrong


@given(st.dictionaries(st.integers(0, 15), _RATE, max_size=16))
def test_outliers_are_below_their_limit_and_never_the_best(values: dict[int, float]) -> None:
    found = low_outliers(values)
    assert all(values[index] < outlier.limit <= outlier.usual for index, outlier in found.items())
    assert not values or max(values, key=lambda index: values[index]) not in found
    assert len(found) <= len(values) // 2 or len(values) < 4


@given(st.floats(1e6, 1e15), st.lists(st.floats(-0.02, 0.02), min_size=1, max_size=16))
def test_gpus_within_two_percent_of_each_other_are_alike(usual: float, noise: list[float]) -> None:
    assert low_outliers({index: usual * (1 + part) for index, part in enumerate(noise)}) == {}


def test_one_slow_gpu_of_eight_is_an_outlier_and_of_two_only_when_far_slower() -> None:
    assert set(low_outliers({**dict.fromkeys(range(7), 100.0), 7: 91.0})) == {7}
    assert low_outliers({**dict.fromkeys(range(7), 100.0), 7: 93.0}) == {}
    assert low_outliers({0: 100.0, 1: 90.0}) == {}
    assert set(low_outliers({0: 100.0, 1: 80.0})) == {1}
    assert low_outliers({0: 80.0}) == {}


def test_only_gpus_of_one_kind_are_compared_and_a_failure_stays_one() -> None:
    values = [100.0, 100.0, 100.0, 100.0, 50.0]
    results = [CheckResult("copy", (i,), Outcome.PASS, value=v, unit="bytes/s") for i, v in enumerate(values)]
    same = with_neighbours(results, dict.fromkeys(range(5), "H100"))
    assert [one.outcome for one in same] == [Outcome.PASS] * 4 + [Outcome.WARN]
    other = with_neighbours(results, {**dict.fromkeys(range(4), "H100"), 4: "A10"})
    assert other == results


def test_every_expectation_lies_below_its_peak_and_above_nothing() -> None:
    for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA A100-SXM4-80GB", "Tesla T4", "NVIDIA L40S"):
        gpu = find_gpu(name)
        assert gpu is not None
        assert 0 < performance.expect_memory(gpu).value < gpu.memory_bytes_per_second
        for dtype in DTYPES:
            expected = performance.expect_product(gpu, name, dtype)
            peak = gpu.peak_flops(dtype)
            assert (expected is None) == (peak is None)
            assert expected is None or peak is None or 0 < expected.fail_below < expected.value < peak


def test_measured_figures_of_others_pass() -> None:
    """Those that `expectations` names as its sources."""
    h100, h200, a100 = (find_gpu(f"NVIDIA {name}") for name in ("H100 80GB HBM3", "H200", "A100-SXM4-80GB"))
    assert h100 is not None
    assert h200 is not None
    assert a100 is not None
    h100_name = "NVIDIA H100 80GB HBM3"
    cases = [
        (794.5e12, performance.expect_product(h100, h100_name, "bfloat16")),
        (1402.6e12, performance.expect_product(h100, h100_name, "float8")),
        (769e12, performance.expect_product(h200, "NVIDIA H200", "bfloat16")),
        (267.9e12, performance.expect_product(a100, "NVIDIA A100-SXM4-80GB", "bfloat16")),
        (252.9e12, performance.expect_product(find_gpu("NVIDIA A100-PCIE-40GB") or a100, "A100 PCIe", "bfloat16")),
        (2573e9, performance.expect_memory(h100)),
        (4300e9, performance.expect_memory(h200)),
        (52.8e9, performance.expect_host_copy(h100_name, 5, 16)),
        (52.8e9, performance.expect_host_copy(h100_name, None, None)),
        (380e9, performance.expect_peer_copy(h100, h100_name, 18, 18)),
        (370e9, performance.expect_all_reduce(h100, h100_name, 8, is_meshed=True)),
    ]
    for value, expectation in cases:
        assert expectation is not None
        assert judged(value, expectation).outcome is Outcome.PASS, expectation.source


def test_links_that_lead_elsewhere_and_slots_with_fewer_lanes_give_less() -> None:
    v100 = find_gpu("Tesla V100-SXM2-16GB")
    assert v100 is not None
    assert performance.expect_peer_copy(v100, "Tesla V100-SXM2-16GB", 6, 2).value == 150e9 / 3 * 0.8
    over_pcie = performance.expect_peer_copy(v100, "Tesla V100-SXM2-16GB", 6, 0)
    assert judged(5e9, over_pcie).outcome is Outcome.PASS
    assert performance.expect_host_copy("x", 4, 8).value == performance.expect_host_copy("x", 3, 16).value


@given(st.floats(1e-7, 10.0), st.floats(0.0, 100.0), st.integers(1, 50), st.integers(51, 1000))
def test_the_number_of_runs_is_within_its_bounds(run: float, seconds: float, least: int, most: int) -> None:
    assert least <= num_runs_of(run, seconds, least, most) <= most


@given(st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=50))
def test_a_timing_is_the_median_and_its_spread_is_no_share_below_zero(times: list[float]) -> None:
    timing = timing_of(times)
    assert min(times) <= timing.seconds <= max(times)
    assert timing.spread >= 0
    assert timing.num_runs == len(times)


def test_the_first_runs_do_not_count() -> None:
    class Stopwatch:
        def __init__(self) -> None:
            self.asked: list[int] = []

        def times(self, work: object, num_runs: int) -> list[float]:  # noqa: ARG002 - the interface's
            self.asked.append(num_runs)
            return [9.0 if len(self.asked) == 1 else 0.01] * num_runs

    watch = Stopwatch()
    timing = time_runs(watch, lambda: None, Pace(0.1, 0.5, 5, 100))
    assert watch.asked == [1, 3, 10, 50]
    assert timing.seconds == 0.01


def test_the_worst_of_none_is_skipped() -> None:
    assert worst([]) is Outcome.SKIPPED
    assert worst([Outcome.PASS, Outcome.SKIPPED]) is Outcome.PASS
    assert worst([Outcome.WARN, Outcome.FAIL, Outcome.PASS]) is Outcome.FAIL
