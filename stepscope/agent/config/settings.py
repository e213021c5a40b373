"""Settings of the agent, one section a topic: each key with its help, limits and flag, and the parsing of its values.

docs/reference/agent-configuration.md has their table. `HealthThresholds` holds the limits of health checks;
docs/guides/health.md names the source of each.
"""

from __future__ import annotations

import math
import os
import socket
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from stepscope.collectors.jobs.kubernetes.pod_resources import KUBELET_SOCKET
from stepscope.collectors.jobs.processes import PROJECT_NAMES, TEAM_NAMES, TeamNaming
from stepscope.core.errors import UsageError
from stepscope.core.protocol.captures import MAX_CAPTURED_STEPS
from stepscope.core.protocol.messages import DEFAULT_SOCKET

_T = TypeVar("_T")
_METADATA = "stepscope"


def key(
    default: _T,
    help: str,  # noqa: A002 - what click and argparse call it
    *,
    flag: str = "",
    metavar: str = "",
    least: float = float("-inf"),
    most: float = float("inf"),
    choices: Iterable[str] = (),
    is_secret: bool = False,
) -> _T:
    """A key of the agent's configuration, as a field of a section.

    Args:
        default: of type bool, int, float, str or tuple of str.
        flag: option of `stepscope agent run` that sets it; empty: none.
        metavar: placeholder of the option's value.
        choices: all allowed texts; none: any.
    """
    about = Key("", "", type(default), default, help, flag, metavar, least, most, tuple(choices), is_secret)
    made: Any = field(default=default, metadata={_METADATA: about})
    return typing.cast(_T, made)


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the agent's configuration.

    Attributes:
        section, name: its place in the file.
        type: bool, int, float, str or tuple (of str).
        default, help, flag, metavar, least, most, choices, is_secret: see `key`.
    """

    section: str
    name: str
    type: type
    default: Any
    help: str
    flag: str
    metavar: str
    least: float
    most: float
    choices: tuple[str, ...]
    is_secret: bool

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def parameter(self) -> str:
        """Name of its option's parameter in Python."""
        return self.flag.removeprefix("--").replace("-", "_")


def keys_of(settings: type) -> dict[str, Key]:
    """All keys of the agent's configuration by path; the fields of `settings` are sections, dataclasses of keys."""
    found = [one for section, of_section in sections_of(settings).items() for one in _keys(section, of_section)]
    return {one.path: one for one in found}


def sections_of(settings: type) -> dict[str, Callable[..., Any]]:
    """Dataclasses of the sections of the agent's configuration by name."""
    hints = typing.get_type_hints(settings)
    return {one.name: hints[one.name] for one in fields(settings)}


def _keys(section: str, of_section: Any) -> Iterable[Key]:
    for one in fields(of_section):
        yield replace(one.metadata[_METADATA], section=section, name=one.name)


_TYPE_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    tuple: "a list of strings",
}


def typed_value(key: Key, value: Any, *, where: str) -> Any:
    """A value of the agent's configuration in its key's type.

    Raises:
        UsageError: it has another type or is outside of the key's limits.
    """
    if key.type is float and type(value) is int:
        value = float(value)
    if key.type is tuple and isinstance(value, str):
        value = (value,)
    if key.type is tuple and isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        value = tuple(value)
    if type(value) is not key.type:
        raise UsageError(f"must be {_TYPE_NAMES[key.type]}, not {_shown(key, value)}", where=where)
    if isinstance(value, int | float) and not (key.least <= value <= key.most and math.isfinite(value)):
        raise UsageError(f"must be {_limits(key)}, not {_shown(key, value)}", where=where)
    if key.choices and value not in key.choices:
        allowed = ", ".join(choice or '""' for choice in key.choices)
        raise UsageError(f"must be one of {allowed}, not {_shown(key, value)}", where=where)
    return value


def value_from_text(key: Key, text: str, *, where: str) -> Any:
    """Parse an agent setting in an environment variable: as in TOML, strings without quotes, lists also with commas.

    Raises:
        UsageError: it is not a value of the key.
    """
    value: Any = text
    if key.type is tuple and not text.lstrip().startswith("["):
        value = [part.strip() for part in text.split(",") if part.strip()]
    elif key.type is not str:
        try:
            document = tomllib.loads(f"value = {text.strip()}")
            value = document["value"] if len(document) == 1 else text
        except (ValueError, RecursionError):
            pass
    return typed_value(key, value, where=where)


