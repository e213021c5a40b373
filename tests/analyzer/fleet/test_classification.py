"""Each class from its physics, also where counters are missing or contradict each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from stepscope.analyzer.fleet import GpuFacts, GpuSample, HostUse, classify_gpu, classify_job
from stepscope.core.documents.jobs import FLEET_CAUSES, Counters, FleetClass
from stepscope.core.text.wording import cause_phrase
from stepscope.core.vocabulary import Cause, Reason
from tests.analyzer.fleet.samples import (
    COMPUTING,
    H100,
    HELD,
    LAUNCHING,
    PROFILING,
    SAVING,
    SPINNING,
    STARVED,
    STREAMING,
    WAITING,
    series,
)

_MINUTE = 60


def _minute(*samples: GpuSample, facts: GpuFacts = H100, host: HostUse | None = None) -> FleetClass:
    return classify_gpu(series(*samples, count=_MINUTE), facts, host)


def _without_profiling(*samples: GpuSample) -> list[GpuSample]:
    return [replace(sample, **PROFILING) for sample in samples]


@pytest.mark.parametrize(
    ("samples", "cause"),
    [
        ([COMPUTING], Cause.COMPUTE_BOUND),
        ([STREAMING], Cause.MEMORY_BOUND),
        ([WAITING], Cause.COMMUNICATION),
        ([STARVED], Cause.DATA_LOADING),
        ([COMPUTING, HELD, HELD], Cause.DATA_LOADING),
        ([LAUNCHING], Cause.HOST_BOUND),
        ([HELD], Cause.IDLE),
        ([SPINNING], Cause.HANG),
        ([COMPUTING, SAVING, SAVING, HELD], Cause.CHECKPOINT),
    ],
)
def test_classes(samples: Sequence[GpuSample], cause: Cause) -> None:
    found = _minute(*samples)
    assert found.cause is cause
    assert found.cause in FLEET_CAUSES
    assert found.evidence
    assert 0 < found.confidence <= 1
    assert found.counters is Counters.SM
    assert found.summary.startswith(cause_phrase(cause))


@pytest.mark.parametrize(
    ("sample", "cause"),
    [
        (COMPUTING, Cause.COMPUTE_BOUND),
        (STREAMING, Cause.MEMORY_BOUND),
        (WAITING, Cause.COMMUNICATION),
        (STARVED, Cause.DATA_LOADING),
        (replace(LAUNCHING, utilization=0.4), Cause.HOST_BOUND),
        (HELD, Cause.IDLE),
        (SPINNING, Cause.HANG),
    ],
)
def test_classes_without_profiling_counters(sample: GpuSample, cause: Cause) -> None:
    """A100 and older under NVML: utilisation, memory, power, NVLink. Bug log 18."""
    found = _minute(*_without_profiling(sample))
    assert found.cause is cause
    assert found.counters is Counters.POWER
    assert found.confidence <= _minute(sample).confidence


def test_a_default_page_has_no_sm_activity() -> None:
    for sample in (COMPUTING, STREAMING, WAITING, STARVED, LAUNCHING, HELD, SPINNING):
        found = _minute(replace(sample, sm=None, vector=None, throttle_reasons=None))
        assert found.cause is _minute(sample).cause
        assert found.counters is Counters.PIPES


def test_a_communication_kernel_that_spins_is_no_computation() -> None:
    """SMs busy, links moving, no arithmetic."""
    found = _minute(replace(SPINNING, link_bytes=40e9, sm=0.18, power_watts=230.0))
    assert found.cause is Cause.COMMUNICATION
    assert found.shares is not None
    assert (found.shares.waiting or 0) > 0.9


def test_a_wait_is_a_hang_only_after_a_while_and_surer_the_longer() -> None:
    short = classify_gpu(series(SPINNING, count=40), H100)
    assert short.cause is Cause.COMMUNICATION
    minute, longer = (classify_gpu(series(SPINNING, count=count), H100) for count in (61, 300))
    assert minute.cause is longer.cause is Cause.HANG
    assert longer.confidence > minute.confidence


def test_a_hang_is_seen_also_where_some_counters_are_missing() -> None:
    for name in ("dram", "tensor", "engine", "sm", "link_bytes"):
        nothing: dict[str, Any] = {name: None}
        assert _minute(replace(SPINNING, **nothing)).cause is Cause.HANG
    assert _minute(replace(SPINNING, power_watts=None)).cause is not Cause.HANG


@pytest.mark.parametrize(("uncounted", "confidence"), [(0, 0.49), (6, 0.49), (7, 0.33), (60, 0.33)])
def test_a_hang_is_as_sure_as_most_of_its_samples(uncounted: int, confidence: float) -> None:
    samples = [replace(SPINNING, **PROFILING)] * uncounted + [SPINNING] * (60 - uncounted)
    found = _minute(*samples)
    assert found.cause is Cause.HANG
    assert found.confidence == pytest.approx(confidence, abs=0.005)


@pytest.mark.parametrize(
    "other",
    [
        replace(SPINNING, **PROFILING | {"utilization": 0.5}),  # pauses, where counters have a gap
        replace(SPINNING, **PROFILING | {"memory_busy": 0.1}),
        replace(SPINNING, pcie_transmit=400e6, pcie_receive=400e6),  # bytes to peers beyond PCIe
        replace(SPINNING, power_watts=330.0),  # power
        replace(SPINNING, tensor=0.1),  # arithmetic
        replace(SPINNING, link_bytes=40e9),  # bytes
        replace(SPINNING, engine=0.5, utilization=0.5),  # pauses
    ],
)
def test_anything_that_moves_is_no_hang(other: GpuSample) -> None:
    assert _minute(SPINNING, SPINNING, SPINNING, other).cause is not Cause.HANG


def test_small_kernels_on_a_gpu_that_talks_to_nobody_are_no_communication() -> None:
    alone = replace(SPINNING, sm=0.2, tensor=0.02, dram=0.05, power_watts=220.0)
    assert _minute(alone).cause is Cause.LATENCY_BOUND
    assert _minute(replace(alone, link_bytes=5e9)).cause is Cause.COMMUNICATION
    unknown = replace(alone, link_bytes=None, pcie_transmit=None, pcie_receive=None)
    assert _minute(unknown, facts=replace(H100, has_links=None)).cause is Cause.INSUFFICIENT_EVIDENCE


def test_peers_beyond_pcie_are_peers() -> None:
    """One GPU a node, gradients over sockets: no NVLink, tens of MB/s each way."""
    remote = replace(WAITING, link_bytes=None, pcie_transmit=60e6, pcie_receive=90e6)
    facts = replace(H100, has_links=False)
    assert _minute(remote, facts=facts).cause is Cause.COMMUNICATION
    alone = replace(remote, pcie_transmit=12e6)
    assert _minute(alone, facts=facts).cause is not Cause.COMMUNICATION


def test_counters_that_are_silent_are_not_believed() -> None:
    """Bug log 17: all profiling counters 0 while the GPU works (NVIDIA/DCGM#303)."""
    silent = replace(COMPUTING, engine=0.0, sm=0.0, tensor=0.0, dram=0.0)
    found = _minute(silent)
    assert found.cause is Cause.COMPUTE_BOUND
    assert found.counters is Counters.POWER
    assert "profiling_silent" in {evidence.metric for evidence in found.evidence}
    unknown = _minute(replace(silent, power_watts=None))
    assert unknown.cause is Cause.INSUFFICIENT_EVIDENCE


@pytest.mark.parametrize(
    "sample",
    [
        GpuSample(0, utilization=0.97),
        GpuSample(0, utilization=0.4, memory_used=6e10),
        replace(COMPUTING, engine=0.0, sm=0.0, tensor=0.0, dram=0.0, power_watts=None),
    ],
)
def test_a_class_that_is_not_known_is_not_sure(sample: GpuSample) -> None:
    found = _minute(sample)
    assert (found.cause, found.confidence) == (Cause.INSUFFICIENT_EVIDENCE, 0.0)
    job = classify_job([found, found])
    assert (job.cause, job.confidence) == (Cause.INSUFFICIENT_EVIDENCE, 0.0)


def test_a_utilisation_that_sticks_is_not_believed() -> None:
    """Bug log 46: 100 % without a process or power (lium-io#1140): neither hang nor work."""
    ghost = replace(HELD, utilization=1.0, memory_used=0.5e9, num_processes=0)
    assert _minute(ghost).cause is Cause.IDLE
    assert _minute(ghost).reasons == ()
    without = _minute(*_without_profiling(ghost))
    assert without.cause is not Cause.HANG
    assert "utilization_stuck" in {evidence.metric for evidence in without.evidence}


@pytest.mark.parametrize(
    ("reasons", "clock", "reason"),
    [
        ({"hardware_slowdown", "hardware_thermal"}, 1.2e9, Reason.HEAT),
        ({"hardware_slowdown", "hardware_power_brake"}, 0.9e9, Reason.HARDWARE_SLOWDOWN),
        ({"software_power_cap"}, 1.0e9, Reason.POWER_CAP),
        ({"application_clocks"}, 1.1e9, Reason.CLOCK_SETTING),
    ],
)
def test_a_slowed_gpu_is_throttled(reasons: set[str], clock: float, reason: Reason) -> None:
    slowed = replace(COMPUTING, throttle_reasons=frozenset(reasons), clock_hertz=clock)
    found = _minute(slowed)
    assert (found.cause, found.reasons) == (Cause.THROTTLED, (reason,))


def test_a_power_cap_under_load_is_normal_and_so_is_a_low_clock_at_rest() -> None:
    assert _minute(replace(COMPUTING, clock_hertz=1.72e9)).cause is Cause.COMPUTE_BOUND
    resting = replace(HELD, clock_hertz=0.345e9, throttle_reasons=frozenset({"idle"}))
    assert _minute(resting).cause is Cause.IDLE


def test_idle_says_whether_a_process_holds_the_gpu() -> None:
    assert _minute(HELD).reasons == (Reason.HELD,)
    assert _minute(replace(HELD, num_processes=0, memory_used=0.5e9)).reasons == ()
    elsewhere = _minute(replace(HELD, num_processes=0, memory_used=20e9))  # a process of another container
    assert elsewhere.reasons == (Reason.HELD,)


def test_a_gpu_that_never_rests_is_not_idle_however_little_it_does() -> None:
    """An H200 that a host feeds tiny kernels one by one was busy for 2 to 3.5 % of the time."""
    tiny = replace(LAUNCHING, engine=0.028, sm=0.004, utilization=0.03)
    assert _minute(tiny).cause is Cause.HOST_BOUND
    assert _minute(tiny, HELD).cause is Cause.IDLE
    assert _minute(replace(tiny, num_processes=0, memory_used=0.5e9)).cause is Cause.IDLE


@pytest.mark.parametrize(
    ("host", "cause", "reason"),
    [
        (HostUse(cpus=1.0), Cause.HOST_BOUND, None),
        (HostUse(cpus=0.3), Cause.DATA_LOADING, None),
        (HostUse(cpus=0.9, stopped_cpus=0.5), Cause.HOST_BOUND, Reason.CPU_LIMITED),
        (HostUse(io_wait=0.6), Cause.DATA_LOADING, Reason.STARVED),
        (HostUse(cpus=1.0, data_wait=0.7), Cause.DATA_LOADING, Reason.STARVED),  # it decodes in its own process
    ],
)
def test_the_processes_tell_host_from_loader(host: HostUse, cause: Cause, reason: Reason | None) -> None:
    found = _minute(STARVED, host=host)
    assert found.cause is cause
    assert reason is None or reason in found.reasons


def test_copies_both_ways_are_no_checkpoint() -> None:
    offloading = replace(HELD, pcie_transmit=8e9, pcie_receive=8e9)
    assert _minute(COMPUTING, offloading, offloading).cause is Cause.COPY


def test_a_gpu_of_another_kind_is_held_against_its_own_limits() -> None:
    """L4: 72 W. Power that is idle for an H100 is full load there."""
    sample = replace(_without_profiling(COMPUTING)[0], power_watts=70.0)
    assert _minute(sample, facts=GpuFacts("NVIDIA L4", 72.0, has_links=False)).cause is Cause.COMPUTE_BOUND
    assert _minute(sample, facts=H100).cause is not Cause.COMPUTE_BOUND


def test_no_pipe_is_active_longer_than_the_engine() -> None:
    assert _minute(GpuSample(0, utilization=1.0, engine=0.0, tensor=0.9)).cause is not Cause.IDLE


def test_nothing_known_is_unknown() -> None:
    found = _minute(GpuSample(0))
    assert (found.cause, found.shares) == (Cause.INSUFFICIENT_EVIDENCE, None)
    with pytest.raises(ValueError, match="needs a sample"):
        classify_gpu([])
