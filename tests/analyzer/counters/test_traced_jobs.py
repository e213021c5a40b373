"""Counters beside traces: clocks of stragglers, processes behind pauses, and whether the GPUs' busy share agrees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from stepscope.analyzer.counters.agreement import BusyShare
from stepscope.analyzer.counters.loss_reasons import CountedSteps
from stepscope.analyzer.counters.rank_signals import rank_signals
from stepscope.analyzer.job_time.job_losses import JobLosses
from stepscope.analyzer.job_time.job_verdict import RunFacts
from stepscope.analyzer.job_time.loss import BOUND, TRACE, Loss
from stepscope.analyzer.job_time.steps import job_steps
from stepscope.analyzer.job_time.training_time import training_time
from stepscope.analyzer.summaries import JobContext
from stepscope.core.documents.analysis import Analysis, EvidenceLayer
from stepscope.core.documents.run_counters import RankCounters
from stepscope.core.protocol.counters import OtherProcess
from stepscope.core.text.verdict import verdict_text
from stepscope.core.vocabulary import Cause, Reason
from tests.analyzer.build import TraceBuilder, three_captured_steps
from tests.analyzer.counters.messages import Values, rank_counters
from tests.analyzer.job_time.records import captured, rank_steps
from tests.analyzer.readings import analyse

_CAPTURED_US = 800_000


def _trace(kernels_us: tuple[int, int, int]) -> TraceBuilder:
    """Three captured steps of 800 ms, each with one kernel."""
    return three_captured_steps(_CAPTURED_US, kernels_us)


def _analysed(
    counters: Sequence[RankCounters],
    *,
    step_ms: float = 600.0,
    kernels_us: tuple[int, int, int] = (400_000, 400_000, 400_000),
) -> Analysis:
    lengths = [800.0 if 4 <= index <= 6 else step_ms for index in range(60)]
    records = rank_steps(0, lengths, captured(4, 6))
    return analyse(_trace(kernels_us), context=JobContext(run=RunFacts([records], counters=counters)))


def _busy(share: float, name: str = "graphics_engine_active_ratio") -> RankCounters:
    return rank_counters(40, gpu=lambda _: {name: share})


def _layer(analysis: Analysis) -> EvidenceLayer:
    assert analysis.job_time is not None
    (layer,) = [one for one in analysis.job_time.layers if one.layer == "counters"]
    return layer


@pytest.mark.parametrize("name", ["graphics_engine_active_ratio", "utilization_ratio"])
def test_a_busy_share_as_in_the_breakdown_agrees(name: str) -> None:
    analysis = _analysed([_busy(0.7, name)])
    assert (_layer(analysis).used, _layer(analysis).agrees) == (True, True)
    assert "GPU counters agree" in verdict_text(analysis).confidence
    assert analysis.job_time is not None
    assert analysis.job_time.basis == "telemetry+trace+counters"


@pytest.mark.parametrize("share", [0.99, 0.3])
def test_another_busy_share_is_a_finding_and_takes_confidence(share: float) -> None:
    alone, analysis = _analysed([]), _analysed([_busy(share)])
    assert _layer(analysis).agrees is False
    assert f"GPUs busy {share:.0%} of the unprofiled steps, 67% by the breakdown" in _layer(analysis).note
    assert [one.code for one in analysis.warnings if one.code == "counters_disagree"]
    assert "GPU counters disagree" in verdict_text(analysis).confidence
    assert analysis.verdict.confidence <= 0.65 < alone.verdict.confidence
    assert (analysis.verdict.cause, analysis.verdict.share) == (alone.verdict.cause, alone.verdict.share)


@pytest.mark.parametrize(
    ("counted", "agrees"), [((0.3, 0.99), True), ((0.6, 0.8), True), ((0.9, 0.99), False), ((0.2, 0.4), False)]
)
def test_of_several_ranks_the_idlest_is_as_idle_and_the_busiest_as_busy(
    counted: tuple[float, float], *, agrees: bool
) -> None:
    share = BusyShare(counted, 0.6, 0.7, 0.15)
    assert (share.agrees, share.note == "") == (agrees, agrees)


def test_a_gpu_that_is_throttled_all_the_time_is_a_finding_without_a_cost() -> None:
    def gpu(_: float) -> dict[str, float]:
        return {"sm_clock_hertz": 1.2e9, "sm_clock_max_hertz": 2e9}

    hot, alone = _analysed([rank_counters(40, gpu=gpu, held=lambda _: {"hardware_thermal": 1.0})]), _analysed([])
    (notice,) = [one for one in hot.warnings if one.code == "gpu_throttled"]
    assert notice.message == "rank 0: its GPU runs at 60% of its highest clock (heat in 100% of the time)"
    assert (hot.verdict.cause, hot.verdict.share) == (alone.verdict.cause, alone.verdict.share)
    cool = _analysed([rank_counters(40, gpu=gpu)])
    assert "gpu_throttled" not in [one.code for one in cool.warnings]


@pytest.mark.parametrize(
    "counters",
    [
        rank_counters(40, gpu=lambda _: {"sm_clock_hertz": 1e9}),
        rank_counters(10, gpu=lambda at: {"graphics_engine_active_ratio": 0.1} if at < 5 else {}),  # profiled, too few
        rank_counters(12, gpu=lambda _: {"utilization_ratio": 0.1}),
        rank_counters(40, host=lambda at: {"pressure_io_some_seconds_total": at}),
    ],
)
def test_too_few_samples_are_not_compared(counters: RankCounters) -> None:
    layer = _layer(_analysed([counters]))
    assert (layer.used, layer.agrees) == (True, None)


def test_pauses_in_kernels_are_certain_where_a_process_is_counted() -> None:
    kernels_us = (700_000, 200_000, 600_000)
    shared = {"other_processes": 1, "other_memory_bytes": 3 * 2.0**30}
    alone = _analysed([], kernels_us=kernels_us).verdict
    assert (alone.cause, alone.reasons, alone.confidence) == (Cause.CONTENTION, [Reason.GPU_SHARED], 0.7)
    for others, words in (
        ((OtherProcess(4711, 1000, 3 * 2.0**30),), "process 4711 of user 1000 has 3 GiB of its memory"),
        ((), "other processes have 3 GiB of its memory"),
    ):
        fields: dict[str, Any] = {**shared, "others": others}
        counters = rank_counters(40, gpu=lambda _: {"sm_clock_hertz": 1e9}, of_message=lambda _, f=fields: f)  # type: ignore[misc]
        analysis = _analysed([counters], kernels_us=kernels_us)
        assert (analysis.verdict.cause, analysis.verdict.reasons) == (Cause.CONTENTION, [Reason.GPU_SHARED])
        assert analysis.verdict.share == alone.share
        assert analysis.verdict.confidence > 0.7
        assert words in verdict_text(analysis).evidence


def test_a_process_on_the_gpu_of_a_healthy_job_is_no_reason() -> None:
    shared = {"other_processes": 1, "other_memory_bytes": 3 * 2.0**30}
    with_it = _analysed([rank_counters(40, gpu=lambda _: {"sm_clock_hertz": 1e9}, of_message=lambda _: shared)])
    alone = _analysed([])
    assert (with_it.verdict.cause, with_it.verdict.reasons) == (alone.verdict.cause, alone.verdict.reasons)


def _straggler(loss: Loss, clock: float, held: Values = lambda _: {}) -> Loss:
    """The loss, with what the counters of four ranks tell, the third of which runs at this part of their clock."""
    records = [rank_steps(rank, [500.0] * 60) for rank in range(4)]
    steps = job_steps(records, {})
    assert steps is not None
    counters = [
        rank_counters(
            30,
            rank=rank,
            gpu=lambda _, of=clock if rank == 2 else 1.0: {"sm_clock_hertz": 1.98e9 * of},  # type: ignore[misc]
            held=held if rank == 2 else lambda _: {},
        )
        for rank in range(4)
    ]
    of_job = CountedSteps(training_time(steps, []), records, rank_signals(counters), {Cause.STRAGGLER: [2]})
    (refined,) = of_job.refined(JobLosses(500.0, 0.0, [loss], {}, 0.0, None)).losses
    assert (refined.cause, refined.ms, refined.alone_ms) == (loss.cause, loss.ms, loss.alone_ms)
    return refined


@pytest.mark.parametrize(
    ("clock", "held", "reasons"),
    [
        (0.7, {"hardware_thermal": 1.0, "hardware_slowdown": 1.0}, [Reason.HEAT]),
        (0.7, {"software_power_cap": 1.0}, [Reason.POWER_CAP]),
        (0.7, {"hardware_power_brake": 1.0}, [Reason.HARDWARE_SLOWDOWN]),
        (0.7, {"application_clocks": 1.0}, [Reason.CLOCK_SETTING]),
        (0.7, {}, [Reason.LOW_CLOCK]),
        (0.95, {"software_power_cap": 1.0}, []),  # too little for a loss of a quarter
        (1.0, {"hardware_thermal": 1.0}, []),
        (1.2, {}, []),
    ],
)
@pytest.mark.parametrize("ranks", [[2], []])
def test_a_straggler_with_a_lower_clock_than_its_peers(
    clock: float, held: dict[str, float], reasons: list[Reason], ranks: list[int]
) -> None:
    loss = Loss(Cause.STRAGGLER, 90.0, ranks=ranks, basis=TRACE, alone_ms=125.0)
    counted = _straggler(loss, clock, lambda _: held).counted
    assert (reasons, [2] if reasons else []) == (
        ([], []) if counted is None else (counted.reasons, counted.evidence[0].ranks)
    )


@pytest.mark.parametrize(("not_started", "cause"), [(True, Cause.CONTENTION), (False, Cause.DEVICE_GAP)])
def test_queued_kernels_that_start_late_beside_another_process(*, not_started: bool, cause: Cause) -> None:
    records = [rank_steps(0, [500.0] * 60)]
    steps = job_steps(records, {})
    assert steps is not None
    shared = {"other_processes": 2, "other_memory_bytes": None}
    counters = [rank_counters(30, gpu=lambda _: {"sm_clock_hertz": 1e9}, of_message=lambda _: shared)]
    reasons = {Cause.DEVICE_GAP: [Reason.NOT_STARTED] if not_started else []}
    of_job = CountedSteps(training_time(steps, []), records, rank_signals(counters), {}, reasons)
    losses = JobLosses(500.0, 0.0, [Loss(Cause.DEVICE_GAP, 200.0, basis=BOUND)], {}, 0.0, None)
    (refined,) = of_job.refined(losses).losses
    assert (refined.cause, refined.ms) == (cause, 200.0)


@pytest.mark.parametrize(
    ("rates", "num_hosts", "from_trace", "reasons"),
    [
        ({"network_transmit": 2e9, "infiniband_transmit": 1e3}, 2, [], [Reason.WRONG_TRANSPORT]),
        ({"network_transmit": 2e9, "infiniband_transmit": 1e3}, 1, [], None),
        ({"network_transmit": 2e9}, 2, [], None),  # there is no InfiniBand
        ({"network_transmit": 1e6, "infiniband_transmit": 0.0}, 2, [], None),
        ({"network_transmit": 2e9, "infiniband_transmit": 9e9}, 2, [], None),
        ({"infiniband_errors": 5.0}, 2, [Reason.SLOW_LINK], [Reason.SLOW_LINK]),
        ({"infiniband_errors": 5.0}, 2, [Reason.NO_OVERLAP], None),
        ({"infiniband_errors": 0.0}, 2, [Reason.SLOW_LINK], None),
    ],
)
def test_communication_on_the_wrong_network_or_with_errors(
    rates: dict[str, float], num_hosts: int, from_trace: list[Reason], reasons: list[Reason] | None
) -> None:
    records = [rank_steps(0, [500.0] * 60)]
    steps = job_steps(records, {})
    assert steps is not None

    def host(at: float) -> dict[str, float]:
        names = {name: f"{name}_total" if "errors" in name else f"{name}_bytes_total" for name in rates}
        return {names[name]: rate * at for name, rate in rates.items()}

    signals = rank_signals([rank_counters(30, host=host)])
    training, of_trace = training_time(steps, []), {Cause.COMMUNICATION: from_trace}
    of_job = CountedSteps(training, records, signals, {}, of_trace, num_hosts)
    losses = JobLosses(500.0, 0.0, [Loss(Cause.COMMUNICATION, 200.0)], {}, 0.0, None)
    (refined,) = of_job.refined(losses).losses
    assert (None if refined.counted is None else refined.counted.reasons) == reasons