def _limits(key: Key) -> str:
    if key.most == math.inf:
        return "a number" if key.least == -math.inf else f"at least {key.least:g}"
    return f"{key.least:g} to {key.most:g}"


def _shown(key: Key, value: Any) -> str:
    return "that" if key.is_secret else repr(value) if isinstance(value, str) else str(value)


@dataclass(frozen=True, slots=True)
class HealthThresholds:
    """Settings of the agent's health checks: thresholds and times, `[health]` in the file."""

    expected_gpus: int = key(0, "Number of GPUs that the machine must have; 0: any.", least=0)
    # memory
    corrected_errors_per_second: float = key(
        1.0, "Rate of corrected memory errors for a warning, averaged over a minute.", least=0.0
    )
    corrected_errors_critical_per_second: float = key(
        1000.0, "Rate of corrected memory errors for a critical event.", least=0.0
    )
    remapped_rows: int = key(512, "Memory rows remapped after uncorrectable errors.", least=1)
    retired_pages: int = key(63, "Memory pages retired, on GPUs before Ampere.", least=1)
    retired_pages_uncorrected: int = key(
        15, "Pages retired after double-bit errors, if more than one came this week.", least=0
    )
    # links
    pcie_replays_factor: float = key(
        1.0, "PCIe replays, as a factor of DCGM's limit for generation and width.", least=0.01
    )
    nvlink_crc_per_second: float = key(1.0, "Rate of NVLink CRC errors for a warning.", least=0.0)
    nvlink_crc_critical_per_second: float = key(100.0, "Rate of NVLink CRC errors for a critical event.", least=0.0)
    nvlink_errors_per_minute: float = key(1.0, "Rate of other NVLink errors.", least=0.01)
    nvlink_effective_error_ratio: float = key(1e-12, "NVLink 5: bit error ratio after correction.", least=0.0)
    nvlink_symbol_error_ratio: float = key(
        1.5e-237, "NVLink 5: symbol error ratio; the default is its smallest value, which stands for 0.", least=0.0
    )
    # heat and power
    thermal_seconds_per_minute: float = key(
        0.0, "Seconds per minute of thermal slowdown above which there is a warning.", least=0.0
    )
    temperature_margin_celsius: float = key(0.0, "Degrees below the slowdown temperature at which there is a warning.")
    slowdown_per_minute: float = key(0.6, "Share of minutes with a hardware slowdown.", least=0.01)
    slowdown_minutes: int = key(10, "Minutes over which that share is taken.", least=1)
    busy_ratio: float = key(0.5, "Utilisation from which a GPU counts as under load.", least=0.0, most=1.0)
    # XIDs
    repeats: int = key(3, "Processes with XID 13 or 31 on one GPU from which the GPU is suspected.", least=2)
    repeats_seconds: float = key(86_400.0, "Seconds over which they are counted.", least=1.0)
    # times
    hung_seconds: float = key(30.0, "Seconds that a GPU, driver or link may take to answer.", least=0.0)
    stalls_per_minute: float = key(
        0.3, "Share of 10 minutes in which a GPU stalled before it answered again.", least=0.01
    )
    load_seconds: float = key(30.0, "Seconds that a PCIe link must be slow under load.", least=0.0)
    fabric_seconds: float = key(120.0, "Seconds that a GPU may take to join the NVLink fabric at first.", least=0.0)
    leave_seconds: float = key(300.0, "Seconds without an error until an episode ends.", least=0.0)
    xid_leave_seconds: float = key(
        600.0, "Seconds without an error until the episode of an XID that needs no reset ends.", least=0.0
    )
    port_leave_seconds: float = key(600.0, "Seconds that an InfiniBand port must be up again.", least=0.0)
    stale_seconds: float = key(60.0, "Age in seconds from which a value is ignored.", least=1.0)


