"""GPM: percentages become ratios, MiB/s bytes/s; sent and received are not confused."""

from __future__ import annotations

import time

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.collectors.nvml.binding import nvml_reason_of_code
from stepscope.collectors.nvml.collector import NvmlCollector
from stepscope.collectors.nvml.devices import GPM_METRICS
from stepscope.core.metrics.gpu import BY_NAME
from stepscope.core.metrics.readings import GPU, Collection, MissingReason
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml
from tests.collectors.nvml.reading_of import missing_of, value_of

MIB = 1024**2


def two_samples(collector: NvmlCollector) -> Collection:
    collector.collect()
    time.sleep(0.11)
    return collector.collect()


def test_ids_are_those_of_the_binding_and_of_dcgm() -> None:
    by_name = {name: number for number, name, _ in GPM_METRICS}
    for name, constant in {
        "graphics_engine_active_ratio": pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
        "sm_active_ratio": pynvml.NVML_GPM_METRIC_SM_UTIL,
        "sm_occupancy_ratio": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
        "integer_active_ratio": pynvml.NVML_GPM_METRIC_INTEGER_UTIL,
        "tensor_active_ratio": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
        "tensor_dfma_active_ratio": pynvml.NVML_GPM_METRIC_DFMA_TENSOR_UTIL,
        "tensor_hmma_active_ratio": pynvml.NVML_GPM_METRIC_HMMA_TENSOR_UTIL,
        "tensor_imma_active_ratio": pynvml.NVML_GPM_METRIC_IMMA_TENSOR_UTIL,
        "dram_active_ratio": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
        "fp64_active_ratio": pynvml.NVML_GPM_METRIC_FP64_UTIL,
        "fp32_active_ratio": pynvml.NVML_GPM_METRIC_FP32_UTIL,
        "fp16_active_ratio": pynvml.NVML_GPM_METRIC_FP16_UTIL,
        "pcie_transmit_bytes_per_second": pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
        "pcie_receive_bytes_per_second": pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
        "nvlink_transmit_bytes_per_second": pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
        "nvlink_receive_bytes_per_second": pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC,
    }.items():
        assert by_name.pop(name) == constant, name
        assert GPU + name in BY_NAME
    assert not by_name


def test_a_busy_h100_as_recorded(nvml: FakeNvml) -> None:
    """Values of an H100 in a run of FSDP: graphics 88 %, tensor 43 %, DRAM 37 %, NVLink 20 GB/s both ways."""
    nvml.add(profiles.h100(0))
    nvml.set(0, gpm__1=88.385, gpm__2=74.311, gpm__5=43.497, gpm__10=36.809, gpm__13=0.011)
    nvml.set(0, gpm__60=19979.957, gpm__61=20225.425, gpm__20=12.363, gpm__21=55.073)
    nvml.write()
    collection = two_samples(NvmlCollector())
    for name, value in {
        "graphics_engine_active_ratio": 0.88385,
        "sm_active_ratio": 0.74311,
        "tensor_active_ratio": 0.43497,
        "dram_active_ratio": 0.36809,
        "fp16_active_ratio": 0.00011,
        "nvlink_receive_bytes_per_second": 19979.957 * MIB,
        "nvlink_transmit_bytes_per_second": 20225.425 * MIB,
        "pcie_transmit_bytes_per_second": 12.363 * MIB,
        "pcie_receive_bytes_per_second": 55.073 * MIB,
    }.items():
        assert value_of(collection, name) == pytest.approx(value), name


def test_the_first_sample_alone_tells_nothing(nvml: FakeNvml) -> None:
    nvml.add(profiles.h100(0))
    nvml.write()
    collector = NvmlCollector()
    first = collector.collect()
    assert value_of(first, "sm_active_ratio") is None
    assert missing_of(first, "sm_active_ratio") == (MissingReason.NOT_YET, "it takes two samples")
    at_once = collector.collect()  # too close: counters are coarse
    assert value_of(at_once, "sm_active_ratio") is None


def test_samples_taken_in_haste_are_measured_from_the_last_good_one(nvml: FakeNvml) -> None:
    nvml.add({**profiles.h100(0), "gpm__2": 50.0})
    nvml.write()
    collector = NvmlCollector()
    two_samples(collector)
    deadline = time.monotonic() + 0.35
    told = []
    while time.monotonic() < deadline:
        told.append(value_of(collector.collect(), "sm_active_ratio"))
        time.sleep(0.02)
    assert any(value == 0.5 for value in told)
    assert all(value is None or value == 0.5 for value in told)


def test_samples_are_compared_old_to_new_for_ever(nvml: FakeNvml) -> None:
    """The fake answers negative where the newer sample is given first."""
    nvml.add({**profiles.h100(0), "gpm__60": 7.0})
    nvml.write()
    collector = NvmlCollector()
    two_samples(collector)
    for _ in range(4):
        time.sleep(0.11)
        assert value_of(collector.collect(), "nvlink_receive_bytes_per_second") == 7.0 * MIB


def test_a_counter_that_this_gpu_has_not_is_no_zero(nvml: FakeNvml) -> None:
    nvml.add({**profiles.h100(0), "gpm__6": "error 3", "gpm__9": "error 2", "gpm__2": "nan"})
    nvml.write()
    collector = NvmlCollector()
    two_samples(collector)
    for _ in range(2):
        time.sleep(0.11)
        collection = collector.collect()
        assert missing_of(collection, "tensor_dfma_active_ratio") == (MissingReason.NOT_SUPPORTED, "")
        failed, unreadable = (
            missing_of(collection, "tensor_imma_active_ratio"),
            missing_of(collection, "sm_active_ratio"),
        )
        assert failed is not None
        assert unreadable is not None
        assert (failed[0], unreadable[0]) == (MissingReason.FAILED, MissingReason.UNREADABLE)
        assert value_of(collection, "dram_active_ratio") == 0.0


def test_counters_of_an_instance_that_fail_say_why_in_words(nvml: FakeNvml) -> None:
    nvml.add({**profiles.h100(0), "mig_mode": 1, **profiles.mig_instance(0, 0, gpu_instance=7)})
    nvml.set(0, mig__0__gpm__2="error 2")
    nvml.write()
    absent = missing_of(two_samples(NvmlCollector(slow_poll_seconds=0.0)), "sm_active_ratio", gpu_instance=7)
    assert absent == (MissingReason.FAILED, "invalid argument (NVML error 2)")


def test_every_return_code_of_the_binding_has_words() -> None:
    codes = [value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")]
    assert len(codes) > 25
    wordless = [code for code in codes if nvml_reason_of_code(code)[1].startswith("NVML error")]
    assert not wordless
    assert nvml_reason_of_code(77) == (MissingReason.FAILED, "NVML error 77")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(percent=st.floats(0, 100), mib=st.floats(0, 1e6))
def test_scales_hold_for_all_values(nvml: FakeNvml, percent: float, mib: float) -> None:
    nvml.values["gpus"] = "0"
    nvml.add({**profiles.h100(0), "gpm__5": percent, "gpm__61": mib})
    nvml.write()
    collection = two_samples(NvmlCollector())
    assert value_of(collection, "tensor_active_ratio") == pytest.approx(percent / 100)
    assert value_of(collection, "nvlink_transmit_bytes_per_second") == pytest.approx(mib * MIB)
