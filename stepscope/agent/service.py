"""The agent: its parts, made from the configuration, and its main loop.

`assembled_agent` makes the parts; a setting that cannot be used is reported with the flag, variable or key that set it.
`serve_agent` runs them, reports what is read and what is missing, and notifies systemd (sd_notify).
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from stepscope.agent.captures.coordinator import AgentCaptureCoordinator, CaptureBackend, ProfileCaptureBackend
from stepscope.agent.config.configuration import Configuration, SettingOrigin
from stepscope.agent.config.settings import node_name
from stepscope.agent.exporter.metrics_page import DcgmNames, MetricsPage
from stepscope.agent.gpus.supervisor import ProbeTiming
from stepscope.agent.hangs.hang_detection import ras_address
from stepscope.agent.polling import STALE_SECONDS
from stepscope.agent.sources import GPUS, AgentSources, summary_of_sources, wait_for_sources
from stepscope.agent.state_directory import StateLock, agent_token, state_directory
from stepscope.agent.training_link.server import TrainingServer
from stepscope.agent.web.access import Access
from stepscope.agent.web.endpoints import api_routes, capture_routes, node_of, page_routes
from stepscope.agent.web.server import AgentServer, ListenAddress, listen_address_of
from stepscope.agent.web.web_config import WebConfigReloader
from stepscope.collectors.dcgm_exporter.page import dcgm_endpoint_of
from stepscope.collectors.kineto_daemon.backend import KinetoBackend
from stepscope.core.documents.node import Node
from stepscope.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class AgentParts:
    """Parts of an agent; nothing runs or listens yet.

    Attributes:
        guard: access rules and encryption of connections.
        dcgm_names: names under which GPUs are shown as dcgm-exporter does; None: not at all.
        training: server of training processes; None: no server.
        kineto: server of processes started with KINETO_USE_DAEMON=1; None: no server.
        state_directory: keeps captures, and the token where no file is named.
        token_file: holds the token of who may change something; None: in the state directory.
        state: keeps every other agent out of the state directory.
    """

    address: ListenAddress
    guard: WebConfigReloader
    sources: AgentSources
    dcgm_names: DcgmNames | None
    training: TrainingServer | None
    kineto: KinetoBackend | None
    captures: AgentCaptureCoordinator
    state_directory: Path
    token_file: Path | None
    state: StateLock
    host: str


def assembled_agent(configuration: Configuration) -> AgentParts:
    """The parts of an agent with these settings.

    Raises:
        UsageError: a setting cannot be used; names the flag, variable or file that sets it, and its key.
    """
    web = configuration.settings.web
    with _located_error(configuration, "web.config_file"):
        guard = WebConfigReloader(Path(web.config_file) if web.config_file else None)
    with _located_error(configuration, "web.listen"):
        address = listen_address_of(web.listen, insecure=web.insecure, config=guard.config())
    names = configuration.settings.dcgm.names
    training = _training(configuration)
    kineto = _kineto(configuration)
    sources = agent_sources_of(configuration, training, kineto)
    host = node_name(configuration.settings.jobs.node)
    captures = _captures(configuration, training, kineto, sources, host)
    directory = state_directory(configuration.settings.state.directory)
    return AgentParts(
        address,
        guard,
        sources,
        DcgmNames(names) if names else None,
        training,
        kineto,
        captures,
        directory,
        Path(web.token_file) if web.token_file else None,
        StateLock(directory),
        host,
    )


def agent_sources_of(
    configuration: Configuration, training: TrainingServer | None = None, kineto: KinetoBackend | None = None
) -> AgentSources:
    """The sources that an agent with these settings reads; see `assembled_agent`."""
    settings = configuration.settings
    with _located_error(configuration, "dcgm.exporter"):
        exporter = dcgm_endpoint_of(settings.dcgm.exporter) if settings.dcgm.exporter else None
    return AgentSources(
        ProbeTiming(interval=settings.gpus.interval),
        dcgm_exporter=exporter,
        training=training,
        kineto=kineto,
        nccl_ras=_nccl_ras(configuration),
        thresholds=settings.health,
        jobs=settings.jobs,
    )


def _nccl_ras(configuration: Configuration) -> tuple[str, int] | None:
    text = configuration.settings.training.nccl_ras
    address = ras_address(text)
    if text and address is None:
        where = configuration.origin_of("training.nccl_ras")
        raise UsageError(f"{text} is not host:port", where=where, what_next="write it as 127.0.0.1:28028")
    return address


def _training(configuration: Configuration) -> TrainingServer | None:
    settings = configuration.settings.training
    if not settings.socket:
        return None
    if re.fullmatch("0?[0-7]{3}", settings.socket_mode) is None:
        where = configuration.origin_of("training.socket_mode")
        raise UsageError("is not a valid file mode", where=where, what_next="write it as 0660")
    is_required = configuration.origins["training.socket"][0] is not SettingOrigin.DEFAULT
    return TrainingServer(settings.socket, mode=int(settings.socket_mode, 8), is_required=is_required)


def _kineto(configuration: Configuration) -> KinetoBackend | None:
    settings = configuration.settings.kineto
    if not settings.enabled:
        return None
    for name, folder in (("socket_folder", settings.socket_folder), ("directory", settings.directory)):
        if folder and not folder.startswith("/"):
            where = configuration.origin_of(f"kineto.{name}")
            raise UsageError(f"{folder} is not an absolute path", where=where, what_next="begin it with /")
    is_required = any(
        configuration.origins[f"kineto.{name}"][0] is not SettingOrigin.DEFAULT for name in ("enabled", "socket_folder")
    )
    of_agent = state_directory(configuration.settings.state.directory) / "captures"
    runs = Path(settings.directory) if settings.directory else of_agent
    return KinetoBackend(runs, socket_folder=settings.socket_folder or None, is_required=is_required)


def _captures(
    configuration: Configuration,
    training: TrainingServer | None,
    kineto: KinetoBackend | None,
    sources: AgentSources,
    host: str,
) -> AgentCaptureCoordinator:
    settings = configuration.settings
    backends: list[CaptureBackend] = [] if training is None else [ProfileCaptureBackend(training)]
    backends += [] if kineto is None else [kineto]

    def pids_of_job(name: str) -> frozenset[int]:
        return sources.pids_of_job(name) | (frozenset() if kineto is None else kineto.pids_of_job(name))

    captures = AgentCaptureCoordinator(
        backends,
        limits=settings.captures,
        pids_of_job=pids_of_job,
        directory=state_directory(settings.state.directory),
        host=host,
    )
    if training is not None:
        training.wake = captures.wake
    return captures


@contextmanager
def _located_error(configuration: Configuration, path: str) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(str(error), where=configuration.origin_of(path)) from None


def serve_agent(parts: AgentParts, *, stop: threading.Event, say: Callable[[str], None]) -> None:
    """Run an agent: read and serve until `stop` is set.

    Args:
        parts: opened and closed here.
        say: receives lines for people: the address, then what is read and what is missing.

    Raises:
        UsageError: the address, the socket, the token file or the state directory cannot be used.
    """
    sources, captures, systemd = parts.sources, parts.captures, Systemd()
    page = MetricsPage(sources.states, dcgm_names=parts.dcgm_names, hostname=parts.host)
    # the lock first and last: an agent that is refused has touched nothing, one that ends has released everything
    with parts.state, parts.training or nullcontext(), parts.kineto or nullcontext(), captures:
        access = Access(agent_token(parts.state_directory, parts.token_file), parts.guard)
        scheme = "https" if parts.guard.context() else "http"
        api = api_routes(lambda host: _node(parts, host), scheme=scheme, host=parts.host)
        routes = (*page_routes(page, sources.states), *api, *capture_routes(captures))
        server = AgentServer(parts.address, routes, access, parts.guard)
        with sources, server:
            say(f"{server.url}/metrics serves the metrics")
            if wait_for_sources(sources, stop):
                line = summary_of_sources(sources.states())
                say(line)
                systemd.ready(line)
            systemd.watch(lambda: (server.num_polls, _rounds(sources)), stop)
            systemd.stopping()


def _node(parts: AgentParts, host: str) -> Node:
    sources, training = parts.sources, parts.training
    return node_of(
        sources.states(),
        time.time_ns(),
        host=host,
        assignments=sources.assignments(max_age_seconds=STALE_SECONDS),
        health=sources.health.report(),
        fleet=sources.fleet.report(),
        ranks=training.ranks() if training else (),
    )


def _rounds(sources: AgentSources) -> int:
    """Rounds of the GPUs' source, which never waits for a driver: it stops only if the agent itself does."""
    return sum(state.num_collections + state.num_errors for state in sources.states() if state.name == GPUS)


_log = logging.getLogger(__name__)


class Systemd:
    """Notifications of the agent to systemd; without it they do nothing.

    Args:
        environment: NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID as systemd sets them.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        for_us = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        microseconds = environment.get("WATCHDOG_USEC", "") if for_us else ""
        self._seconds = int(microseconds) / 1e6 if microseconds.isdecimal() else 0.0

    def ready(self, status: str) -> None:
        self._notify(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        self._notify("STOPPING=1")

    def watch(self, progress: Callable[[], tuple[Hashable, ...]], stop: threading.Event) -> None:
        """Wait until `stop` is set, and reset the watchdog as long as the agent makes progress.

        Args:
            progress: counts that all increase while the agent works; if one does not, the watchdog is not reset.
        """
        if not self._address or not self._seconds:
            stop.wait()
            return
        before: tuple[Hashable, ...] = ()
        while not stop.wait(self._seconds / 4):
            now = progress()
            if not before or all(one != other for one, other in zip(now, before, strict=True)):
                self._notify("WATCHDOG=1")
                before = now

    def _notify(self, message: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender, suppress(OSError):
            sender.setblocking(False)
            sender.sendto(message.encode(errors="replace"), address)
            return
        _log.debug("the service manager does not listen")
