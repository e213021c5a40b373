"""Counters give losses their reasons where they coincide, and leave a healthy node alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stepscope.analyzer.job_time.job_verdict import RunFacts
from stepscope.analyzer.summaries import JobContext
from stepscope.analyzer.untraced_job import analyse_untraced_job
from stepscope.core.documents.analysis import Analysis
from stepscope.core.documents.run_counters import RankCounters
from stepscope.core.protocol.counters import OtherProcess
from stepscope.core.text.verdict import verdict_text
from stepscope.core.vocabulary import Cause, Reason
from tests.analyzer.counters.messages import Values, rank_counters
from tests.analyzer.job_time.records import MS, rank_steps

_NUM_STEPS = 200
_GPU = {"memory_allocated_bytes": 1e9}
_CLOCK = 1.98e9


def _slow(index: int) -> bool:
    """One stretch of steps in three."""
    return index // 20 % 3 == 2


def _is_slow_at(at: float) -> bool:
    """Of steps of 0.5 s, the slow ones of 1 s: 20 of 10 s, 20 of 10 s, 20 of 20 s."""
    return at % 40 > 20


def _length(index: int) -> float:
    return 1000.0 if _slow(index) else 500.0


def _analysed(
    counters: Sequence[RankCounters],
    length_ms: Callable[[int], float] = lambda _: 500.0,
    more: Callable[[int], dict[str, Any]] = lambda _: {},
) -> Analysis:
    records = [rank_steps(0, [length_ms(index) for index in range(_NUM_STEPS)], more)]
    return analyse_untraced_job(RunFacts(records, counters=counters), JobContext(), world_size=1)


def _usual(_: float) -> dict[str, float]:
    return {"sm_clock_hertz": _CLOCK, "utilization_ratio": 0.95}


def _throttled(at: float) -> dict[str, float]:
    return {"sm_clock_hertz": 0.5 * _CLOCK if _is_slow_at(at) else _CLOCK}


_STEADY_SHARED = {"other_processes": 1, "other_memory_bytes": 2e9}


def test_slow_steps_with_a_low_clock_are_throttled() -> None:
    heat: Values = lambda at: {"hardware_thermal": float(_is_slow_at(at)), "hardware_slowdown": 1.0}  # noqa: E731
    verdict = (analysis := _analysed([rank_counters(130, gpu=_throttled, held=heat)], _length)).verdict
    assert (verdict.cause, verdict.reasons) == (Cause.THROTTLED, [Reason.HEAT])
    assert verdict.share == pytest.approx(60 * 0.5 / (140 * 0.5 + 60), abs=0.02)
    assert verdict.confidence <= 0.85
    assert "fans" in verdict.actions[0]
    assert "heat throttles the GPU" in verdict_text(analysis).evidence
    assert analysis.job_time is not None
    assert analysis.job_time.basis == "telemetry+counters"
    unnamed = _analysed([rank_counters(130, gpu=_throttled)], _length).verdict
    assert (unnamed.cause, unnamed.reasons) == (Cause.THROTTLED, [Reason.LOW_CLOCK])


@pytest.mark.parametrize(
    "counters",
    [
        [],
        [rank_counters(130)],  # an agent without a GPU or host
        [rank_counters(130, gpu=_usual, host=lambda at: {"pressure_io_some_seconds_total": 0.01 * at})],
        [rank_counters(130, gpu=_usual, held=lambda _: {"software_power_cap": 1.0})],  # at a full clock
        [rank_counters(130, gpu=lambda at: {"sm_clock_hertz": _CLOCK * (0.6 if not _is_slow_at(at) else 1.0)})],
        [rank_counters(130, gpu=lambda at: {"sm_clock_hertz": _CLOCK * (0.97 if _is_slow_at(at) else 1.0)})],
        [rank_counters(130, gpu=_usual, of_message=lambda _: _STEADY_SHARED)],  # there all the time
        [rank_counters(130, gpu=_throttled, start_ns=10**18)],  # of another time
        [rank_counters(130, gpu=_throttled, rank=5)],  # of another rank
    ],
)
def test_slow_steps_without_a_matching_counter_stay_unexplained(counters: list[RankCounters]) -> None:
    verdict = _analysed(counters, _length).verdict
    assert (verdict.cause, verdict.reasons) == (Cause.UNEXPLAINED, [])
    assert verdict.share == pytest.approx(60 * 0.5 / (140 * 0.5 + 60), abs=0.02)


def test_another_process_that_comes_with_the_slow_steps_is_named() -> None:
    named = {**_STEADY_SHARED, "others": (OtherProcess(4711, 1000, 2.0 * (1 << 30)),)}

    def of_message(at: float) -> dict[str, Any]:
        return named if _is_slow_at(at - 1) else {}

    analysis = _analysed([rank_counters(130, gpu=_usual, of_message=of_message)], _length)
    verdict = analysis.verdict
    assert (verdict.cause, verdict.reasons) == (Cause.CONTENTION, [Reason.GPU_SHARED])
    assert "process 4711 of user 1000 has 2 GiB of its memory" in verdict_text(analysis).evidence
    assert verdict.actions == ["end process 4711 of user 1000 on this GPU, or give the job a GPU of its own"]


def test_a_process_that_the_driver_does_not_list_shows_by_its_memory() -> None:
    def gpu(at: float) -> dict[str, float]:
        return {"sm_clock_hertz": _CLOCK, "memory_used_bytes": 30e9 if _is_slow_at(at) else 20.5e9}

    counters = rank_counters(130, gpu=gpu, of_message=lambda _: {"process_memory_bytes": 20e9})
    analysis = _analysed([counters], _length)
    assert (analysis.verdict.cause, analysis.verdict.reasons) == (Cause.CONTENTION, [Reason.GPU_SHARED])
    assert "other processes have 9.31 GiB" in verdict_text(analysis).evidence


def test_other_ranks_of_the_job_on_the_same_gpu_are_no_other_processes() -> None:
    def of_message(at: float) -> dict[str, Any]:
        return _STEADY_SHARED if _is_slow_at(at - 1) else {}

    both = [rank_counters(130, rank=rank, uuid="GPU-0", gpu=_usual, of_message=of_message) for rank in (0, 1)]
    assert _analysed(both, _length).verdict.cause is Cause.UNEXPLAINED


@pytest.mark.parametrize(
    ("host", "reasons"),
    [
        ({"cgroup_cpu_throttled_seconds_total": 0.5, "cgroup_cpu_limit_cpus": 0.0}, [Reason.CPU_LIMITED]),
        ({"cgroup_pressure_cpu_some_seconds_total": 0.99}, [Reason.CPU_LIMITED]),
        ({"cgroup_pressure_cpu_some_seconds_total": 0.3}, []),  # of each of four workers a tenth
        ({"cgroup_pressure_io_some_seconds_total": 0.99}, [Reason.SLOW_STORAGE]),
        ({"pressure_io_some_seconds_total": 0.99}, [Reason.SLOW_STORAGE]),
        ({"pressure_io_some_seconds_total": 0.99, "cgroup_pressure_io_some_seconds_total": 0.0}, []),  # of others
        ({"cpu_iowait_seconds_total": 6.0}, [Reason.SLOW_STORAGE]),
        ({"cgroup_cpu_throttled_seconds_total": 0.02, "cgroup_pressure_io_some_seconds_total": 0.05}, []),
    ],
)
def test_waits_for_data_have_the_reason_that_is_as_large(host: dict[str, float], reasons: list[Reason]) -> None:
    counters = rank_counters(100, host=lambda at: {name: rate * at for name, rate in host.items()})
    verdict = _analysed([counters], more=lambda _: {"data_wait_ns": 200 * MS}).verdict
    assert verdict.cause is Cause.DATA_LOADING
    assert [reason for reason in verdict.reasons if reason is not Reason.STARVED] == reasons
    assert verdict.share == pytest.approx(0.4)


def test_a_lack_of_cpus_names_the_limit() -> None:
    def host(at: float) -> dict[str, float]:
        return {"cgroup_cpu_throttled_seconds_total": 0.6 * at, "cgroup_cpu_limit_cpus": 2.0}

    analysis = _analysed([rank_counters(100, host=host)], more=lambda _: {"run_delay_ns": 250 * MS})
    assert (analysis.verdict.cause, analysis.verdict.reasons) == (Cause.CONTENTION, [Reason.CPU_LIMITED])
    evidence = verdict_text(analysis).evidence
    assert "CPU limit stops its threads for 60.0% of the loss, the limit is 2 CPUs" in evidence
    (action,) = analysis.verdict.actions  # neither cores of its own nor other processes
    assert action.startswith("raise the cgroup's limit of 2 CPUs (cpu.max; ")
    assert analysis.verdict.confidence == _analysed([], more=lambda _: {"run_delay_ns": 250 * MS}).verdict.confidence


@pytest.mark.parametrize(("rate", "is_known"), [(0.99, True), (0.1, False)])
def test_a_lack_of_cpus_without_a_cgroup_is_the_machines(rate: float, *, is_known: bool) -> None:
    counters = rank_counters(100, host=lambda at: {"pressure_cpu_some_seconds_total": rate * at})
    analysis = _analysed([counters], more=lambda _: {"run_delay_ns": 250 * MS})
    assert analysis.verdict.reasons == [Reason.CPU_LIMITED]
    assert ("on the machine wait for a CPU" in verdict_text(analysis).evidence) is is_known


def test_checkpoints_wait_for_storage_when_they_are_written() -> None:
    def more(index: int) -> dict[str, Any]:
        return {"phases": {"checkpoint": 5_000 * MS}} if index % 40 == 39 else {}

    def pressure(at: float, *, during: bool) -> dict[str, float]:
        whole, rest = divmod(at, 25.0)  # 39.. of 0.5 s and one of 5.5
        written = 5.0 * whole + max(rest - 20.0, 0.0)
        return {"cgroup_pressure_io_some_seconds_total": written if during else at - written}

    for during, reasons in ((True, [Reason.SLOW_STORAGE]), (False, [])):
        counters = rank_counters(120, host=lambda at, during=during: pressure(at, during=during))  # type: ignore[misc]
        verdict = _analysed([counters], lambda index: 5_500.0 if index % 40 == 39 else 500.0, more).verdict
        assert (verdict.cause, verdict.reasons) == (Cause.CHECKPOINT, reasons)


def test_without_counters_it_is_said_what_they_would_add() -> None:
    analysis = _analysed([])
    assert analysis.job_time is not None
    (layer,) = [one for one in analysis.job_time.layers if one.layer == "counters"]
    assert (layer.used, layer.agrees) == (False, None)
    assert verdict_text(analysis).lines()[-1] == f"Counters  {layer.note}"
    assert "stepscope agent run" in layer.note
    counted = _analysed([rank_counters(100, gpu=_usual)])
    assert verdict_text(counted).lines()[-1].startswith("Confidence")
    assert analysis.job_time.basis == "telemetry"
