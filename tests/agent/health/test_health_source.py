"""Health on the page, in the log and in the report, also end to end on the fake driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.agent.config.settings import HealthThresholds
from stepscope.agent.exporter.metrics_page import MetricsPage
from stepscope.agent.gpus.gpu_source import GpuSource, KernelLogSource
from stepscope.agent.gpus.probes import GpuProbes
from stepscope.agent.gpus.supervisor import ProbeTiming
from stepscope.agent.health.health_source import HealthSource
from stepscope.agent.polling import SourceState
from stepscope.agent.sources import GPUS, AgentSources
from stepscope.agent.web.endpoints import node_of
from stepscope.collectors.contradictions import ContradictionWatch
from stepscope.collectors.kernel_log import KernelLog
from stepscope.core.hardware.health import HealthEvent, HealthState
from stepscope.core.metrics.readings import GPU, Collection, Reading, labels_of, with_labels
from stepscope.workflow.nodes.answers import NodeAnswer
from stepscope.workflow.nodes.status import status_of
from tests.agent.health.machines import LABELS, SECOND, START
from tests.collectors.dcgm_exporter.pages import Line, Pages, busy, render
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml

_QUICK = ProbeTiming(interval=0.1, slow_poll=0.2, deadline=1.0, start_deadline=20, look=2.0, slow=0.3, grace=2)
_LOGGER = "stepscope.agent.health.health_source"


class _Gpu:
    """One GPU whose memory margin is set by the test."""

    def __init__(self) -> None:
        self.now_ns = START
        self.margin = 30.0
        self.source = HealthSource(self.states, GPUS, wall_clock_ns=lambda: self.now_ns)

    def states(self) -> tuple[SourceState, ...]:
        values = {"up": 1.0, "temperature_margin_celsius": self.margin}
        readings = tuple(Reading(GPU + name, value, LABELS, self.now_ns) for name, value in values.items())
        return (SourceState(GPUS, Collection(readings), self.now_ns),)

    def look(self, times: int = 1) -> Collection:
        for _ in range(times):
            self.now_ns += 10 * SECOND
            collection = self.source.collect()
        return collection


def _values(collection: Collection, metric: str) -> dict[tuple[tuple[str, str], ...], float]:
    return {one.labels: one.value for one in collection.readings if one.metric == metric}


def test_an_event_is_on_the_page_while_it_is_open_and_its_begin_and_end_are_one_line_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gpu = _Gpu()
    assert gpu.source.report().machine.state is HealthState.UNKNOWN
    assert _events(gpu.source) == ()
    with caplog.at_level(logging.WARNING, _LOGGER):
        gpu.look(3)
        gpu.margin = -2.0
        during = gpu.look(20)
        gpu.margin = 30.0
        after = gpu.look(20)
    event = {"code": "temperature_margin", "action": "check_thermals", "severity": "warning"}
    assert _values(during, GPU + "health_event") == {with_labels(LABELS, **event): 1.0}
    assert _values(during, GPU + "health") == {
        with_labels(LABELS, state=state): float(state == "degraded")
        for state in ("healthy", "degraded", "failed", "unknown")
    }
    assert _values(after, GPU + "health_event") == {}
    assert _values(after, GPU + "health_events_total") == {with_labels(LABELS, code="temperature_margin"): 1.0}
    assert [record.getMessage() for record in caplog.records] == [
        "GPU 0 (GPU-0): temperature_margin, warning: -2 degrees are left up to the temperature at which it slows down; "
        "look at fans, air or water flow, and the temperature of the room",
        "GPU 0 (GPU-0): temperature_margin is over after 200 s, seen 20 times",
    ]
    (ended,) = _events(gpu.source)
    assert ended.ended_ns is not None
    assert gpu.source.report().ended_events == (ended,)


def test_an_xid_on_an_exporters_first_page_is_logged_once_and_shown_by_status_until_it_goes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Facts 0.3: another tool stays healthy with XID 79 on the page."""
    page, clean = (
        render([*busy(DEV_XID_ERRORS=None), Line("DCGM_FI_DEV_XID_ERRORS", xid, labels={"err_code": str(xid)})])
        for xid in (79, 0)
    )
    pages, states = Pages(page, page, page, clean, seconds=10.0), list[SourceState]()
    health = HealthSource(lambda: states, GPUS, wall_clock_ns=lambda: pages.now_ns)
    told = []
    with caplog.at_level(logging.WARNING, _LOGGER):
        for _ in range(4):
            states[:] = [SourceState("dcgm_exporter", pages.collect(), pages.now_ns)]
            health.collect()
            node = node_of(states, pages.now_ns, host="n1", health=health.report())
            told.append((status_of([NodeAnswer("http://n1:9455", node)]).findings, node.devices[0].health))
    begin, end = (record.getMessage() for record in caplog.records)
    assert "xid_earlier, info (since before the agent started): XID 79 stood on DCGM's page at the first look" in begin
    assert "xid_earlier is over" in end
    for findings, of_gpu in told[:3]:
        ((finding),) = findings
        assert (finding.code, finding.severity) == ("xid_earlier", "info")
        assert "when it came is not known" in finding.message
        assert of_gpu is not None
        assert (of_gpu.state, of_gpu.reason) == ("healthy", finding.message)  # what `top` shows
    assert told[3][0] == ()


