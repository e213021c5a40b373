"""Sampling: one sample of each GPU from all sources, without invented values."""

from __future__ import annotations

from stepscope.agent.fleet.history import gpu_values_by_device
from stepscope.core.hardware.devices import device_in, device_of
from stepscope.core.metrics.readings import GPU, Reading, labels_of, with_labels
from tests.agent.fleet.states import COMPUTING, GPU0, SECOND, of_gpu, state

_DEVICE = device_in(dict(GPU0))


def test_a_sample_has_what_was_told_and_nothing_else() -> None:
    readings = of_gpu(GPU0, COMPUTING, SECOND)
    readings += [Reading(GPU + "throttle_reason", value, with_labels(GPU0, reason=reason), SECOND)
                 for reason, value in (("software_power_cap", 1), ("idle", 0))]  # fmt: skip
    readings.append(Reading(GPU + "nvlink_links", 18, with_labels(GPU0, state="up"), SECOND))
    told = gpu_values_by_device([state("nvml", readings, SECOND)])[_DEVICE]
    sample, facts = told.sample({}), told.facts(None)
    assert (sample.engine, sample.sm, sample.link_bytes, sample.num_processes) == (0.95, 0.82, 16e9, 1)
    assert sample.throttle_reasons == frozenset({"software_power_cap"})
    assert (sample.vector, sample.time_ns) == (None, SECOND)
    assert (facts.power_limit_watts, facts.clock_max_hertz, facts.has_links) == (700, 1.98e9, True)


def test_a_page_fills_what_nvml_does_not_have_and_of_both_nvml_counts() -> None:
    nvml = {name: COMPUTING[name] for name in ("utilization_ratio", "power_watts")}
    page = {"power_watts": 1.0, "graphics_engine_active_ratio": 0.9, "dram_active_ratio": 0.4}
    states = [
        state("nvml", of_gpu(GPU0, nvml, 9 * SECOND), 9 * SECOND),
        state("dcgm_exporter", of_gpu(labels_of(gpu=0, uuid="GPU-0"), page, 5 * SECOND), 5 * SECOND),
    ]
    told = gpu_values_by_device(states)[_DEVICE]
    sample = told.sample({})
    assert (sample.power_watts, sample.engine, sample.dram, sample.sm) == (680, 0.9, 0.4, None)
    assert sample.num_processes == 1  # not 2: both tell of the same
    assert told.facts(None).power_limit_watts == 700  # the data sheet's: no source has it


def test_mig_instances_stand_for_their_gpu() -> None:
    instance = labels_of(gpu=0, uuid="MIG-1", gpu_instance=7, mig_profile="1g.10gb")
    readings = of_gpu(GPU0, {"mig_enabled": 1, "power_watts": 300}, SECOND)
    readings += of_gpu(instance, {"graphics_engine_active_ratio": 0.5}, SECOND)
    assert list(gpu_values_by_device([state("nvml", readings, SECOND)])) == [device_of(instance)]


def test_old_readings_and_other_metrics_are_left_out() -> None:
    readings = of_gpu(GPU0, {"power_watts": 300}, SECOND)
    assert gpu_values_by_device([state("nvml", readings, 90 * SECOND)]) == {}
    assert gpu_values_by_device([state("host", [Reading("stepscope_host_cpus", 2, (), SECOND)], SECOND)]) == {}


def test_rates_of_counters_stand_in() -> None:
    told = gpu_values_by_device([state("nvml", of_gpu(GPU0, {"power_watts": 300}, SECOND), SECOND)])[_DEVICE]
    sample = told.sample({"nvlink_transmit_bytes_total": 5e9, "pcie_receive_bytes_total": 1e6})
    assert (sample.link_bytes, sample.pcie_receive, sample.pcie_transmit) == (5e9, 1e6, None)


def test_a_page_without_directions_tells_both_together() -> None:
    readings = of_gpu(GPU0, {"nvlink_data_bytes_per_second": 30e9}, SECOND)
    assert gpu_values_by_device([state("dcgm_exporter", readings, SECOND)])[_DEVICE].sample({}).link_bytes == 15e9


def test_mig_instances_of_a_page_are_apart_though_they_carry_their_gpus_uuid_and_are_those_of_nvml() -> None:
    seventh, eighth = (labels_of(gpu=0, uuid="GPU-0", gpu_instance=number, mig_profile="1g.10gb") for number in (7, 8))
    page = of_gpu(GPU0, {"power_watts": 300}, SECOND)
    page.append(Reading(GPU + "up", 1.0, GPU0, SECOND))
    page += [Reading(GPU + "sm_active_ratio", value, of, SECOND) for of, value in ((seventh, 0.2), (eighth, 0.9))]
    told = gpu_values_by_device([state("dcgm_exporter", page, SECOND)])
    assert {device.labels(): one.values["sm_active_ratio"] for device, one in told.items()} == {
        seventh: 0.2,
        eighth: 0.9,
    }
    own = labels_of(gpu=0, uuid="MIG-1", gpu_instance=7, compute_instance=0, mig_profile="1g.10gb")
    nvml = [Reading(GPU + "up", 1.0, GPU0, SECOND), Reading(GPU + "sm_active_ratio", 0.3, own, SECOND)]
    told = gpu_values_by_device([state("nvml", nvml, SECOND), state("dcgm_exporter", page, SECOND)])
    assert {device.labels(): one.values["sm_active_ratio"] for device, one in told.items()} == {own: 0.3, eighth: 0.9}