WARNS_BEFORE = {
    "health.corrected_errors_per_second": "health.corrected_errors_critical_per_second",
    "health.nvlink_crc_per_second": "health.nvlink_crc_critical_per_second",
}
"""Key of each warning's rate, and of the critical rate, which must not be lower."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Settings of the agent: how jobs are attributed to GPUs."""

    idle_seconds: float = key(300.0, "Seconds without kernels after which a GPU in use counts as idle.", least=1.0)
    team_names: tuple[str, ...] = key(
        TEAM_NAMES, "Labels and variables with a team's name; the first that is set counts."
    )
    project_names: tuple[str, ...] = key(PROJECT_NAMES, "Labels and variables with a project's name.")
    hpc_job_folder: str = key("", "Folder with the files that job prologs write for dcgm-exporter.", metavar="FOLDER")
    kubelet_socket: str = key(KUBELET_SOCKET, "Socket of the kubelet's pod-resources API.")
    node: str = key("", "Name of this machine, in Kubernetes of the node; empty: NODE_NAME, or the host's name.")

    @property
    def naming(self) -> TeamNaming:
        return TeamNaming(self.team_names, self.project_names)


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Settings of the agent: address and access of the HTTP server."""

    listen: str = key(
        "127.0.0.1:9455", "Address to listen on; port 0: any free port.", flag="--listen", metavar="HOST:PORT"
    )
    insecure: bool = key(
        False, "Allow an address that other machines can reach without TLS and login.", flag="--insecure"
    )
    config_file: str = key(
        "",
        "TLS, users and headers: a web config file of Prometheus' exporters.",
        flag="--web-config-file",
        metavar="FILE",
    )
    token_file: str = key(
        "",
        "File with the token for requests that change something, created if missing. Empty: in the state directory.",
        flag="--token-file",
        metavar="FILE",
    )
    targets: tuple[str, ...] = key((), "Sources of the agents that /sd lists; none: this agent alone.")


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """Settings of the agent: polling of GPUs."""

    interval: float = key(1.0, "Seconds between readings.", flag="--interval", metavar="SECONDS", least=0.1, most=15.0)


@dataclass(frozen=True, slots=True)
class ExporterSettings:
    """Settings of the agent: its page of metrics."""

    metrics: tuple[str, ...] = key(
        ("default",),
        "Metrics on the page: default, full, or a list of these, names and patterns with * and ?.",
    )


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """Settings of the agent: push of its metrics to an OpenTelemetry collector."""

    endpoint: str = key(
        "", "URL of an OTLP/HTTP endpoint that all metrics are pushed to; empty: none.", flag="--otlp-endpoint",
        metavar="URL",
    )  # fmt: skip
    interval_seconds: float = key(15.0, "Seconds between two pushes.", least=1.0)
    timeout_seconds: float = key(10.0, "Seconds that a push may take.", least=0.1, most=300.0)


@dataclass(frozen=True, slots=True)
class DcgmSettings:
    """Settings of the agent: input from a dcgm-exporter, and output under DCGM's metric names."""

    exporter: str = key(
        "", "Also read the page of a dcgm-exporter: host:port or a URL.", flag="--dcgm-exporter", metavar="HOST:PORT"
    )
    names: str = key(
        "",
        "Also export metrics by DCGM's names: up to 4.5 (old), from 4.6 (new).",
        flag="--dcgm-names",
        choices=("", "old", "new"),
    )


