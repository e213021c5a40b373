"""Bugs of other collectors that read NVML: one test for each real report."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from stepscope.collectors.nvml.collector import NvmlCollector
from stepscope.collectors.nvml.gpu import PollPart
from stepscope.collectors.nvml.library import NvmlLibrary
from stepscope.core.metrics.gpu import BY_NAME
from stepscope.core.metrics.readings import MissingReason
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml
from tests.collectors.nvml.reading_of import key_of, missing_of, value_of


def counting(monkeypatch: pytest.MonkeyPatch, function: str) -> list[int]:
    calls: list[int] = []
    real: Callable[..., object] = getattr(NvmlLibrary, function)

    def counted(*arguments: object) -> object:
        calls.append(1)
        return real(*arguments)

    monkeypatch.setattr(NvmlLibrary, function, counted)
    return calls


def test_go_nvml_152_nvml_is_initialised_once(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.add(profiles.h100(0))
    nvml.write()
    inits, shutdowns = counting(monkeypatch, "nvmlInit"), counting(monkeypatch, "nvmlShutdown")
    collector = NvmlCollector()
    for _ in range(5):
        collector.collect()
    assert (len(inits), len(shutdowns)) == (1, 0)
    collector.close()
    assert (len(inits), len(shutdowns)) == (1, 1)


def test_nvgpu_8_one_lost_gpu_hides_no_other_and_loses_no_value_twice(nvml: FakeNvml) -> None:
    for index in range(4):
        nvml.add(profiles.h100(index))
    nvml.write()
    collector = NvmlCollector(slow_poll_seconds=0.0)
    collector.collect()
    nvml.set(2, lost=1)
    nvml.write()
    for _ in range(2):
        collection = collector.collect()
        for index in (0, 1, 3):
            assert value_of(collection, "power_watts", gpu=index) == 71.722
        assert value_of(collection, "power_watts", gpu=2) is None
        assert missing_of(collection, "", gpu=2) is not None


def test_gpud_604_a_lost_gpu_is_called_lost_not_a_failed_call(nvml: FakeNvml) -> None:
    nvml.add(profiles.h100(0))
    nvml.write()
    collector = NvmlCollector()
    key = key_of(collector)
    collector.sweep(key)
    nvml.set(0, error__nvmlDeviceGetRemappedRows=15, error__nvmlDeviceGetPowerUsage=15)
    nvml.write()
    lost = collector.sweep(key)[PollPart.FAST]
    told = missing_of(lost, "")
    assert told is not None
    assert told[0] is MissingReason.GONE
    assert "lost" in told[1]
    assert "XID 79" in told[1]
    assert "remap" not in told[1]
    assert value_of(lost, "up", reason="gone") == 0


def test_nvidia_gpu_exporter_63_a_version_mismatch_is_said_with_what_to_do(nvml: FakeNvml) -> None:
    nvml.values["error"] = "18"
    nvml.write()
    told = missing_of(NvmlCollector().collect(), "")
    assert told is not None
    assert told[0] is MissingReason.VERSION_MISMATCH
    assert "reboot, or reload the module" in told[1]


def test_nvidia_gpu_exporter_65_it_recovers_after_a_first_failure(nvml: FakeNvml) -> None:
    nvml.add(profiles.h100(0))
    nvml.values["error"] = "999"
    nvml.write()
    collector = NvmlCollector()
    assert not collector.collect().readings
    del nvml.values["error"]
    nvml.write()
    assert value_of(collector.collect(), "up") == 1


@pytest.mark.parametrize("absent", ["fan", "power_mw", "encoder", "temperature__0", "ecc_mode", "utilization"])
def test_nvidia_gpu_exporter_68_not_available_is_absent_and_quiet(nvml: FakeNvml, absent: str) -> None:
    nvml.add({key: value for key, value in profiles.h100(0).items() if key != absent})
    nvml.write()
    collector = NvmlCollector()
    first, second = collector.collect(), collector.collect()
    reasons = {missing.reason for missing in second.missing}
    assert reasons <= {MissingReason.NOT_SUPPORTED, MissingReason.NOT_YET}
    assert len(first.readings) == len(second.readings)
    assert not second.findings


@pytest.mark.parametrize("key", ["utilization", "power_mw", "temperature__0", "energy_mj", "memory_used"])
def test_gpu_monitoring_tools_152_a_sentinel_is_no_value(nvml: FakeNvml, key: str) -> None:
    sentinel = 2**64 - 1 if key in {"energy_mj", "memory_used"} else 2**32 - 1
    nvml.add({**profiles.h100(0), key: sentinel})
    nvml.write()
    collection = NvmlCollector().collect()
    unreadable = [missing for missing in collection.missing if missing.reason is MissingReason.UNREADABLE]
    assert len(unreadable) == 1
    assert all(reading.value < 2**32 for reading in collection.readings if "bytes" not in reading.metric)
    assert all(reading.value < 2**62 for reading in collection.readings)


@pytest.mark.parametrize(
    ("key", "raw", "name"),
    [
        ("ecc__0__0", 2**63 - 14, "ecc_corrected_errors_total"),
        ("energy_mj", 2**64 - 16, "energy_joules_total"),
        ("margin", -(2**31), "temperature_margin_celsius"),
        ("pstate", 32, "performance_state"),  # NVML_PSTATE_UNKNOWN
        ("field__230", f"u {2**32 - 1}", "recovery_action"),
        (f"field__222__{2**32 - 1}", f"c {2**64 - 1}", "nvlink_symbol_error_ratio"),
        ("throttle_mask", 2**64 - 1, "throttle_reason"),
    ],
)
def test_what_stands_for_no_value_is_refused_also_near_its_end(
    nvml: FakeNvml, key: str, raw: int | str, name: str
) -> None:
    nvml.add({**profiles.b200(0), key: raw})
    nvml.write()
    collection = NvmlCollector().collect()
    assert value_of(collection, name) is None
    missing = missing_of(collection, name)
    assert missing is not None
    assert missing[0] is MissingReason.UNREADABLE


def test_the_lowest_performance_state_and_a_heat_beyond_its_limit_are_values(nvml: FakeNvml) -> None:
    nvml.add({**profiles.h100(0), "pstate": 15, "margin": -5})
    nvml.write()
    collection = NvmlCollector().collect()
    assert value_of(collection, "performance_state") == 15
    assert value_of(collection, "temperature_margin_celsius") == -5


def test_dcgm_exporter_216_under_mig_utilisation_is_not_available_and_the_instances_tell(nvml: FakeNvml) -> None:
    nvml.add({**profiles.h100(0), "mig_mode": 1, "utilization": None, **profiles.mig_instance(0, 0, gpu_instance=7)})
    nvml.set(0, utilization=None)
    nvml.write()
    collector = NvmlCollector(slow_poll_seconds=0.0)
    collector.collect()
    time.sleep(0.11)
    collection = collector.collect()
    assert value_of(collection, "utilization_ratio") is None
    assert missing_of(collection, "utilization_ratio") == (MissingReason.NOT_SUPPORTED, "")
    assert value_of(collection, "graphics_engine_active_ratio", gpu_instance=7) == pytest.approx(0.1)


def test_what_a_split_gpu_does_not_support_is_asked_for_again_once_it_is_whole(nvml: FakeNvml) -> None:
    """From Hopper on MIG is switched without a reset, beside an agent that runs."""
    nvml.add({**profiles.h100(0), "mig_mode": 1, "utilization": None})
    nvml.write()
    collector = NvmlCollector(slow_poll_seconds=0.0)
    assert value_of(collector.collect(), "utilization_ratio") is None
    nvml.set(0, mig_mode=0, utilization=97)
    nvml.write()
    collector.collect()
    assert value_of(collector.collect(), "utilization_ratio") == 0.97


def test_dcgm_152_more_than_all_of_a_mig_instance_is_clamped_and_said(nvml: FakeNvml) -> None:
    nvml.add({**profiles.h100(0), "mig_mode": 1, **profiles.mig_instance(0, 0, gpu_instance=7)})
    nvml.set(0, mig__0__gpm__2=129.4)
    nvml.write()
    collector = NvmlCollector(slow_poll_seconds=0.0)
    collector.collect()
    time.sleep(0.11)
    collection = collector.collect()
    assert value_of(collection, "sm_active_ratio", gpu_instance=7) == 1.0
    assert [(finding.code, dict(finding.labels)["gpu_instance"]) for finding in collection.findings] == [
        ("clamped", "7")
    ]
    assert "1.294" in collection.findings[0].message


def test_dcgm_exporter_22_a_gpu_without_profiling_says_so_for_each_counter(nvml: FakeNvml) -> None:
    nvml.add(profiles.a100(0))
    nvml.write()
    collection = NvmlCollector().collect()
    for name in ("sm_active_ratio", "tensor_active_ratio", "dram_active_ratio", "pcie_transmit_bytes_per_second"):
        told = missing_of(collection, name)
        assert told is not None
        assert told[0] is MissingReason.NOT_SUPPORTED
        assert "Hopper and newer" in told[1]
    assert value_of(collection, "utilization_ratio") == 0.0
    assert value_of(collection, "nvlink_transmit_bytes_total") == 1000 * 1024  # evidence of another kind


def test_dcgm_exporter_500_the_same_xid_twice_is_two_and_an_old_one_is_not_told_again(nvml: FakeNvml) -> None:
    nvml.add({**profiles.h100(0), "xids": 1, "xid__0": 31})
    nvml.write()
    collector = NvmlCollector()
    assert not collector.collect().findings  # from before the first look
    nvml.set(0, xids=4, xid__1=94, xid__2=94, xid__3=48)
    nvml.write()
    told = [dict(finding.labels)["xid"] for finding in collector.collect().findings]
    assert told == ["94", "94", "48"]
    assert not collector.collect().findings


def _two_gpus_with_events_for_all(nvml: FakeNvml) -> NvmlCollector:
    for index in range(2):
        nvml.add(profiles.h100(index))
    nvml.values["events_for_all"] = "1"
    nvml.write()
    collector = NvmlCollector()
    collector.collect()
    return collector


def test_an_xid_is_of_the_gpu_that_the_event_names(nvml: FakeNvml) -> None:
    """NVIDIA's own mock of NVML tells every listener of every GPU's events."""
    collector = _two_gpus_with_events_for_all(nvml)
    nvml.set(1, xids=1, xid__0=94)
    nvml.write()
    (first, *_) = collector.collect().findings
    assert dict(first.labels) == {"gpu": "1", "uuid": "GPU-00000001-0000-4000-8000-000000000000", "xid": "94"}


def test_the_xid_of_a_lost_gpu_loses_no_other(nvml: FakeNvml) -> None:
    """Seen with NVIDIA's own mock of NVML: the listener of a healthy GPU got the event, asked whose it was, and was
    called lost itself."""
    collector = _two_gpus_with_events_for_all(nvml)
    nvml.set(1, xids=1, xid__0=79, lost=1)
    nvml.write()
    collection = collector.collect()
    assert value_of(collection, "up", gpu=0) == 1
    assert value_of(collection, "up", gpu=1, reason="gone") == 0
    found = [dict(one.labels) for one in collection.findings if one.code == "xid"]
    assert found == [{"gpu": "1", "uuid": "GPU-00000001-0000-4000-8000-000000000000", "xid": "79"}] * len(found)
    assert found


def test_nvsentinel_155_the_xid_of_a_gpu_that_is_lost_is_told_with_the_loss(nvml: FakeNvml) -> None:
    nvml.add(profiles.h100(0))
    nvml.write()
    collector = NvmlCollector()
    collector.collect()
    nvml.set(0, xids=1, xid__0=79, error__nvmlDeviceGetPowerUsage=15)
    nvml.write()
    collection = collector.sweep(key_of(collector))[PollPart.FAST]
    assert [dict(finding.labels)["xid"] for finding in collection.findings] == ["79"]
    assert missing_of(collection, "") is not None


def test_the_xid_that_comes_while_a_gpu_is_found_lost_is_told_with_the_loss(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen with NVIDIA's own mock of NVML where no other GPU was read in the same process."""
    nvml.add(profiles.h100(0))
    nvml.write()
    collector = NvmlCollector()
    collector.collect()
    library = collector._session()
    read_power = library.nvmlDeviceGetPowerUsage

    def lose(handle: object) -> object:
        nvml.set(0, xids=1, xid__0=74, lost=1)
        nvml.write()
        return read_power(handle)

    monkeypatch.setattr(library, "nvmlDeviceGetPowerUsage", lose)
    collection = collector.sweep(key_of(collector))[PollPart.FAST]
    assert value_of(collection, "up", reason="gone") == 0
    assert [dict(finding.labels)["xid"] for finding in collection.findings] == ["74"]


