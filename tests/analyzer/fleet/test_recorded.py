"""Recorded H100s and H200s in real training get their classes, also with fewer counters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fleet_class.windows import MODES, as_minute, projected, read_windows, right_of, write_windows
from stepscope.analyzer.fleet import HostUse, classify_gpu
from stepscope.analyzer.fleet.evidence import is_polling
from stepscope.analyzer.fleet.samples import LIMITS
from stepscope.core.documents.jobs import Counters
from stepscope.core.vocabulary import Cause
from tests.analyzer.fleet.samples import series

_WINDOWS = read_windows(Path(__file__).with_name("h100x2.jsonl"))
_HALF_MINUTES = [
    window for name in ("h200x2.jsonl", "h200.jsonl") for window in read_windows(Path(__file__).with_name(name))
]
"""As the agent sees a GPU: 30 samples or, of states, 56, with figures of its processes."""
_HOST_OR_LOADER = ("pp_many", 1)
"""Large kernels, yet a late host; without host figures like a loader (docs/explanation/fleet-class.md)."""


def _outcomes(mode: str) -> dict[tuple[str, int], Cause]:
    windows = [projected(window, MODES[mode]) for window in _WINDOWS]
    return {(one.run, one.gpu): classify_gpu(one.samples, one.facts, one.host).cause for one in windows}


@pytest.mark.parametrize("mode", ["GPM", "default dcgm-exporter page"])
def test_all_but_one_are_right(mode: str) -> None:
    told = _outcomes(mode)
    wrong = [(one.run, one.gpu) for one in _WINDOWS if told[one.run, one.gpu] not in one.right]
    assert wrong == [_HOST_OR_LOADER]
    assert told[_HOST_OR_LOADER] is Cause.DATA_LOADING


def test_without_any_figure_of_links_waiting_is_unknown_and_the_rest_as_before() -> None:
    told = _outcomes("the same without NVLink")
    for window in _WINDOWS:
        here = told[window.run, window.gpu]
        unknown = window.right == {Cause.COMMUNICATION}
        assert here is Cause.INSUFFICIENT_EVIDENCE if unknown else here in window.right or window.run == "pp_many"


def test_power_says_nothing_of_windows_that_short() -> None:
    told = _outcomes("NVML without profiling counters")
    assert {one.run for one in _WINDOWS if told[one.run, one.gpu] in one.right} == {"ckpt_stall"}
    assert all(
        told[one.run, one.gpu] in one.right or told[one.run, one.gpu] is Cause.INSUFFICIENT_EVIDENCE for one in _WINDOWS
    )


def test_minutes_without_profiling_counters_are_told_by_power() -> None:
    """The same windows drawn out to a minute, with their own power: A100 and older under NVML."""
    outcomes = {}
    for window in (as_minute(projected(one, MODES["NVML without profiling counters"])) for one in _WINDOWS):
        told = classify_gpu(window.samples, window.facts)
        outcomes[window.run, window.gpu] = told.cause in window.right
        assert told.counters is Counters.POWER
        assert told.confidence <= 0.5 or told.cause not in (
            Cause.COMPUTE_BOUND,
            Cause.MEMORY_BOUND,
            Cause.COMMUNICATION,
        )
    assert {run for run, right in outcomes.items() if not right} == {
        ("fsdp", 0),  # a single sample, of which nvidia-smi says 73 %
        ("pp_few", 0),  # 23 % waiting, named from 25 % on
        _HOST_OR_LOADER,
        ("launch_bound", 0),  # unknown
    }


def test_shares_of_time_agree_with_the_trace() -> None:
    for window in _WINDOWS:
        told = classify_gpu(window.samples, window.facts)
        assert told.counters is Counters.SM
        shares = told.shares
        assert shares is not None
        assert shares.computing == pytest.approx(window.spent["compute"], abs=0.1)
        assert shares.waiting == pytest.approx(window.spent["exposed_comm"], abs=0.12)
        assert shares.empty + shares.copying == pytest.approx(window.spent["idle"] + window.spent["copy"], abs=0.17)


@pytest.mark.parametrize("mode", MODES)
def test_half_minutes_are_right_with_counters_and_known_to_be_wrong_without(mode: str) -> None:
    unknown, wrong = set(), {}
    for window in (projected(one, MODES[mode]) for one in _HALF_MINUTES):
        told = classify_gpu(window.samples, window.facts, window.host)
        if told.cause is Cause.INSUFFICIENT_EVIDENCE:
            unknown.add((window.run, window.gpu))
        elif told.cause not in window.right:
            wrong[window.run] = told.cause
            assert told.confidence < 0.6
    waiting = {("ddp-straggler", 0)}
    assert unknown == {
        "the same without NVLink": waiting,
        "nvidia-smi's figures alone": waiting
        | {("tp-wrong_transport", 0), ("tp-wrong_transport", 1), ("ddp-healthy-tcp", 0)},
    }.get(mode, set())
    churn = {"one-allocator_churn": Cause.COMPUTE_BOUND}  # 33 % empty, of which utilisation shows 21
    assert wrong == {
        "NVML without profiling counters": churn,
        "nvidia-smi's figures alone": churn | {"one-checkpoint_stall": Cause.DATA_LOADING},  # no bytes are known
    }.get(mode, {})


def test_the_hang_of_a_real_collective_is_told_by_counters_whose_first_sample_is_missing() -> None:
    (hung,) = (window for window in _HALF_MINUTES if window.run == "hung")
    assert hung.samples[0].tensor is None
    told = classify_gpu(hung.samples, hung.facts, hung.host)
    assert told.cause is Cause.HANG
    assert told.confidence == pytest.approx(0.9 * (0.4 + 0.6 * hung.seconds / 250), abs=0.01)


@pytest.mark.parametrize("seconds", [60, 240])
def test_an_all_reduce_that_takes_minutes_over_a_slow_network_is_no_hang(seconds: int) -> None:
    """Samples between the computing of a healthy job: kernels that poll at 128 W while GB/s come and go over PCIe."""
    spinning = [
        sample
        for window in _HALF_MINUTES
        if window.run == "ddp-healthy-tcp"
        for sample in window.samples
        if is_polling(sample, LIMITS) and (sample.power_watts or 0) < 140
    ]
    assert len(spinning) > 20
    drawn_out = series(*spinning, count=seconds)
    facts = _HALF_MINUTES[-1].facts
    assert classify_gpu(drawn_out, facts).cause is Cause.COMMUNICATION
    silent = [replace(sample, pcie_transmit=None, pcie_receive=None) for sample in drawn_out]
    assert classify_gpu(silent, facts).cause is Cause.HANG
    assert classify_gpu(silent, facts, HostUse(network_bytes=4e9)).cause is Cause.COMMUNICATION


@pytest.mark.parametrize(
    ("waited", "empty", "right"),
    [
        (0.05, 0.1, {Cause.MEMORY_BOUND}),
        (0.27, 0.1, {Cause.MEMORY_BOUND, Cause.COMMUNICATION}),
        (0.4, 0.3, {Cause.COMMUNICATION}),
        (0.1, 0.6, {Cause.DATA_LOADING}),
    ],
)
def test_the_label_is_the_largest_loss_of_the_trace(waited: float, empty: float, right: set[Cause]) -> None:
    spent = {"compute": 1 - waited - empty, "exposed_comm": waited, "copy": 0.0, "idle": empty}
    assert right_of(spent, Cause.DATA_LOADING, frozenset({Cause.MEMORY_BOUND})) == right


def test_a_window_is_written_and_read_again(tmp_path: Path) -> None:
    write_windows(tmp_path / "windows.jsonl", _WINDOWS)
    assert read_windows(tmp_path / "windows.jsonl") == _WINDOWS
