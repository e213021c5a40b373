"""Which settings has the agent? One section a topic; docs/agent.md has the table that is made of this file."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.agent.config.health import Thresholds
from stepscope.agent.config.jobs import Jobs
from stepscope.agent.config.keys import Key, key, keys_of
from stepscope.core.agent_messages import DEFAULT_SOCKET, MAX_CAPTURED_STEPS


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
class Captures:
    """What nobody may ask more of than."""

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
    captures: Captures = Captures()
    kineto: Kineto = Kineto()
    health: Thresholds = Thresholds()  # noqa: RUF009 - it is frozen
    jobs: Jobs = Jobs()  # noqa: RUF009


KEYS: dict[str, Key] = keys_of(Settings)
"""All settings by `section.key`."""