def test_nvsentinel_1748_a_storm_of_events_does_not_hold_up_a_sweep(nvml: FakeNvml) -> None:
    nvml.add(profiles.h100(0))
    nvml.write()
    collector = NvmlCollector()
    collector.collect()
    nvml.set(0, xids=17_657, **{f"xid__{number}": 92 for number in range(100)})
    nvml.write()
    collection = collector.collect()
    assert value_of(collection, "power_watts") == 71.722
    assert [finding.code for finding in collection.findings].count("xid") == 64
    assert collection.findings[-1].code == "xid_storm"


def test_go_dcgm_38_a_gpu_that_the_driver_counts_no_more_is_missed(nvml: FakeNvml) -> None:
    for index in range(3):
        nvml.add(profiles.h100(index))
    nvml.write()
    collector = NvmlCollector()
    collector.collect()
    nvml.values["gpus"] = "2"
    nvml.write()
    told = missing_of(collector.collect(), "", uuid="GPU-00000002-0000-4000-8000-000000000000")
    assert told is not None
    assert told[0] is MissingReason.GONE


def test_a_gpu_that_was_never_seen_whole_is_missed_by_its_index(nvml: FakeNvml) -> None:
    nvml.add(profiles.h100(0))
    nvml.add({**profiles.h100(1), "error__nvmlDeviceGetUUID": 999})
    nvml.write()
    collection = NvmlCollector().collect()
    assert value_of(collection, "up", gpu=0) == 1
    assert missing_of(collection, "", gpu=1) == (MissingReason.FAILED, "unknown error of the driver (NVML error 999)")


