"""Settings of the agent, one section a topic; docs/guides/agent.md has the table that is made from this file.

`Thresholds` holds the limits of health checks; docs/guides/health.md names the source of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.agent.config.keys import Key, key, keys_of
from stepscope.collectors.jobs.kubernetes.pod_resources import KUBELET_SOCKET
from stepscope.collectors.jobs.team_naming import PROJECT_NAMES, TEAM_NAMES, TeamNaming
from stepscope.core.protocol.captures import MAX_CAPTURED_STEPS
from stepscope.core.protocol.messages import DEFAULT_SOCKET


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds and times of health, `[health]` in the file."""

    expected_gpus: int = key(0, "How many GPUs there must be; 0: as many as there are.", least=0)
    # memory
    corrected_errors_per_second: float = key(
        1.0, "Corrected memory errors that are a warning, averaged over a minute.", least=0.0
    )
    corrected_errors_critical_per_second: float = key(1000.0, "The rate of them that is critical.", least=0.0)
    remapped_rows: int = key(512, "Memory rows replaced after errors that could not be corrected.", least=1)
    retired_pages: int = key(63, "Memory pages retired, before Ampere.", least=1)
    retired_pages_uncorrected: int = key(
        15, "Those retired after double bit errors, if more than one came this week.", least=0
    )
    # links
    pcie_replays_factor: float = key(1.0, "PCIe replays: times DCGM's limit for generation and width.", least=0.01)
    nvlink_crc_per_second: float = key(1.0, "Wrong NVLink checksums that are a warning.", least=0.0)
    nvlink_crc_critical_per_second: float = key(100.0, "The rate of them that is critical.", least=0.0)
    nvlink_errors_per_minute: float = key(1.0, "Other errors of NVLinks.", least=0.01)
    nvlink_effective_error_ratio: float = key(1e-12, "NVLink 5: wrong bits after correction.", least=0.0)
    nvlink_symbol_error_ratio: float = key(
        1.5e-237, "NVLink 5: wrong symbols; the default is its smallest, a zero.", least=0.0
    )
    # heat and power
    thermal_seconds_per_minute: float = key(0.0, "More time slowed by heat than this is a warning.", least=0.0)
    temperature_margin_celsius: float = key(0.0, "Degrees left up to the slowdown.")
    slowdown_per_minute: float = key(0.6, "Share of minutes with a slowdown by the hardware.", least=0.01)
    slowdown_minutes: int = key(10, "Over how many minutes.", least=1)
    busy_ratio: float = key(0.5, "Utilisation from which a GPU is under load.", least=0.0, most=1.0)
    # XIDs
    repeats: int = key(3, "Processes that met XID 13 or 31 on one GPU, which may be the GPU's fault then.", least=2)
    repeats_seconds: float = key(86_400.0, "Over how long they are counted.", least=1.0)
    # times
    hung_seconds: float = key(30.0, "How long a GPU, driver or link may not answer.", least=0.0)
    stalls_per_minute: float = key(
        0.3, "Share of 10 minutes in which a GPU stalled and then answered again.", least=0.01
    )
    load_seconds: float = key(60.0, "How long a PCIe link must be slow under load.", least=0.0)
    fabric_seconds: float = key(120.0, "How long a GPU may take to join the NVLink fabric.", least=0.0)
    leave_seconds: float = key(300.0, "How long no error must come for an episode to end.", least=0.0)
    xid_leave_seconds: float = key(600.0, "The same for XIDs that need no reset.", least=0.0)
    port_leave_seconds: float = key(600.0, "How long an InfiniBand port must be up again.", least=0.0)
    stale_seconds: float = key(60.0, "Age from which a value proves nothing.", least=1.0)