@pytest.mark.parametrize("code", ["profiling_silent", "busy_without_process", "utilization_stuck"])
def test_what_is_to_be_done_about_a_contradiction_is_said_once(code: str, caplog: pytest.LogCaptureFixture) -> None:
    counters = ("GR_ENGINE_ACTIVE", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE", "PCIE_TX_BYTES", "PCIE_RX_BYTES")
    zeros = {f"PROF_{name}": "0.0" for name in counters}
    if code == "utilization_stuck":
        zeros |= {"DEV_POWER_USAGE": "120.0", "DEV_ENFORCED_POWER_LIMIT": "700"}
    pages = Pages(render(busy(**zeros)))
    collection = pages.collect()
    if code == "busy_without_process":
        ghost = {"utilization_ratio": 1.0, "memory_used_bytes": 5e8, "memory_total_bytes": 8e10, "processes": 0.0}
        readings = [Reading(GPU + name, value, LABELS, pages.now_ns) for name, value in {**ghost, "up": 1.0}.items()]
        watch = ContradictionWatch()
        found = [watch.observe(Collection(tuple(readings)), pages.now_ns) for _ in range(10)]
        collection = Collection(tuple(readings), (), tuple(found[-1]))
    state = SourceState("dcgm_exporter", collection, pages.now_ns)
    health = HealthSource(lambda: (state,), GPUS, wall_clock_ns=lambda: pages.now_ns)
    with caplog.at_level(logging.WARNING, _LOGGER):
        health.collect()
    (record,) = caplog.records
    assert record.getMessage().count("restart") + record.getMessage().count("reset it") == 1
    assert "reset the GPU" not in record.getMessage()


def test_every_reading_of_health_is_of_the_catalogue() -> None:
    gpu = _Gpu()
    gpu.margin = -2.0
    collection = gpu.look(5)
    state = SourceState("health", collection, gpu.now_ns)
    page = MetricsPage(lambda: (state,), wall_clock_ns=lambda: gpu.now_ns)
    text = page.encoded()[0].decode()
    assert "readings_dropped" not in text
    assert 'stepscope_gpu_health{gpu="0",state="degraded",uuid="GPU-0"} 1.0\n' in text
    assert 'stepscope_host_health{state="healthy"} 1.0\n' in text
    assert "sample_age_seconds" not in text  # health is made anew of values that may be old


def test_sxids_of_the_kernel_log_are_counted(tmp_path: Path) -> None:
    log_file = tmp_path / "kmsg"
    log_file.touch()
    with KernelLog(log_file) as kernel_log:
        source = KernelLogSource(kernel_log, GpuProbes())
        with log_file.open("a") as stream:
            stream.write("4,1,1000000,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20001, Non-fatal, Link 36 TLC\n")
        source.collect()
        with log_file.open("a") as stream:
            stream.write("4,2,2000000,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20001, Non-fatal, Link 37 TLC\n")
        source.collect()
        with log_file.open("a") as stream:
            stream.write("4,3,3000000,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 37 LTSSM\n")
        counts = {one.labels: one.value for one in source.collect().readings}
    switch = "00000000:C1:00.0"
    assert counts == {
        labels_of(pci_bus_id=switch, sxid=20001, severity="nonfatal"): 2.0,
        labels_of(pci_bus_id=switch, sxid=20034, severity="fatal"): 1.0,
    }


def _events(health: HealthSource) -> tuple[HealthEvent, ...]:
    report = health.report()
    return (*report.open_events, *report.ended_events)


def _until(health: HealthSource, is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        health.collect()
        if is_so():
            return
        time.sleep(0.1)
    raise AssertionError(f"never so: {health.report()}")


def test_xid_ecc_error_and_a_lost_gpu_end_to_end(machine: FakeNvml) -> None:
    for index in range(3):
        machine.add(profiles.h100(index))
    machine.write()
    with AgentSources(_QUICK, environment=machine.environment()) as sources:
        health = HealthSource(sources.states, GPUS, thresholds=HealthThresholds(hung_seconds=0.5))

        def states() -> list[str]:
            return [one.state.value for one in health.report().gpus.values()]

        def codes(gpu: int) -> set[str]:
            return {event.code for event in _events(health) if ("gpu", str(gpu)) in event.labels}

        _until(health, lambda: states() == ["healthy"] * 3)
        assert health.report().machine.state is HealthState.HEALTHY
        machine.set(0, xids=2, xid__0=94, xid__1=45)
        machine.set(1, ecc__1__0=2)
        machine.set(2, xids=1, xid__0=79, lost=1)
        machine.write()
        _until(health, lambda: states() == ["degraded", "failed", "failed"])
        _until(health, lambda: codes(2) == {"gpu_lost"})
        assert codes(0) == {"xid_94"}  # the 45 follows it
        assert codes(1) == {"ecc_uncorrected"}
        (lost,) = (event for event in health.report().open_events if event.code == "gpu_lost")
        assert lost.message.startswith(("the GPU is lost", "XID 79"))
        machine.set(1, ecc__1__0=0)  # the driver was reloaded
        machine.set(0, energy_mj=5, hang="nvmlDeviceGetPowerUsage")
        machine.write()
        _until(health, lambda: "gpu_hung" in codes(0) and states()[1] == "healthy")


@pytest.mark.parametrize("report", ["dcgm_235", "dcgm_162"])
def test_xids_that_the_kernel_log_alone_has_are_events(report: str, tmp_path: Path) -> None:
    log_file = tmp_path / "kmsg"
    log_file.touch()
    now_ns = [START]
    with KernelLog(log_file) as kernel_log:
        probes = GpuProbes()
        gpus, log = GpuSource(probes, quiet_seconds=8.0), KernelLogSource(kernel_log, probes)

        def states() -> tuple[SourceState, ...]:
            return (SourceState(GPUS, gpus.collect(), now_ns[0]), SourceState("kernel_log", log.collect(), now_ns[0]))

        health = HealthSource(states, GPUS, wall_clock_ns=lambda: now_ns[0])
        for words in ("62, pid=7, halt", "119, pid=7, Timeout waiting for RPC from GSP"):
            with log_file.open("a") as stream:
                stream.write(f"4,1,1000000,-;NVRM: Xid (PCI:0000:61:00): {words}\n")
            for _ in range(2):
                now_ns[0] += 2 * SECOND
                health.collect()
    whose = labels_of(pci_bus_id="00000000:61:00.0")
    assert [(one.code, one.labels, one.count) for one in _events(health)] == [
        ("xid_119", whose, 1),
        ("xid_62", whose, 1),
    ], report