def test_dcgm_exporter_311_a_round_of_8_gpus_costs_little(nvml: FakeNvml) -> None:
    """1.3 ms of CPU on a 2026 server; benchmarks/agent/gpu_reading_cost.py measures the whole."""
    for index in range(8):
        nvml.add(profiles.h100(index))
    nvml.write()
    collector = NvmlCollector(clock=lambda: 0.0)
    keys = [key_of(collector, index) for index in range(8)]
    costs = []
    for _ in range(20):
        begin = time.process_time()
        for key in keys:
            collector.sweep(key)
        costs.append(time.process_time() - begin)
    assert min(costs) < 0.010


def test_py3nvml_25_what_the_driver_keeps_is_not_used(nvml: FakeNvml) -> None:
    """912 MB kept and 8 MB used on an idle A100: the first version of the call says that 920 MB are used."""
    nvml.add(profiles.a100(0))
    nvml.write()
    collection = NvmlCollector().collect()
    assert value_of(collection, "memory_used_bytes") == 8 * 1024**2
    assert value_of(collection, "memory_reserved_bytes") == 912 * 1024**2


def test_nvtop_436_bar1_is_no_memory_beside_the_memory(nvml: FakeNvml) -> None:
    nvml.add({**profiles.h100(0), "bar1_total": 128 * 1024**3})
    nvml.write()
    collection = NvmlCollector().collect()
    assert value_of(collection, "memory_total_bytes") == 81_559 * 1024**2


