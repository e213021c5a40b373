"""The agent's main loop: serve the sources, report what is read and what is missing, notify systemd.

`Systemd` speaks sd_notify: readiness, watchdog, stopping.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext, suppress

from stepscope.agent.assembly import Parts
from stepscope.agent.captures.http_routes import capture_routes
from stepscope.agent.exporter.metrics_page import STALE_SECONDS, MetricsPage
from stepscope.agent.node_api import api_routes, node_of
from stepscope.agent.polling import SourceState
from stepscope.agent.sources import GPUS, Sources
from stepscope.agent.state_directory import agent_token
from stepscope.agent.web.access import Access
from stepscope.agent.web.pages import page_routes
from stepscope.agent.web.server import AgentServer
from stepscope.core.documents.node import Node
from stepscope.core.metrics.readings import GPU, MissingReason
from stepscope.core.text.numbers import counted

_LOOK_SECONDS = 0.2


def serve(parts: Parts, *, stop: threading.Event, say: Callable[[str], None]) -> None:
    """Read and serve until `stop` is set.

    Args:
        parts: opened and closed here.
        stop: ends the agent.
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
            if wait_for_all(sources, stop):
                line = summary_of_sources(sources.states())
                say(line)
                systemd.ready(line)
            systemd.watch(lambda: (server.num_polls, _rounds(sources)), stop)
            systemd.stopping()


def _node(parts: Parts, host: str) -> Node:
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


def _rounds(sources: Sources) -> int:
    """Rounds of the GPUs' source, which never waits for a driver: it stops only if the agent itself does."""
    return sum(state.num_collections + state.num_errors for state in sources.states() if state.name == GPUS)


def wait_for_all(sources: Sources, stop: threading.Event, *, seconds: float | None = None) -> bool:
    """Wait until each source has answered or was given up; False if stopped before, or after so many seconds.

    The GPUs' source has answered once each GPU has, see `FirstRound`.
    """
    end = None if seconds is None else time.monotonic() + seconds
    while any(state.reason is MissingReason.NOT_YET for state in sources.states()):
        if stop.wait(_LOOK_SECONDS) or (end is not None and time.monotonic() > end):
            return False
    return True


def silent_gpus(states: Sequence[SourceState]) -> list[str]:
    """One line on each GPU whose driver does not answer."""
    return [
        f"GPU {dict(absent.labels)['gpu']} ({absent.reason}: {absent.detail})"
        for state in states
        if state.name == GPUS
        for absent in state.collection.missing
        if not absent.metric and absent.labels
    ]


def summary_of_sources(states: Sequence[SourceState]) -> str:
    """One line: number of GPUs read, and the sources and GPUs that give nothing, with the reason."""
    gpus = {
        dict(reading.labels).get("uuid", "")
        for state in states
        for reading in state.collection.readings
        if reading.metric == GPU + "up" and reading.value
    }
    down = [f"{state.name} ({state.reason}: {state.detail})" for state in states if state.reason]
    down += silent_gpus(states)
    up = [state.name for state in states if not state.reason and state.name != GPUS]
    read = " and ".join(filter(None, [counted(len(gpus), "GPU"), ", ".join(up)]))
    return f"reads {read}" + (f"; missing: {', '.join(down)}" if down else "")


_log = logging.getLogger(__name__)


class Systemd:
    """Notifications of the service manager; without one it does nothing.

    Args:
        environment: NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID as systemd sets them.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        for_us = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        microseconds = environment.get("WATCHDOG_USEC", "") if for_us else ""
        self._seconds = int(microseconds) / 1e6 if microseconds.isdecimal() else 0.0

    def ready(self, status: str) -> None:
        """Notify that the first round is over."""
        self._notify(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        """Notify that the agent is ending."""
        self._notify("STOPPING=1")

    def watch(self, progress: Callable[[], tuple[Hashable, ...]], stop: threading.Event) -> None:
        """Wait until `stop` is set, and reset the watchdog as long as the agent makes progress.

        Args:
            progress: counts that all increase while the agent works; if one does not, the watchdog is not reset.
            stop: ends the wait.
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
