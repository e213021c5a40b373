"""All sources of a machine together, on the fake driver: what exists is reported, whatever one source does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path

import pytest

from stepscope.agent.exporter.metrics_page import DcgmNames, MetricsPage
from stepscope.agent.gpus.gpu_source import GpuSource, KernelLogSource
from stepscope.agent.gpus.probes import GpuProbes
from stepscope.agent.gpus.supervisor import ProbeTiming
from stepscope.agent.gpus.targets import ProbeSnapshot, ProbeTarget
from stepscope.agent.polling import ScheduledSource, SourceState
from stepscope.agent.sources import AgentSources, check_agent_sources, summary_of_sources, wait_for_sources
from stepscope.agent.web.routes import Route, text_reply
from stepscope.agent.web.server import AgentServer, ListenAddress
from stepscope.collectors.dcgm_exporter.page import dcgm_endpoint_of
from stepscope.collectors.kernel_log import KernelLog
from stepscope.core.hardware.devices import device_in
from stepscope.core.metrics.readings import GPU, Collection, MissingReason, Reading, labels_of
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml

_QUICK = ProbeTiming(interval=0.1, slow_poll=0.2, deadline=1.0, start_deadline=20, look=2.0, slow=0.3, grace=2)


def _until(sources: AgentSources, is_so: Callable[[dict[str, SourceState]], bool]) -> dict[str, SourceState]:
    end = time.monotonic() + 40
    while time.monotonic() < end:
        states = {state.name: state for state in sources.states()}
        if is_so(states):
            return states
        time.sleep(0.02)
    raise AssertionError(f"never so: {sources.states()}")


def _value(state: SourceState, name: str, gpu: int) -> float | None:
    found = [one for one in state.collection.readings if one.metric == GPU + name]
    return next((one.value for one in found if dict(one.labels)["gpu"] == str(gpu)), None)


def test_gpus_and_host_are_read_also_while_a_gpu_hangs(machine: FakeNvml) -> None:
    for index in range(2):
        machine.add(profiles.h100(index))
    machine.write()
    with AgentSources(_QUICK, environment=machine.environment()) as sources:
        states = _until(sources, lambda now: _value(now["nvml"], "up", 1) == 1 and not now["host"].reason)
        assert states["nvml"].reason is None
        assert _value(states["nvml"], "power_watts", 1) is not None
        machine.set(1, hang="nvmlDeviceGetPowerUsage")
        machine.write()
        states = _until(sources, lambda now: _value(now["nvml"], "up", 1) == 0)
        begin = time.monotonic()
        page = MetricsPage(sources.states).encoded()[0].decode()
        assert time.monotonic() - begin < 5
        assert states["nvml"].reason is None
        assert _value(states["nvml"], "up", 0) == 1
    assert "stepscope_agent_probe_timeouts_total 1.0\n" in page
    assert 'stepscope_gpu_up{gpu="1",reason="timed_out",uuid=' in page
    assert "stepscope_host_cpus " in page
    assert page.count("stepscope_agent_sample_age_seconds{") == 2


def test_without_a_driver_it_says_so_and_reads_the_host(machine: FakeNvml) -> None:
    machine.values["error"] = "9"  # NVML_ERROR_DRIVER_NOT_LOADED
    machine.write()
    with AgentSources(_QUICK, environment=machine.environment()) as sources:
        states = _until(sources, lambda now: not {"nvml", "host"} & {n for n in now if _is_not_yet(now[n])})
        line = summary_of_sources(sources.states())
    assert states["nvml"].reason is MissingReason.NOT_INSTALLED
    assert states["host"].reason is None
    assert line.startswith("reads 0 GPUs and ")
    assert "nvml (not_installed: the NVIDIA driver is not loaded" in line
    assert "\n" not in line


@pytest.mark.parametrize("text", ["", "# HELP DCGM_FI_DEV_GPU_UTIL x\n# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n"])
def test_an_empty_page_of_dcgm_exporter_is_given_up(
    text: str, machine: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.add(profiles.h100(0))
    machine.write()
    monkeypatch.setattr("stepscope.agent.sources.ScheduledSource", partial(ScheduledSource, patience=1.0))
    page = Route("GET", "/metrics", lambda _: text_reply(HTTPStatus.OK, text), is_open=True)
    with AgentServer(ListenAddress("127.0.0.1", 0), [page]) as exporter:
        endpoint = dcgm_endpoint_of(f"{exporter.url}/metrics")
        with AgentSources(_QUICK, environment=machine.environment(), dcgm_exporter=endpoint) as sources:
            assert wait_for_sources(sources, threading.Event(), seconds=40)
            line = summary_of_sources(sources.states())
    assert line.startswith("reads 1 GPU and ")
    assert "dcgm_exporter (timed_out: " in line
    assert "an empty page" in line


def _is_not_yet(state: SourceState) -> bool:
    return state.reason is MissingReason.NOT_YET


def test_xids_are_logged_once_and_counted(machine: FakeNvml, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machine.add(profiles.h100(0))
    machine.write()
    log_file = tmp_path / "kmsg"
    log_file.touch()
    with (
        caplog.at_level(logging.WARNING, "stepscope.agent.gpus.gpu_source"),
        KernelLog(log_file) as kernel_log,
        GpuProbes(_QUICK, environment=machine.environment()) as probes,
    ):
        gpus, log = GpuSource(probes, quiet_seconds=8.0), KernelLogSource(kernel_log, probes)
        bus_id = _bus_id(probes)
        address = bus_id.partition(".")[0][4:].lower()
        with log_file.open("a") as stream:
            stream.write(f"4,1,1000000,-;NVRM: Xid (PCI:{address}): 94, pid=7, Contained\n")
        assert log.collect() == Collection()
        counted = [one for one in gpus.collect().readings if one.metric == GPU + "xid_errors_total"]
        gpus.collect()
    assert [(one.value, dict(one.labels)["xid"]) for one in counted] == [(1.0, "94")]
    assert [record.getMessage() for record in caplog.records if "XID" in record.message] == [
        f"GPU 0 ({dict(counted[0].labels)['uuid']}): XID 94: pid=7, Contained"
    ]


def test_a_storm_of_errors_is_no_storm_of_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log_file = tmp_path / "kmsg"
    log_file.touch()
    with KernelLog(log_file) as kernel_log:
        source = KernelLogSource(kernel_log, GpuProbes())
        with log_file.open("a") as stream:
            for number in range(500):
                stream.write(
                    f"4,{number},1000000,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20001, Non-fatal, {'x' * 8100}\n"
                )
        told = [source.collect() for _ in range(3)]
    assert len(caplog.records) <= 25
    assert "more errors came at once" in caplog.records[-1].getMessage()
    (count,) = told[-1].readings
    assert count.value > 100


def _bus_id(probes: GpuProbes) -> str:
    end = time.monotonic() + 40
    while time.monotonic() < end:
        for reading in probes.snapshot().collection.readings:
            if reading.metric == GPU + "info":
                return dict(reading.labels)["pci_bus_id"]
        time.sleep(0.02)
    raise AssertionError("no GPU told its place")


def test_old_values_repeated_contradict_nothing() -> None:
    labels = labels_of(gpu=0, uuid="GPU-0")
    stuck = {"utilization_ratio": 1.0, "processes": 0.0, "memory_used_bytes": 1.0, "memory_total_bytes": 1000.0}
    told = Collection(tuple(Reading(GPU + name, value, labels, 1) for name, value in stuck.items()))

    silent: list[MissingReason | None] = [None]

    class Probes(GpuProbes):
        def snapshot(self) -> ProbeSnapshot:
            gpu = ProbeTarget(device_in(dict(labels)), silent[0], "", 1, 0.1, is_apart=False)
            return replace(super().snapshot(), collection=told, targets=(gpu,))

    source = GpuSource(Probes(), quiet_seconds=8.0)
    for _ in range(15):
        collection = source.collect()
    assert [finding.code for finding in collection.findings] == ["busy_without_process"]
    silent[0] = MissingReason.TIMED_OUT  # the same old values again and again prove nothing
    assert not source.collect().findings


def test_bug_17_counters_that_are_silent_are_missing_until_they_count_again(machine: FakeNvml) -> None:
    stopped = {"gpm__20": 0.0, "gpm__21": 0.0}  # PCIe: they stop together
    machine.add({**profiles.h100(0), "utilization": 99, "power_mw": 650_000, **stopped})
    machine.write()
    tensor = GPU + "tensor_active_ratio{"
    with AgentSources(_QUICK, environment=machine.environment()) as sources:
        states = _until(
            sources, lambda now: any(one.code == "profiling_silent" for one in now["nvml"].collection.findings)
        )
        assert tensor not in MetricsPage(sources.states).encoded()[0].decode()
        missing = [one for one in states["nvml"].collection.missing if one.metric == GPU + "tensor_active_ratio"]
        assert [one.reason for one in missing] == [MissingReason.UNREADABLE]
        assert "are not counting" in missing[0].detail
        machine.set(0, gpm__1=88.0, gpm__5=43.0)
        machine.write()
        _until(sources, lambda now: _value(now["nvml"], "tensor_active_ratio", 0) == pytest.approx(0.43))
        assert tensor in MetricsPage(sources.states).encoded()[0].decode()


@pytest.mark.parametrize("hanging", [0, 2])
def test_a_gpu_that_hangs_from_the_start_hides_no_other_and_is_named(machine: FakeNvml, hanging: int) -> None:
    for index in range(4):
        machine.add(profiles.h100(index))
    machine.set(hanging, hang="any")
    machine.write()
    sources = AgentSources(_QUICK, environment=machine.environment())
    with sources:
        assert wait_for_sources(sources, threading.Event(), seconds=40)
        line = summary_of_sources(sources.states())
    assert line.startswith("reads 3 GPUs and ")
    assert f", GPU {hanging} (timed_out: its driver does not answer)" in line
    found = check_agent_sources(AgentSources(_QUICK, environment=machine.environment()), samples_seconds=0.5)
    of_gpus = {dict(one.labels)["gpu"]: one for one in found.capabilities if one.labels}
    others = {str(index) for index in range(4)} - {str(hanging)}
    assert all(GPU + "power_watts" in of_gpus[gpu].collected for gpu in others)
    assert [gap.reason for gap in of_gpus[str(hanging)].gaps] == [MissingReason.TIMED_OUT]
    assert [notice.code for notice in found.warnings] == ["gpu_silent"]
    assert found.sources[0].detail == f"without GPU {hanging} (timed_out: its driver does not answer)"


def test_the_check_tells_of_each_gpu_what_is_had_and_what_not(machine: FakeNvml) -> None:
    machine.add(profiles.h100(0))
    machine.write()
    found = check_agent_sources(AgentSources(_QUICK, environment=machine.environment()), samples_seconds=1.0)
    named = [source.name for source in found.sources]
    assert named == ["nvml", "kernel_log", "host", "infiniband", "jobs", "health", "fleet_class"]
    of_machine, of_gpu = found.capabilities
    assert of_machine.labels == ()
    assert "stepscope_host_cpus" in of_machine.collected
    assert GPU + "power_watts" in of_gpu.collected
    assert GPU + "tensor_active_ratio" in of_gpu.collected
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stepscope-")]


def test_a_page_that_numbers_gpus_in_its_own_way_is_seen_with_the_drivers_numbers(machine: FakeNvml) -> None:
    uuids = []
    for index in range(2):
        machine.add(profiles.h100(index))
        uuids.append(f"GPU-{index:08x}-0000-4000-8000-000000000000")
    machine.write()
    page = "".join(
        f'DCGM_FI_DEV_FAN_SPEED{{gpu="{1 - index}",UUID="{uuid}",modelName="NVIDIA H100"}} {70 + index}\n'
        for index, uuid in enumerate(uuids)
    )
    route = Route("GET", "/metrics", lambda _: text_reply(HTTPStatus.OK, page.rstrip("\n")))
    with AgentServer(ListenAddress("127.0.0.1", 0), [route]) as exporter:
        endpoint = dcgm_endpoint_of(f"{exporter.url}/metrics")
        with AgentSources(_QUICK, environment=machine.environment(), dcgm_exporter=endpoint) as sources:
            of_page = "dcgm_exporter"
            states = _until(sources, lambda now: not now[of_page].reason and _value(now["nvml"], "up", 1) == 1)
            assert [_value(states[of_page], "fan_speed_ratio", gpu) for gpu in range(2)] == [0.7, 0.71]
            text = MetricsPage(sources.states, dcgm_names=DcgmNames.OLD).encoded()[0].decode()
    for index, uuid in enumerate(uuids):
        of_gpu = [line for line in text.splitlines() if f'"{uuid}"' in line]
        assert {line.partition('gpu="')[2][:1] for line in of_gpu} == {str(index)}
        assert any(line.startswith("DCGM_FI_DEV_FAN_SPEED{") and line.endswith(f" {70.0 + index}") for line in of_gpu)