def test_gpud_1170_a_gpu_on_the_hosts_memory_tells_what_its_processes_hold(nvml: FakeNvml) -> None:
    gb10 = {key: value for key, value in profiles.h100(0).items() if not key.startswith("memory_")}
    nvml.add({**gb10, "name": "NVIDIA GB10", "compute__count": 2})
    nvml.set(0, compute__0__pid=1, compute__0__memory=3 * 1024**3, compute__1__pid=2, compute__1__memory=1024**3)
    nvml.write()
    collection = NvmlCollector().collect()
    assert value_of(collection, "memory_used_bytes") == 4 * 1024**3
    assert value_of(collection, "memory_unified") == 1
    assert missing_of(collection, "memory_used_bytes") is None
    assert value_of(collection, "memory_total_bytes") is None
    assert missing_of(collection, "memory_total_bytes") is not None


def test_jobstats_34_readings_are_known_by_uuid_and_place_not_by_minor_number(nvml: FakeNvml) -> None:
    for index in range(8):
        nvml.add(profiles.h100(index))  # minor numbers run the other way
    nvml.write()
    collection = NvmlCollector().collect()
    for index in range(8):
        uuid = f"GPU-{index:08x}-0000-4000-8000-000000000000"
        assert value_of(collection, "info", gpu=index, uuid=uuid, minor_number=7 - index) == 1
        assert value_of(collection, "power_watts", gpu=index, uuid=uuid) == 71.722


def test_codecarbon_933_the_binding_warns_of_nothing() -> None:
    code = "import pynvml; from importlib.metadata import packages_distributions as p; print(p()['pynvml'])"
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['nvidia-ml-py']"


def test_sichek_113_the_time_in_which_memory_is_busy_is_not_called_usage() -> None:
    assert "stepscope_gpu_memory_bandwidth_busy_ratio" in BY_NAME
    assert not [name for name in BY_NAME if "memory_util" in name or "memory_usage" in name]


def test_a_core_install_without_the_binding_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    told = missing_of(NvmlCollector().collect(), "")
    assert told is not None
    assert told[0] is MissingReason.NOT_INSTALLED
    assert 'pip install "stepscope[agent]"' in told[1]


def test_importing_the_collector_loads_no_binding() -> None:
    code = "import sys, stepscope.collectors.nvml; print('pynvml' in sys.modules, 'numpy' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]