WARNS_BEFORE = {
    "health.corrected_errors_per_second": "health.corrected_errors_critical_per_second",
    "health.nvlink_crc_per_second": "health.nvlink_crc_critical_per_second",
}
"""Of each warning's key the one of the critical rate, which must not be less: what is critical is not passed over."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """What of jobs the operator decides."""

    idle_seconds: float = key(300.0, "A GPU that is held without kernels for so long is idle.", least=1.0)
    team_names: tuple[str, ...] = key(TEAM_NAMES, "Labels and variables that name a team; the first counts.")
    project_names: tuple[str, ...] = key(PROJECT_NAMES, "Labels and variables that name a project.")
    hpc_job_folder: str = key("", "Folder of the files that job prologs write for dcgm-exporter.", metavar="FOLDER")
    kubelet_socket: str = key(KUBELET_SOCKET, "Socket of the kubelet's pod-resources API.")
    node: str = key("", "This machine's name, in Kubernetes the node's; empty: NODE_NAME, or the host's name.")

    @property
    def naming(self) -> TeamNaming:
        """Names of teams and projects."""
        return TeamNaming(self.team_names, self.project_names)


@dataclass(frozen=True, slots=True)
class Web:
    """Who may ask, and where."""

    listen: str = key(
        "127.0.0.1:9455", "Address to listen on; port 0: a free one.", flag="--listen", metavar="HOST:PORT"
    )
    insecure: bool = key(
        False, "Allow an address that other machines can reach without TLS and login.", flag="--insecure"
    )
    config_file: str = key(
        "", "TLS, users and headers: a web config of Prometheus' exporters.", flag="--web-config-file", metavar="FILE"
    )
    token_file: str = key(
        "",
        "File with the token for what changes something; made where there is none. Empty: in the state directory.",
        flag="--token-file",
        metavar="FILE",
    )


@dataclass(frozen=True, slots=True)
class Gpus:
    """How the GPUs are read."""

    interval: float = key(1.0, "Seconds between readings.", flag="--interval", metavar="SECONDS", least=0.1, most=15.0)


@dataclass(frozen=True, slots=True)
class Dcgm:
    """What is read from DCGM's exporter, and shown as it would."""

    exporter: str = key(
        "", "Read the page of a dcgm-exporter as well: host:port or a URL.", flag="--dcgm-exporter", metavar="HOST:PORT"
    )
    names: str = key(
        "",
        "Show DCGM's names as well: up to 4.5 (old), from 4.6 (new).",
        flag="--dcgm-names",
        choices=("", "old", "new"),
    )


@dataclass(frozen=True, slots=True)
class State:
    """What outlives the agent."""

    directory: str = key(
        "", "Empty: $STATE_DIRECTORY, /var/lib/stepscope for root, ~/.local/state/stepscope.", flag="--state-dir"
    )


@dataclass(frozen=True, slots=True)
class Training:
    """How training processes reach the agent."""

    socket: str = key(
        DEFAULT_SOCKET,
        "Unix socket that training processes connect to; @name: abstract, empty: none.",
        flag="--socket",
        metavar="PATH",
    )
    socket_mode: str = key("0666", "Permissions of the socket: who may write may connect.")
    nccl_ras: str = key("127.0.0.1:28028", "NCCL's RAS service of jobs here, host:port; empty: it is not asked.")


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """Limits of captures."""

    max_steps: int = key(100, "Steps of one capture.", least=1, most=MAX_CAPTURED_STEPS)
    max_bytes: int = key(1 << 30, "Bytes of one rank's compressed trace.", least=1)
    max_per_hour: int = key(12, "Captures of one run within an hour.", least=0)


@dataclass(frozen=True, slots=True)
class Kineto:
    """How processes are captured that know nothing of stepscope."""

    enabled: bool = key(True, "Answer PyTorch processes that were started with KINETO_USE_DAEMON=1, as dynolog does.")
    socket_folder: str = key(
        "",
        "Their KINETO_IPC_SOCKET_DIR, letter for letter; empty: the abstract socket that they ask without.",
        flag="--kineto-socket-dir",
        metavar="DIR",
    )
    directory: str = key(
        "",
        "Where their traces come to lie. Empty: captures/ in the state directory.",
        flag="--captures-dir",
        metavar="DIR",
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All sections."""

    web: Web = Web()
    gpus: Gpus = Gpus()
    dcgm: Dcgm = Dcgm()
    state: State = State()
    training: Training = Training()
    captures: CaptureLimits = CaptureLimits()
    kineto: Kineto = Kineto()
    health: Thresholds = Thresholds()
    jobs: Jobs = Jobs()


KEYS: dict[str, Key] = keys_of(Settings)
"""All settings by `section.key`."""