@dataclass(frozen=True, slots=True)
class StateSettings:
    """Settings of the agent: where it keeps its state."""

    directory: str = key(
        "",
        "State directory; empty: $STATE_DIRECTORY, /var/lib/stepscope for root, else ~/.local/state/stepscope.",
        flag="--state-dir",
    )


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Settings of the agent: connections of training processes."""

    socket: str = key(
        DEFAULT_SOCKET,
        "Unix socket for training processes; @name: abstract, empty: none.",
        flag="--socket",
        metavar="PATH",
    )
    socket_mode: str = key("0666", "Permissions of the socket; connecting needs write permission.")
    user_connections: int = key(64, "Largest number of connections of one user; 256 of all users.", least=1, most=256)
    user_series: int = key(
        1000, "Largest number of series of one user's processes; phases and figures are left out first.", least=1
    )
    nccl_ras: str = key("127.0.0.1:28028", "NCCL's RAS service of jobs on this machine, host:port; empty: off.")


@dataclass(frozen=True, slots=True)
class VerdictSettings:
    """Settings of the agent: what is called when the live verdict of a run changes."""

    webhook: str = key("", "URL that gets a JSON POST when the verdict of a run changes; empty: none.", is_secret=True)
    command: tuple[str, ...] = key(
        (), "Command and its arguments, without a shell, that gets the same JSON on standard input; none: none."
    )
    settle_seconds: float = key(60.0, "Seconds that a change must last, over at least two verdicts.", least=0.0)
    per_hour: int = key(12, "Largest number of calls an hour for the runs of one user.", least=1, most=3600)
    timeout_seconds: float = key(10.0, "Seconds that a call may take.", least=0.1, most=300.0)


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """Settings of the agent: limits of captures."""

    max_steps: int = key(100, "Largest number of steps of one capture.", least=1, most=MAX_CAPTURED_STEPS)
    max_bytes: int = key(1 << 30, "Largest size of one rank's compressed trace, bytes.", least=1)
    max_per_hour: int = key(12, "Largest number of captures of one run within an hour.", least=0)


@dataclass(frozen=True, slots=True)
class KinetoSettings:
    """Settings of the agent: captures of PyTorch processes that do not use stepscope."""

    enabled: bool = key(True, "Serve PyTorch processes that were started with KINETO_USE_DAEMON=1, as dynolog does.")
    socket_folder: str = key(
        "",
        "Their KINETO_IPC_SOCKET_DIR, exactly as set; empty: the abstract socket that they use without it.",
        flag="--kineto-socket-dir",
        metavar="DIR",
    )
    directory: str = key(
        "", "Folder for their traces. Empty: captures/ in the state directory.", flag="--captures-dir", metavar="DIR"
    )


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Settings of the agent: health as a condition and events of the Kubernetes node."""

    report: str = key(
        "off",
        "Report health to Kubernetes: off, dry_run (the API server checks each change and keeps none), on.",
        choices=("off", "dry_run", "on"),
    )
    condition: str = key("StepscopeGpuUnhealthy", "Type of the node's condition; True: there is a problem.")
    severity: str = key(
        "critical", "Severity from which an event makes the condition True.", choices=("warning", "critical")
    )
    events: bool = key(True, "Also create an event for each warning and critical event that begins or ends.")
    settle_seconds: float = key(30.0, "Seconds that a problem must last before the condition is True.", least=0.0)
    clear_seconds: float = key(300.0, "Seconds without a problem before the condition is False again.", least=0.0)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """All sections of the agent's configuration."""

    web: WebSettings = WebSettings()
    gpus: GpuSettings = GpuSettings()
    exporter: ExporterSettings = ExporterSettings()
    otlp: OtlpSettings = OtlpSettings()
    dcgm: DcgmSettings = DcgmSettings()
    state: StateSettings = StateSettings()
    training: TrainingSettings = TrainingSettings()
    verdicts: VerdictSettings = VerdictSettings()
    captures: CaptureLimits = CaptureLimits()
    kineto: KinetoSettings = KinetoSettings()
    health: HealthThresholds = HealthThresholds()
    jobs: JobSettings = JobSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()


KEYS: dict[str, Key] = keys_of(AgentSettings)
"""All settings by `section.key`."""


def node_name(setting: str = "", environment: Mapping[str, str] | None = None) -> str:
    """Agent's configuration: node name from its setting, else NODE_NAME, else the host's name.

    A pod's host name is its own.
    """
    environment = os.environ if environment is None else environment
    return setting or environment.get("NODE_NAME", "") or socket.gethostname()


def ras_address(text: str) -> tuple[str, int] | None:
    """Agent's configuration: host and port of NCCL's RAS service, from its setting "host:port"; None if malformed."""
    host, _, port = text.rpartition(":")
    with suppress(ValueError):
        if host and 0 < int(port) < 1 << 16:
            return host.strip("[]"), int(port)
    return None
