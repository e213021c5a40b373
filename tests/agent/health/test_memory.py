"""Health over restarts of the agent: each error is an event once, wherever the agent is killed."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stepscope.agent.gpus.gpu_source import KernelLogSource
from stepscope.agent.gpus.probes import GpuProbes
from stepscope.agent.health.health_source import HealthSource
from stepscope.agent.health.health_store import HEALTH_FILE, HealthStore
from stepscope.agent.health.memory import HealthMemory
from stepscope.agent.polling import SourceState
from stepscope.agent.sources import GPUS
from stepscope.collectors.kernel_log import KernelLog
from stepscope.core.hardware.devices import Device
from stepscope.core.hardware.health import HealthEvent, HealthState
from stepscope.core.metrics.readings import GPU, Collection, Finding, Reading, with_labels
from tests.agent.health.machines import SECOND, START

_SECONDS = 20.0


class _Probes(GpuProbes):
    """Probes of GPUs that are known from the start, without processes."""

    def __init__(self, gpus: dict[str, Device]) -> None:
        super().__init__()
        self.gpus = gpus

    def places(self) -> dict[str, Device]:
        return {**super().places(), **self.gpus}


class Node:
    """A machine whose agent can be killed and started again.

    Attributes:
        now_ns: the clock.
        gpus: by their PCI bus id.
        energy: of each GPU since its driver was loaded, joules.
        source: the health of the agent that runs.
    """

    def __init__(self, folder: Path, num_gpus: int = 2) -> None:
        self.folder = folder
        self.now_ns = START
        self.boot = 0
        self.gpus = {f"0000000{n}:00:00.0": Device(f"GPU-{n}", str(n)) for n in range(num_gpus)}
        self.energy = dict.fromkeys(self.gpus, 1000.0)
        self._state = folder / "state"
        self._state.mkdir()
        self._generation = 0
        self._boot()
        self.start()

    def start(self) -> None:
        """Start an agent."""
        self._logged, self._kept_before = Collection(), self._kept()
        self.probes = _Probes(self.gpus)
        self.log = KernelLog(self._file(), wall_clock_ns=lambda: self.now_ns, log_clock_ns=lambda: 0)
        self.errors = KernelLogSource(self.log, self.probes)
        self._memory = HealthMemory(HealthStore(self._state), self.errors, this_boot=lambda: f"boot {self.boot}")
        self.source = HealthSource(self._states, GPUS, memory=self._memory, wall_clock_ns=lambda: self.now_ns)
        self._memory.__enter__()
        self.source.resume()

    def kill(self, keep_bytes: float = 1.0) -> None:
        """Kill it, so that of what it wrote, beyond a new file's first line, only a share is there; start another.

        What it would have written later goes into a folder that nobody reads.
        """
        content = self._kept()
        self._memory.__exit__()
        self.log.__exit__()
        self._generation += 1
        self._state = self.folder / f"state{self._generation}"
        self._state.mkdir()
        had = self._kept_before
        sure = len(had) if content.startswith(had) and had else content.find(b"\n") + 1
        if content:
            (self._state / HEALTH_FILE).write_bytes(content[: sure + round(keep_bytes * (len(content) - sure))])
        self.start()

    def _kept(self) -> bytes:
        file = self._state / HEALTH_FILE
        return file.read_bytes() if file.exists() else b""

    def stop(self) -> None:
        """End it in order."""
        self.source.leave()
        self._memory.__exit__()
        self.log.__exit__()

    def reboot(self) -> None:
        """Boot the machine; its agent was stopped in order before."""
        self.stop()
        self._boot()
        self.energy = dict.fromkeys(self.gpus, 0.0)
        self.start()

    def logs(self, text: str) -> None:
        """A record of the kernel log."""
        record = f"4,{self._number},0,-;{text}\n".encode()
        with self._file().open("ab") as stream:
            stream.write(record.ljust(8192))
        self._number += 1

    def has_xid(self, xid: int, gpu: int = 0) -> None:
        """The kernel logs an XID."""
        self.logs(f"NVRM: Xid (PCI:000{gpu}:00:00): {xid}, pid=7")

    def nvml_reports(self, xid: int, gpu: int = 0) -> None:
        """The driver reports it, too."""
        device = list(self.gpus.values())[gpu]
        finding = Finding("xid", f"XID {xid}", with_labels(device.labels(), xid=xid), self.now_ns)
        self.probes._supervisor.xids.add([finding], "nvml")

    def look(self, seconds: float = 5.0) -> None:
        """Let time pass, read the kernel log, and check."""
        self.now_ns += int(seconds * SECOND) + 1
        self.energy = {bus_id: joules + 1.0 for bus_id, joules in self.energy.items()}
        self.read()
        self.source.collect()

    def read(self) -> None:
        """Read the kernel log."""
        self._logged = self.errors.collect()

    def events(self) -> list[HealthEvent]:
        """All events, open and ended."""
        report = self.source.report()
        return [*report.open_events, *report.ended_events]

    def open(self) -> list[str]:
        """Codes of the open ones."""
        return [event.code for event in self.source.report().open_events]

    def state(self, gpu: int = 0) -> HealthState:
        """State of a GPU."""
        return self.source.report().gpus[list(self.gpus.values())[gpu]].state

    def xids(self) -> Counter[tuple[str, str]]:
        """How many XIDs the events stand for, by GPU and code."""
        found: Counter[tuple[str, str]] = Counter()
        for event in self.events():
            found[dict(event.labels)["uuid"], event.code] += event.count
        return found

    def _boot(self) -> None:
        self.boot += 1
        self._number = 0
        self._file().touch()

    def _file(self) -> Path:
        return self.folder / f"kmsg{self.boot}"

    def _states(self) -> tuple[SourceState, ...]:
        values = [
            Reading(GPU + name, value, device.labels(), self.now_ns)
            for bus_id, device in self.gpus.items()
            for name, value in (("up", 1.0), ("energy_joules_total", self.energy[bus_id]))
        ]
        values += [
            Reading(GPU + "info", 1.0, with_labels(device.labels(), pci_bus_id=bus_id, name="H100"), self.now_ns)
            for bus_id, device in self.gpus.items()
        ]
        xids = self.probes.snapshot().collection.readings
        gpus = SourceState(GPUS, Collection((*values, *xids)), self.now_ns, age_seconds=0.0)
        return gpus, SourceState("kernel_log", self._logged, self.now_ns, age_seconds=0.0)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    made.look()
    yield made
    made.stop()


def test_a_critical_xid_is_failed_after_a_restart_with_its_identity_and_no_second_begin(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.has_xid(119)
    node.look()
    (before,) = node.events()
    assert before.id.startswith("xid_119-")
    node.kill()
    assert node.source.report().open_events == (before,)
    assert node.state() is HealthState.FAILED  # before anything was read
    for _ in range(200):
        node.look()
    assert node.events() == [before]
    assert node.state() is HealthState.FAILED
    totals = [one for one in node.source.collect().readings if one.metric == GPU + "health_events_total"]
    assert [one.value for one in totals] == [1.0]
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(": ")[2].partition(":")[0] for line in lines] == [
        "xid_119, critical",
        "xid_119, critical (since before the agent started)",
    ]


def test_an_xid_that_came_while_no_agent_ran_is_seen_once_and_has_its_own_time(node: Node) -> None:
    node.stop()
    node.now_ns += 3600 * SECOND
    node.has_xid(119, gpu=1)
    node.start()
    node.look()
    node.now_ns += 3600 * SECOND
    for _ in range(3):
        node.kill()
        node.look()
    (event,) = node.events()
    assert (event.code, event.count, dict(event.labels)) == ("xid_119", 1, {"gpu": "1", "uuid": "GPU-1"})
    assert node.state(1) is HealthState.FAILED
    assert node.state(0) is HealthState.HEALTHY


def test_what_ended_is_remembered_and_does_not_end_twice(node: Node) -> None:
    node.has_xid(31)
    node.look()
    for _ in range(150):
        node.look()
    (ended,) = node.events()
    assert ended.ended_ns is not None
    node.kill()
    node.look()
    assert node.events() == [ended]


def test_a_reset_while_no_agent_ran_ends_what_needs_a_reset(node: Node) -> None:
    node.has_xid(119, gpu=0)
    node.has_xid(119, gpu=1)
    for _ in range(15):
        node.look()
    node.stop()
    node.energy["00000000:00:00.0"] = 3.0
    node.start()
    node.look()
    assert [(event.ended_ns is None, dict(event.labels)["gpu"]) for event in node.events()] == [
        (True, "1"),
        (False, "0"),
    ]


def test_a_reboot_ends_xids_and_what_its_kernel_logged_is_read_from_the_beginning(node: Node) -> None:
    node.has_xid(119)
    node.logs("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 36")
    node.look()
    assert sorted(node.open()) == ["sxid_20034", "xid_119"]
    node.stop()
    node._boot()
    node.has_xid(94, gpu=1)
    node.has_xid(119, gpu=1)
    node.energy = dict.fromkeys(node.gpus, 0.0)
    node.start()
    node.look()
    assert sorted(node.open()) == ["xid_119", "xid_94"]
    assert node.state(0) is HealthState.HEALTHY
    totals = {
        dict(one.labels)["code"]: one.value
        for one in node.source.collect().readings
        if one.metric.endswith("health_events_total") and dict(one.labels).get("gpu") == "1"
    }
    assert totals == {"xid_94": 1.0, "xid_119": 1.0}


def test_a_gpu_that_another_stands_in_the_place_of_is_forgotten(node: Node) -> None:
    node.has_xid(79)
    node.look()
    assert node.open() == ["gpu_lost"]
    node.stop()
    node._boot()
    node.gpus = {**node.gpus, "00000000:00:00.0": Device("GPU-new", "0")}
    node.start()
    node.look()
    node.look()
    assert node.open() == []
    assert [device.uuid for device in node.source.report().gpus] == ["GPU-new", "GPU-1"]


def test_a_lost_gpu_that_is_still_away_after_a_restart_is_still_lost(node: Node) -> None:
    node.has_xid(79)
    node.look()
    node.stop()
    gone = node.gpus.pop("00000000:00:00.0")
    node.start()
    for _ in range(30):
        node.look()
    assert node.source.report().gpus[gone].state is HealthState.FAILED
    node.reboot()
    node.look()
    assert node.source.report().gpus[gone].state is HealthState.FAILED  # and no other stands in its place
    node.source.set_healthy("0", by="ann", why="it is at the vendor's")
    node.look()
    assert gone not in node.source.report().gpus


def test_an_operators_words_outlive_the_agent(node: Node) -> None:
    node.has_xid(119)
    node.look()
    (event,) = node.events()
    assert node.source.acknowledge("xid_119-0", by="ann", why="known") is None
    acknowledged = node.source.acknowledge(event.id, by="ann", why="ticket 7")
    assert acknowledged is not None
    node.kill()
    (event,) = node.events()
    assert event.acknowledged is not None
    assert (event.acknowledged.by, event.acknowledged.why) == ("ann", "ticket 7")
    node.look()
    assert [one.value for one in node.source.collect().readings if one.metric.endswith("_acknowledged")] == [1.0]
    assert node.state() is HealthState.FAILED
    (ended,) = node.source.set_healthy("GPU-0", by="bob", why="was reset by hand") or [event]
    assert ended.set_healthy is not None
    assert ended.set_healthy.by == "bob"
    assert node.state() is HealthState.HEALTHY
    node.kill()
    node.look()
    assert node.state() is HealthState.HEALTHY
    assert node.events() == [ended]
    node.has_xid(119)
    node.look()
    assert node.open() == ["xid_119"]
    assert node.source.set_healthy("7", by="bob", why="typing error") is None


@pytest.mark.parametrize("seconds", [-86400.0 * 365, 86400.0 * 365 * 10])
def test_a_clock_that_jumps_loses_and_doubles_nothing(node: Node, seconds: float) -> None:
    for number in range(4):
        node.has_xid(119)
        node.look(seconds if number % 2 else 5.0)
        node.has_xid(119)
        node.look()
        node.kill()
        node.look()
    assert node.xids() == {("GPU-0", "xid_119"): 8}
    assert node.open() == ["xid_119"]


def test_two_reports_of_one_xid_on_both_sides_of_a_restart_are_one(node: Node) -> None:
    node.nvml_reports(119)
    node.source.collect()
    node.now_ns += SECOND
    node.kill()  # before the kernel log was read
    node.has_xid(119)
    node.kill()
    node.look()
    assert node.xids() == {("GPU-0", "xid_119"): 1}
    node.has_xid(119)
    node.nvml_reports(119)
    node.look()
    assert node.xids() == {("GPU-0", "xid_119"): 2}


def test_a_state_that_cannot_be_read_is_one_line_and_a_fresh_start(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.has_xid(119)
    node.look()
    node.stop()
    with HealthStore(node._state) as store:
        store.stored(_SECONDS)
        store.put({"time_ns": 3, "episodes": 7})
    caplog.clear()
    node.start()
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("the stored health cannot be read (TypeError: ")
    node.look()
    assert node.open() == []


_XIDS = (31, 48, 94, 119)


class Restarts(RuleBasedStateMachine):
    """An agent that is killed at any moment, on a machine that has XIDs all the time."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stepscope-"))
        self.node = Node(self.folder)
        self.node.look()
        number = self.node._memory.keep(self.node.source._watch.state(), (), self.node.now_ns, has_note=True)
        assert self.node._memory.is_written(number, _SECONDS)  # it has looked at the log once
        self.had: Counter[tuple[str, str]] = Counter()
        self.untold: list[tuple[int, int]] = []

    @rule(xid=st.sampled_from(_XIDS), gpu=st.integers(0, 1), is_told=st.booleans())
    def has_xid(self, xid: int, gpu: int, is_told: bool) -> None:
        self.node.has_xid(xid, gpu)
        self.had[f"GPU-{gpu}", f"xid_{xid}"] += 1
        if is_told:
            self.untold.append((xid, gpu))

    @precondition(lambda self: self.untold)
    @rule()
    def nvml_reports(self) -> None:
        self.node.nvml_reports(*self.untold.pop(0))

    @rule()
    def log_is_read(self) -> None:
        self.node.read()

    @rule(seconds=st.sampled_from([1.0, 5.0, 700.0, 100_000.0, -3600.0]))
    def is_checked(self, seconds: float) -> None:
        self.node.now_ns += int(seconds * SECOND) + 1
        self.node.source.collect()

    @rule(kept=st.floats(0, 1))
    def is_killed(self, kept: float) -> None:
        self.untold.clear()  # nobody listened
        self.node.kill(kept)

    @rule()
    def is_stopped(self) -> None:
        self.untold.clear()
        self.node.stop()
        self.node.start()

    @rule(gpu=st.integers(0, 1))
    def is_reset(self, gpu: int) -> None:
        self.node.energy[list(self.node.gpus)[gpu]] = 0.0

    @rule()
    def is_booted(self) -> None:
        self.node.look()
        self.untold.clear()
        self.node.reboot()

    @rule(gpu=st.sampled_from(["0", "GPU-1", "node"]))
    def is_set_healthy(self, gpu: str) -> None:
        self.node.source.set_healthy(gpu, by="ann", why="checked")

    @invariant()
    def events_are_different(self) -> None:
        ids = [event.id for event in self.node.events()]
        assert len(ids) == len(set(ids))

    def teardown(self) -> None:
        try:
            self.node.look()
            self.node.look()
            assert self.node.xids() == self.had
        finally:
            self.node.stop()
            shutil.rmtree(self.folder)


TestRestarts = Restarts.TestCase
TestRestarts.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
