"""Health of a GPU, port or machine: states, severities, actions, events.

An event is one episode: it begins when a rule's threshold is passed and ends after a while without the problem; what
happens in between belongs to it. Unknown is a state of its own, neither healthy nor sick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from stepscope.core.hardware.devices import Device
from stepscope.core.metrics.readings import Labels


class Severity(StrEnum):
    """Severity of a hardware health event."""

    INFO = "info"  # no problem of the hardware: an application's fault, a note of the driver
    WARNING = "warning"  # it works, but impaired, or may fail soon
    CRITICAL = "critical"  # work on it fails or has wrong results

    @property
    def rank(self) -> int:
        """Order of the severities: the higher the worse."""
        return _SEVERITIES.index(self)


_SEVERITIES = tuple(Severity)


NOTES = frozenset({"xid_earlier"})
"""Codes of info events that are reported to people nevertheless: they know whether the cause was repaired."""


class HealthState(StrEnum):
    """Health of a GPU or machine as hardware; the values of label `state`."""

    HEALTHY = "healthy"  # it answers, and no warning or critical event is open
    DEGRADED = "degraded"  # a warning event is open
    FAILED = "failed"  # a critical event is open
    UNKNOWN = "unknown"  # it does not answer, or nothing can be checked


class Action(StrEnum):
    """Action that repairs a hardware problem."""

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
        """Instruction for people."""
        return _LINES[self]


_LINES = {
    Action.NONE: "no action needed",
    Action.RESTART_APP: "restart the application; the GPU is fine",
    Action.RESTART_COLLECTOR: "restart what reads the counters: nv-hostengine for DCGM's, this agent for NVML's",
    Action.RESET_GPU: (
        "take the work off the GPU, stop what watches it (this agent, DCGM), and reset it: nvidia-smi --gpu-reset"
    ),
    Action.RESET_FABRIC: "take the work off the machine and reset all its GPUs and NVSwitches together",
    Action.RESTART_FABRIC_MANAGER: "look at the fabric manager's log and restart it",
    Action.RELOAD_DRIVER: "stop what holds the driver's kernel module (this agent, DCGM) and reload it, or reboot",
    Action.UPDATE_SOFTWARE: "update the driver and software of the machine to matching versions",
    Action.DRAIN: "give the machine no new work, let running work end, stop this agent and DCGM, and reset the GPU",
    Action.REBOOT: "take the work off the machine and reboot it",
    Action.RUN_DIAGNOSTICS: "take the work off the GPU and test it: dcgmi diag -r 3",
    Action.CHECK_THERMALS: "look at fans, air or water flow, and the temperature of the room",
    Action.CHECK_MECHANICALS: "look at power cables, seating and connectors",
    Action.CHECK_NETWORK: "look at cable, transceiver and the switch's port",
    Action.REPLACE: "test it with NVIDIA's field diagnostic and have it replaced",
    Action.CONTACT_SUPPORT: "ask the vendor's support, with nvidia-bug-report.sh's file",
}


@dataclass(frozen=True, slots=True)
class OperatorNote:
    """Note of an operator on a hardware health event: who acknowledged it or set it healthy, why, and when.

    Attributes:
        by: who, as given.
        why: reason for people.
        time_ns: ns since the epoch.
    """

    by: str
    why: str
    time_ns: int


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """One episode of a hardware health problem.

    Attributes:
        code: kind of the problem: "gpu_lost", "ecc_uncorrected", "xid_94".
        labels: of a GPU `gpu` and `uuid`, of an InfiniBand port `device` and `port`; empty for the machine.
        severity: the worst of the episode.
        message: one line for people.
        value: the worst measured value; None where nothing is measured.
        threshold: that it passed; None where nothing is measured.
        unit: of both, as in "errors per second".
        first_ns, last_ns: first and latest observation, ns since the epoch.
        ended_ns: end of the episode; None while it is open.
        count: number of observations: XIDs, or samples.
        since_start: it was open already at the agent's first check, so it began earlier.
        id: unique on its machine, the same after a restart of the agent.
        acknowledged: by whom and why; None: by nobody. It is open nevertheless.
        set_healthy: who ended it and why; None: it is open, or ended by itself.
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
    id: str = ""
    acknowledged: OperatorNote | None = None
    set_healthy: OperatorNote | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """Health of one GPU, or of the machine's hardware beside its GPUs.

    Attributes:
        state: healthy, degraded, failed or unknown.
        reason: one line: the worst open event's message, or why the state is unknown; empty when healthy,
            but for a note.
        codes: of its open events, the worst first.
        unchecked: codes of checks that lack their values.
    """

    state: HealthState
    reason: str
    codes: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthReport:
    """Health of the whole machine's hardware at one moment.

    Attributes:
        time_ns: of the latest check, ns since the epoch; None before the first.
        machine: without its GPUs: driver, number of GPUs, NVSwitches, InfiniBand ports.
        gpus: health of each GPU, in the order of their index.
        open_events: the worst first.
        ended_events: the latest ones, the latest first.
    """

    time_ns: int | None
    machine: Health
    gpus: Mapping[Device, Health]
    open_events: tuple[HealthEvent, ...]
    ended_events: tuple[HealthEvent, ...]
