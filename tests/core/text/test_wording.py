"""Numbers and names are formatted as a person would write them."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.kernels.job_kernels import _OF_CAUSE
from stepscope.core.documents.analysis import MeshSizes
from stepscope.core.text import numbers, wording
from stepscope.core.vocabulary import Cause, Reason, TimeCategory
from tests.dashboard import example_run as example


def plain(text: str) -> str:
    """The text with ordinary spaces."""
    return text.replace("\u202f", " ")


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.314, "31.4%"), (1.0, "100.0%"), (0.0, "0.0%"), (0.0003, "<0.1%"), (-0.00001, "0.0%"), (None, "–")],
)
def test_fractions_read_as_percent(fraction: float | None, text: str) -> None:
    assert plain(numbers.percent(fraction)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(110.0, "110.0 ms"), (34.62, "34.6 ms"), (1.234, "1.2 ms"), (0.87, "870 µs"), (1873.94, "1,873.9 ms"),
     (12_400.0, "12.4 s"), (9999.9, "9,999.9 ms"),
     (0.0, "0 ms"), (0.9997, "1.0 ms"), (None, "–"), (-2.0, "-2.0 ms")],
)  # fmt: skip
def test_times_have_a_unit_that_fits(value: float | None, text: str) -> None:
    assert plain(numbers.milliseconds(value)) == text


@given(st.floats(min_value=1e-2, max_value=1e6, allow_nan=False))
def test_a_time_reads_back_within_five_percent(value: float) -> None:
    number, unit = plain(numbers.milliseconds(value)).split(" ")

    assert math.isclose(float(number.replace(",", "")) * {"s": 1e3, "ms": 1.0, "µs": 1e-3}[unit], value, rel_tol=0.05)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(4, "4 B"), (1536, "1.5 KiB"), (33_554_432, "32.0 MiB"), (5 * 2**40, "5.0 TiB"), (None, "–")],
)
def test_sizes_are_binary(num_bytes: int | None, text: str) -> None:
    assert plain(numbers.size(num_bytes)) == text


@pytest.mark.parametrize(
    ("ranks", "world_size", "text"),
    [([0, 1, 2, 5], 8, "ranks 0–2, 5"), ([3], 8, "rank 3"), (list(range(8)), 8, "all 8 ranks"), ([0], 1, "rank 0"),
     ([0, 1], 2, "both ranks"),
     ([], 8, "no rank in particular"), ([4, 4, 3], None, "ranks 3–4")],
)  # fmt: skip
def test_ranks_are_folded_into_ranges(ranks: list[int], world_size: int | None, text: str) -> None:
    assert numbers.ranks_words(ranks, world_size=world_size) == text


def test_the_layout_leaves_out_what_is_not_known() -> None:
    assert wording.mesh_words(MeshSizes(tp=2, pp=None, dp=4)) == "TP 2 × DP 4"
    assert wording.mesh_words(MeshSizes()) == ""
    assert wording.mesh_words(MeshSizes(dp=8, ep=8)) == "DP 8, EP 8 inside"
    assert wording.mesh_words(MeshSizes(ep=8)) == "EP 8"


def test_every_name_reads_without_underscores() -> None:
    names = [
        *(wording.cause_words(cause) for cause in Cause),
        *(wording.category_words(heading) for heading in TimeCategory),
        *(wording.reason_words(reason) for reason in Reason),
    ]

    assert not [name for name in names if "_" in name or not name]
    assert set(wording.CATEGORY_MEANINGS) == set(TimeCategory)


def test_causes_and_categories_of_a_job_without_a_gpu_speak_of_operators() -> None:
    assert wording.cause_words(Cause.COMPUTE_BOUND, on_cpu=True) == "Busy in operators"
    assert wording.cause_phrase(Cause.HOST_BOUND, on_cpu=True) == "Python and framework code between operators"
    assert wording.category_phrase(TimeCategory.HOST_BOUND, on_cpu=True) == "between operators"
    assert wording.cause_words(Cause.DATA_LOADING, on_cpu=True) == "Data loading"


@given(st.one_of(st.none(), st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1e300]), st.floats(min_value=1e16)))
def test_numbers_nobody_can_read_are_unknown(value: float | None) -> None:
    assert numbers.percent(value) == numbers.milliseconds(value) == numbers.bandwidth(value) == numbers.UNKNOWN


@given(st.one_of(st.integers(max_value=-1), st.integers(min_value=2**64), st.just(10**5000)))
def test_whole_numbers_that_cannot_be_are_unknown(number: int) -> None:
    assert numbers.count(number) == numbers.size(number) == numbers.moment(number) == numbers.UNKNOWN


@given(st.one_of(st.floats(), st.integers()))
def test_no_number_raises(value: float) -> None:
    assert numbers.percent(value)
    assert numbers.milliseconds(value)
    assert numbers.bandwidth(value)


@pytest.mark.parametrize(
    ("gpu", "kind", "simulated", "text"),
    [("NVIDIA H100", "gpu", False, "NVIDIA H100"), (None, "gpu", False, "GPU (name not recorded)"),
     (None, "cpu", False, "CPU"), (None, "cpu", True, "CPU, simulated compute"), (None, None, False, "CPU")],
)  # fmt: skip
def test_the_device_is_named_as_far_as_it_is_known(
    gpu: str | None, kind: str | None, simulated: bool, text: str
) -> None:
    job = example.make_analysis(example.make_timelines()).job

    assert wording.device_words(replace(job, gpu=gpu, device_kind=kind, simulated_compute=simulated)) == text


def test_the_analyzers_metrics_read_as_words() -> None:
    assert wording.metric_words("pipeline_structural") == "Bubble by the schedule alone"
    assert wording.metric_words("something.new_here") == "Something new here"
    assert wording.metric_words("share_of_late_host_time: cpu_limited") == "CPU delay (cpu limited)"


def test_every_metric_of_the_trace_analysis_has_words_of_its_own() -> None:
    """Those of the fleet are names of exported metrics, which are quoted as they are."""
    found = analyzer_metrics()
    without = {metric for metric in found if metric.partition(": ")[0] not in wording._METRIC_TITLES}

    assert len(found) > 20
    assert without == set()
    assert not any(":" in wording.metric_words(metric) for metric in found)


def analyzer_metrics() -> set[str]:
    """Names of the evidence that the analysis of traces and step records gives."""
    return {metric for path in _ANALYZER.rglob("*.py") if "fleet" not in path.parts for metric in _metrics(path)}


def _metrics(path: Path) -> Iterator[str]:
    """Names given to `Evidence`, of f-strings with each name that they may become."""
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Evidence"):
            continue
        name = ast.unparse(call.args[0]).removeprefix("f").strip("'")
        yield from _SPELT_OUT.get(name, (name,))


_ANALYZER = Path(wording.__file__).parents[2] / "analyzer"
_SPELT_OUT = {
    "share_of_{of_what}: {reason}": ("share_of_late_host_time: dispatch", "share_of_blocked_time: reads_value"),
    "throttled_time: {reason}": ("throttled_time: heat",),
    "other_process_memory: {who}": ("other_process_memory: process 7 of user 1000",),
    "blocking_calls_a_step: {reason}": ("blocking_calls_a_step: reads_value",),
    "{flag.name.lower()}_share": tuple(f"{flag.name.lower()}_share" for flags in _OF_CAUSE.values() for flag in flags),
}


def test_a_formula_is_not_torn_apart_at_its_minus() -> None:
    text = "raise micro-batches (as (P-1)/(M+P-1)) of GPT-2, TP-rank 3"

    assert wording.action_words(text) == "raise micro-batches (as (P−1)/(M+P−1)) of GPT-2, TP-rank 3"


def test_moments_are_utc_and_say_so() -> None:
    assert numbers.moment(1_785_938_592_123_456_789) == "2026-08-05 14:03 UTC"


def test_numbers_that_follow_one_another_are_a_run() -> None:
    assert numbers.number_runs([0, 1, 2, 5], dash="-") == "0-2, 5"
