"""The agent: its parts, made from the configuration, and its main loop.

`Agent` makes the parts; a setting that cannot be used is reported with the flag, variable or key that set it. Its
`serve` runs them, reports what is read and what is missing, and notifies systemd (sd_notify).
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.agent.captures.coordinator import AgentCaptureCoordinator, CaptureBackend, ProfileCaptureBackend
from stepscope.agent.config.configuration import Configuration, SettingOrigin
from stepscope.agent.config.settings import KubernetesSettings, node_name, ras_address
from stepscope.agent.exporter.exposition import CATALOGUE
from stepscope.agent.exporter.metrics_page import DcgmNames, MetricsPage
from stepscope.agent.exporter.selection import selected_series
from stepscope.agent.gpus.supervisor import ProbeTiming
from stepscope.agent.health.health_store import HealthStore
from stepscope.agent.polling import STALE_SECONDS
from stepscope.agent.sources import GPUS, AgentSources, summary_of_sources, wait_for_sources
from stepscope.agent.state_directory import StateLock, agent_token, state_directory
from stepscope.agent.training_link.counter_feed import CounterFeed
from stepscope.agent.training_link.server import TrainingServer
from stepscope.agent.verdicts.changes import VerdictChanges
from stepscope.agent.verdicts.notifier import VerdictNotifier, check_targets
from stepscope.agent.web.endpoints import api_routes, capture_routes, node_of, page_routes
from stepscope.agent.web.health_routes import health_routes
from stepscope.agent.web.routes import Access
from stepscope.agent.web.server import AgentServer, listen_address_of
from stepscope.agent.web.web_config import WebConfigReloader
from stepscope.collectors.kineto_daemon.backend import KinetoBackend
from stepscope.core.documents.node import Node, run_verdicts
from stepscope.core.errors import UsageError
from stepscope.core.metrics.readings import Reading
from stepscope.core.process import trim_memory

if TYPE_CHECKING:  # what is loaded only where a setting turns it on
    from stepscope.agent.exporter.otlp_push import OtlpPush
    from stepscope.agent.kubernetes.reporter import NodeReporter
    from stepscope.collectors.dcgm_exporter.page import Endpoint
    from stepscope.workflow.nodes.targets import TargetList


class Agent:
    """An agent with these settings; nothing runs or listens before `serve`.

    Raises:
        UsageError: a setting cannot be used; names the flag, variable or file that sets it, and its key.
    """

    def __init__(self, configuration: Configuration) -> None:
        settings = configuration.settings
        web = settings.web
        with _located_error(configuration, "web.config_file"):
            self._guard = WebConfigReloader(Path(web.config_file) if web.config_file else None)
        with _located_error(configuration, "web.listen"):
            self.address = listen_address_of(web.listen, insecure=web.insecure, config=self._guard.config())
        with _located_error(configuration, "web.targets"):
            self._targets = _targets(web.targets)
        self._token_file = Path(web.token_file) if web.token_file else None
        with _located_error(configuration, "exporter.metrics"):
            self._selection = selected_series(settings.exporter.metrics, CATALOGUE.values())
        self._dcgm_names = DcgmNames(settings.dcgm.names) if settings.dcgm.names else None
        self._training = _training(configuration)
        self._kineto = _kineto(configuration)
        self._host = node_name(settings.jobs.node)
        self._otlp = _otlp(configuration, self._host)
        self._state_directory = state_directory(settings.state.directory)
        self._lock = StateLock(self._state_directory)
        health_store = HealthStore(self._state_directory, may_write=lambda: self._lock.is_held)
        with _located_error(configuration, "kubernetes.report"):
            self._kubernetes = _kubernetes(settings.kubernetes, self._host)
        self._sources = agent_sources_of(
            configuration, self._training, self._kineto, health_store, kubernetes=self._kubernetes
        )
        interval = settings.gpus.interval
        self._counters = (
            CounterFeed(self._training, self._sources.states, interval=interval) if self._training else None
        )
        self._notifier = _notifier(configuration, self._training, self._host)
        backends: list[CaptureBackend] = [] if self._training is None else [ProfileCaptureBackend(self._training)]
        self._captures = AgentCaptureCoordinator(
            backends if self._kineto is None else [*backends, self._kineto],
            limits=settings.captures,
            pids_of_job=self._pids_of_job,
            directory=self._state_directory,
            host=self._host,
        )
        if self._training is not None:
            self._training.wake = self._captures.wake

    def serve(
        self, *, stop: threading.Event, say: Callable[[str], None], log_lines_dropped: Callable[[], int] = int
    ) -> None:
        """Read and serve until `stop` is set.

        Args:
            say: receives lines for people: the address, then what is read and what is missing.
            log_lines_dropped: number of lines that the log did not take so far.

        Raises:
            UsageError: the address, the socket, the token file or the state directory cannot be used.
        """
        sources, captures, guard, systemd = self._sources, self._captures, self._guard, Systemd()
        page = MetricsPage(
            sources.states,
            selection=self._selection,
            dcgm_names=self._dcgm_names,
            hostname=self._host,
            log_lines_dropped=log_lines_dropped,
            own_readings=lambda: [*_readings_of(self._otlp), *_readings_of(self._notifier)],
        )
        sources.after_round = page.prepare
        # the lock first and last: an agent that is refused has touched nothing, one that ends has released everything
        with self._lock, self._training or nullcontext(), self._kineto or nullcontext(), captures:
            access = Access(agent_token(self._state_directory, self._token_file), guard)
            scheme = "https" if guard.context() else "http"
            groups = self._targets.groups if self._targets else None
            api = api_routes(self._node, scheme=scheme, host=self._host, targets=groups)
            health = health_routes(sources.health, host=self._host)
            routes = (*page_routes(page, sources.states), *api, *health, *capture_routes(captures))
            server = AgentServer(self.address, routes, access, guard)
            helpers = self._counters, self._targets, self._kubernetes, self._notifier
            beside = [one for one in helpers if one is not None]
            with sources, server, ExitStack() as stack:
                for one in beside:
                    stack.enter_context(one)
                if self._otlp is not None:
                    stack.enter_context(self._otlp.running(lambda: page.encoded()[0]))
                say(f"{server.url}/metrics serves the metrics")
                if wait_for_sources(sources, stop):
                    trim_memory()
                    line = summary_of_sources(sources.states())
                    say(line)
                    systemd.ready(line)
                systemd.watch(lambda: (server.num_polls, _rounds(sources)), stop)
                systemd.stopping()

    def _pids_of_job(self, name: str) -> frozenset[int]:
        of_kineto = frozenset[int]() if self._kineto is None else self._kineto.pids_of_job(name)
        return self._sources.pids_of_job(name) | of_kineto

    def _node(self, host: str) -> Node:
        sources = self._sources
        return node_of(
            sources.states(),
            time.time_ns(),
            host=host,
            assignments=sources.assignments(max_age_seconds=STALE_SECONDS),
            health=sources.health.report(),
            fleet=sources.fleet.report(),
            ranks=self._training.ranks() if self._training else (),
        )


def agent_sources_of(
    configuration: Configuration,
    training: TrainingServer | None = None,
    kineto: KinetoBackend | None = None,
    health_store: HealthStore | None = None,
    *,
    kubernetes: NodeReporter | None = None,
) -> AgentSources:
    """The sources that an agent with these settings reads; see `Agent`."""
    settings = configuration.settings
    with _located_error(configuration, "dcgm.exporter"):
        exporter = _dcgm_exporter(settings.dcgm.exporter)
    text = configuration.settings.training.nccl_ras
    address = ras_address(text)
    if text and address is None:
        where = configuration.origin_of("training.nccl_ras")
        raise UsageError(f"{text} is not host:port", where=where, what_next="write it as 127.0.0.1:28028")
    return AgentSources(
        ProbeTiming(interval=settings.gpus.interval),
        dcgm_exporter=exporter,
        training=training,
        training_series_of_user=settings.training.user_series,
        kineto=kineto,
        nccl_ras=address,
        kubernetes=kubernetes,
        thresholds=settings.health,
        jobs=settings.jobs,
        health_store=health_store,
    )


def _kubernetes(settings: KubernetesSettings, host: str) -> NodeReporter | None:
    if settings.report == "off":
        return None
    from stepscope.agent.kubernetes.reporter import node_reporter_of

    return node_reporter_of(settings, host, os.environ)


def _dcgm_exporter(url: str) -> Endpoint | None:
    if not url:
        return None
    from stepscope.collectors.dcgm_exporter.page import dcgm_endpoint_of

    return dcgm_endpoint_of(url)


def _otlp(configuration: Configuration, host: str) -> OtlpPush | None:
    settings = configuration.settings.otlp
    if not settings.endpoint:
        return None
    from stepscope.agent.exporter.otlp_push import OtlpPush, otlp_endpoint_of

    with _located_error(configuration, "otlp.endpoint"):
        endpoint = otlp_endpoint_of(settings.endpoint)
    return OtlpPush(endpoint, host=host, interval=settings.interval_seconds, timeout=settings.timeout_seconds)


def _readings_of(part: OtlpPush | VerdictNotifier | None) -> Sequence[Reading]:
    return () if part is None else part.readings()


def _notifier(configuration: Configuration, training: TrainingServer | None, host: str) -> VerdictNotifier | None:
    settings = configuration.settings.verdicts
    with _located_error(configuration, "verdicts.webhook"):
        check_targets(settings.webhook)
    if training is None or not (settings.webhook or settings.command):
        return None
    return VerdictNotifier(
        lambda: run_verdicts(training.ranks()),
        VerdictChanges(settings.settle_seconds, settings.per_hour),
        host=host,
        webhook=settings.webhook,
        command=settings.command,
        timeout=settings.timeout_seconds,
    )


def _targets(sources: Sequence[str]) -> TargetList | None:
    if not sources:
        return None
    from stepscope.workflow.nodes.targets import TargetList, check_source  # nothing else here needs its HTTP client

    for source in sources:
        check_source(source)
    return TargetList(sources)


def _training(configuration: Configuration) -> TrainingServer | None:
    settings = configuration.settings.training
    if not settings.socket:
        return None
    if re.fullmatch("0?[0-7]{3}", settings.socket_mode) is None:
        where = configuration.origin_of("training.socket_mode")
        raise UsageError("is not a valid file mode", where=where, what_next="write it as 0660")
    is_required = configuration.origins["training.socket"][0] is not SettingOrigin.DEFAULT
    return TrainingServer(
        settings.socket,
        mode=int(settings.socket_mode, 8),
        is_required=is_required,
        connections_of_user=settings.user_connections,
    )


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


@contextmanager
def _located_error(configuration: Configuration, path: str) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(str(error), where=configuration.origin_of(path)) from None


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
