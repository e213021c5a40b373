"""Health of a GPU, port or machine: states, severities, actions, events.

An event is one episode: it begins when a rule's threshold is passed, ends when things have been well for a while, and
what happens in between belongs to it. Unknown is a state of its own: neither well nor sick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from stepscope.core.hardware.devices import Device
from stepscope.core.metrics.readings import Labels


class Severity(StrEnum):
    """How bad an event is."""

    INFO = "info"  # tells nothing against the hardware: an application's fault, a note of the driver
    WARNING = "warning"  # it works, but not as it should, or not for long
    CRITICAL = "critical"  # work on it fails or is wrong

    @property
    def rank(self) -> int:
        """The higher the worse."""
        return _SEVERITIES.index(self)


_SEVERITIES = tuple(Severity)


NOTES = frozenset({"xid_earlier"})
"""Codes of events of severity info that people are told of all the same: they know whether it was mended."""


class HealthState(StrEnum):
    """How a GPU or machine is; the values of label `state`."""

    HEALTHY = "healthy"  # it answers, and no event of severity warning or critical is open
    DEGRADED = "degraded"  # one of severity warning is
    FAILED = "failed"  # one of severity critical is
    UNKNOWN = "unknown"  # it does not answer, or nothing can be checked


class Action(StrEnum):
    """What is to be done."""

    NONE = "none"
    RESTART_APP = "restart_app"
    RESTART_COLLECTOR = "restart_collector"
    RESET_GPU = "reset_gpu"
    RESET_FABRIC = "reset_fabric"
    RESTART_FABRIC_MANAGER = "restart_fabric_manager"
    RELOAD_DRIVER = "reload_driver"
    UPDATE_SOFTWARE = "update_software"
    DRAIN = "drain"
    REBOOT = "reboot"
    RUN_DIAGNOSTICS = "run_diagnostics"
    CHECK_THERMALS = "check_thermals"
    CHECK_MECHANICALS = "check_mechanicals"
    CHECK_NETWORK = "check_network"
    REPLACE = "replace"
    CONTACT_SUPPORT = "contact_support"

    @property
    def line(self) -> str:
        """What a person is told to do."""
        return _LINES[self]


_LINES = {
    Action.NONE: "nothing is to be done",
    Action.RESTART_APP: "restart the application; the GPU is fine",
    Action.RESTART_COLLECTOR: "restart what reads the counters: nv-hostengine for DCGM's, this agent for NVML's",
    Action.RESET_GPU: (
        "take the work off the GPU, stop what watches it (this agent, DCGM), and reset it: nvidia-smi --gpu-reset"
    ),
    Action.RESET_FABRIC: "take the work off the machine and reset all its GPUs and NVSwitches together",
    Action.RESTART_FABRIC_MANAGER: "look at the fabric manager's log and restart it",
    Action.RELOAD_DRIVER: "stop what holds the driver's kernel module (this agent, DCGM) and reload it, or reboot",
    Action.UPDATE_SOFTWARE: "bring driver and software of the machine to versions that fit",
    Action.DRAIN: "give the machine no new work, let it end what it has, stop this agent and DCGM, and reset the GPU",
    Action.REBOOT: "take the work off the machine and reboot it",
    Action.RUN_DIAGNOSTICS: "take the work off the GPU and test it: dcgmi diag -r 3",
    Action.CHECK_THERMALS: "look at fans, air or water flow, and the temperature of the room",
    Action.CHECK_MECHANICALS: "look at power cables, seating and connectors",
    Action.CHECK_NETWORK: "look at cable, transceiver and the switch's port",
    Action.REPLACE: "test it with NVIDIA's field diagnostic and have it replaced",
    Action.CONTACT_SUPPORT: "ask the vendor's support, with nvidia-bug-report.sh's file",
}


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """One episode.

    Attributes:
        code: what is wrong: "gpu_lost", "ecc_uncorrected", "xid_94".
        labels: whose: of a GPU `gpu` and `uuid`, of an InfiniBand port `device` and `port`; empty: the machine's.
        severity: the worst of the episode.
        action: what is to be done.
        message: one line for people.
        value: the worst that was measured; None where nothing is.
        threshold: what it passed; None where nothing is measured.
        unit: of both, as in "errors per second".
        first_ns: when it was seen first, ns since the epoch.
        last_ns: when it was seen last.
        ended_ns: when it was over; None while it is not.
        count: how often it was seen: XIDs, or samples.
        since_start: it was so when the agent first looked: it began earlier, nobody knows when.
    """

    code: str
    labels: Labels
    severity: Severity
    action: Action
    message: str
    value: float | None
    threshold: float | None
    unit: str
    first_ns: int
    last_ns: int
    ended_ns: int | None
    count: int
    since_start: bool


@dataclass(frozen=True, slots=True)
class Health:
    """State of one GPU, or of the machine beside its GPUs.

    Attributes:
        state: healthy, degraded, failed or unknown.
        reason: one line: the worst open event's message, or why the state is unknown; empty when healthy,
            but for a note.
        codes: of its open events, the worst first.
        unchecked: codes of what could not be checked on it: the values for it are not there.
    """

    state: HealthState
    reason: str
    codes: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthReport:
    """Everything at one moment.

    Attributes:
        time_ns: of the last look, ns since the epoch; None before the first.
        machine: beside its GPUs: driver, number of GPUs, NVSwitches, InfiniBand ports.
        gpus: health of each GPU, in the order of their index.
        open_events: those not over yet, the worst first.
        ended_events: the newest of the others, the newest first.
    """

    time_ns: int | None
    machine: Health
    gpus: Mapping[Device, Health]
    open_events: tuple[HealthEvent, ...]
    ended_events: tuple[HealthEvent, ...]
