"""History of samples: kept, bounded and counted correctly."""

from __future__ import annotations

import pytest

from stepscope.agent.fleet.history import KEPT_SECONDS, GpuHistory, HostHistory, gpu_values_by_device
from stepscope.agent.polling import SourceState
from stepscope.core.hardware.devices import device_in
from stepscope.core.metrics.agent import TRAINING
from stepscope.core.metrics.readings import CGROUP, GPU, HOST, PROCESS, Reading, labels_of, with_labels
from tests.agent.fleet.states import COMPUTING, GPU0, SECOND, of_gpu, state


def _add(history: GpuHistory, values: dict[str, float], second: int) -> None:
    told = gpu_values_by_device([state("nvml", of_gpu(GPU0, values, second * SECOND), second * SECOND)])
    history.add(told[device_in(dict(GPU0))])


def test_samples_are_kept_for_a_while_and_each_once() -> None:
    history = GpuHistory()
    for second in range(1, 500):
        _add(history, COMPUTING, second)
        _add(history, COMPUTING, second)
    assert len(history.last(1e9)) == KEPT_SECONDS + 1
    assert len(history.last(60)) == 60
    assert history.newest_ns == 499 * SECOND


def test_counters_become_rates_also_when_they_are_read_seldom() -> None:
    history = GpuHistory()
    _add(history, {**COMPUTING, "pcie_transmit_bytes_total": 0.0}, 1)
    assert history.last(1)[-1].pcie_transmit == 1e6  # the rate that is told
    plain = {"utilization_ratio": 1.0}
    for second in range(2, 23):
        told = gpu_values_by_device([state("nvml", [
            *of_gpu(GPU0, plain, second * SECOND),
            Reading(GPU + "nvlink_transmit_bytes_total", second // 10 * 50e9, GPU0, second // 10 * 10 * SECOND),
        ], second * SECOND)])  # fmt: skip
        history.add(told[device_in(dict(GPU0))])
    assert history.last(1)[-1].link_bytes == pytest.approx(5e9)
    _add(history, plain, 23)
    assert history.last(1)[-1].link_bytes is None


def test_power_at_rest_is_learned_when_it_has_settled() -> None:
    history = GpuHistory()
    resting = {**COMPUTING, "graphics_engine_active_ratio": 0.0, "utilization_ratio": 0.0, "sm_clock_hertz": 1.98e9}
    for second, watts in enumerate([400, 90, 121, 121, 121, 121, 121, 122, 121], 1):
        _add(history, {**resting, "power_watts": float(watts)}, second)
    assert history.facts.idle_watts == 121
    _add(history, {**resting, "power_watts": 72.0, "sm_clock_hertz": 0.345e9}, 10)
    assert history.facts.idle_watts == 121


def _host(second: int, *, cpu: float, stopped: float, waited: float, sent: float) -> list[SourceState]:
    time_ns = second * SECOND
    host = [
        Reading(PROCESS + "info", 1, labels_of(pid=7, command="python", cgroup="/pod/job"), time_ns),
        Reading(PROCESS + "cpu_seconds_total", cpu, labels_of(pid=7, mode="user"), time_ns),
        Reading(PROCESS + "cpu_seconds_total", cpu / 2, labels_of(pid=7, mode="system"), time_ns),
        Reading(CGROUP + "cpu_throttled_seconds_total", stopped, labels_of(cgroup="/pod"), time_ns),
        Reading(HOST + "pressure_seconds_total", waited, labels_of(resource="io", share="some"), time_ns),
        Reading(HOST + "pressure_seconds_total", 99 * waited, labels_of(resource="cpu", share="some"), time_ns),
        Reading(HOST + "infiniband_transmit_bytes_total", sent, labels_of(device="mlx5_0", port=1), time_ns),
        Reading(HOST + "infiniband_transmit_bytes_total", sent, labels_of(device="mlx5_1", port=1), time_ns),
    ]
    holds = [Reading(GPU + "process_memory_bytes", 1e9, with_labels(GPU0, pid=7, kind="compute"), time_ns)]
    return [state("nvml", holds, time_ns), state("host", host, time_ns)]


def test_the_host_is_told_by_rates_of_the_processes_on_the_gpu() -> None:
    history = HostHistory()
    assert history.use_of("GPU-0", 60).cpus is None
    for second in range(0, 130, 5):
        history.observe(_host(second, cpu=0.4 * second, stopped=2.0 * second, waited=0.25 * second, sent=1e9 * second))
        history.observe(_host(second, cpu=0.0, stopped=0.0, waited=0.0, sent=0.0))  # nothing new
    use = history.use_of("GPU-0", 60)
    assert use.cpus == pytest.approx(0.6)
    assert use.stopped_cpus == pytest.approx(2.0)
    assert use.io_wait == pytest.approx(0.25)
    assert use.network_bytes == pytest.approx(2e9)
    other = history.use_of("GPU-1", 60)
    assert (other.cpus, other.stopped_cpus) == (None, None)
    assert other.io_wait == pytest.approx(0.25)


def test_a_counter_that_starts_anew_is_not_known() -> None:
    history = HostHistory()
    history.observe(_host(0, cpu=100.0, stopped=0, waited=0, sent=5e9))
    history.observe(_host(10, cpu=1.0, stopped=0, waited=0, sent=1e9))
    use = history.use_of("GPU-0", 60)
    assert (use.cpus, use.network_bytes) == (None, None)


def test_training_itself_tells_how_long_it_waited_for_data() -> None:
    history = HostHistory()
    for second in (0, 5, 10):
        rank = labels_of(run="r1", rank=3)
        told = [
            Reading(TRAINING + "info", 1, with_labels(rank, uuid="GPU-0", pid=7), second * SECOND),
            Reading(TRAINING + "step_seconds", 0.4, rank, second * SECOND),
            Reading(TRAINING + "data_wait_seconds", 0.3, rank, second * SECOND),
        ]
        history.observe([state("host", [], second * SECOND), state("training", told, second * SECOND)])
    assert history.use_of("GPU-0", 60).data_wait == pytest.approx(0.75)
    assert history.use_of("GPU-1", 60).data_wait is None


def test_a_process_that_does_not_hold_a_gpu_says_nothing_about_its_data() -> None:
    history = HostHistory()
    for second in (0, 5, 10):
        told = []
        for pid, waited in ((8, 0.4), (7, 0.1), (9, 0.3)):  # 7 is on the GPU; all say so
            rank = labels_of(run=f"r{pid}", rank=0)
            told += [
                Reading(TRAINING + "info", 1, with_labels(rank, uuid="GPU-0", pid=pid), second * SECOND),
                Reading(TRAINING + "step_seconds", 0.4, rank, second * SECOND),
                Reading(TRAINING + "data_wait_seconds", waited, rank, second * SECOND),
            ]
        host = _host(second, cpu=1.0, stopped=0.0, waited=0.0, sent=0.0)
        history.observe([*host, state("training", told, second * SECOND)])
    assert history.use_of("GPU-0", 60).data_wait == pytest.approx(0.25)
