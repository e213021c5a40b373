"""How does the agent run? It reads, serves what it read, and says once what is missing here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from stepscope.agent.api import api_routes, node_of
from stepscope.agent.assembly import Parts
from stepscope.agent.exporter import MetricsPage
from stepscope.agent.source_state import SourceState
from stepscope.agent.sources import GPUS, Sources
from stepscope.agent.systemd import Systemd
from stepscope.agent.web import Access, AgentServer, page_routes
from stepscope.core.counting import counted
from stepscope.core.gpu_metrics import GPU
from stepscope.core.node import Node
from stepscope.core.readings import MissingReason

_LOOK_SECONDS = 0.2


def serve(parts: Parts, *, stop: threading.Event, say: Callable[[str], None]) -> None:
    """Read and serve until `stop` is set.

    Args:
        parts: what to read and how to serve it; opened and closed here.
        stop: set it to end.
        say: takes lines for people: where it listens, then what is read and what is missing.

    Raises:
        UsageError: the address, the socket, the token file or the state directory cannot be had.
    """
    sources, captures, systemd = parts.sources, parts.captures, Systemd()
    page = MetricsPage(sources.states, dcgm_names=parts.dcgm_names, hostname=parts.host)
    # the lock first and last: whoever is refused has touched nothing, and whoever ends has let go of all
    with parts.state, parts.training or nullcontext(), parts.kineto or nullcontext(), captures:
        access = Access(captures.token, parts.guard)
        scheme = "https" if parts.guard.context() else "http"
        api = api_routes(lambda host: _node(parts, host), scheme=scheme, host=parts.host)
        routes = (*page_routes(page, sources.states), *api, *captures.routes)
        server = AgentServer(parts.address, routes, access, parts.guard)
        with sources, server:
            say(f"{server.url}/metrics tells what is read")
            if wait_for_all(sources, stop):
                line = what_is_read(sources.states())
                say(line)
                systemd.ready(line)
            systemd.watch(lambda: (server.num_looks, _rounds(sources)), stop)
            systemd.stopping()


def _node(parts: Parts, host: str) -> Node:
    sources, training = parts.sources, parts.training
    return node_of(
        sources.states(),
        time.time_ns(),
        host=host,
        health=sources.health.report(),
        fleet=sources.fleet.report(),
        ranks=training.ranks() if training else (),
    )


def _rounds(sources: Sources) -> int:
    """Of the GPUs' source: it waits for no driver, so that it stands still only if the agent itself does."""
    return sum(state.num_collections + state.num_errors for state in sources.states() if state.name == GPUS)


def wait_for_all(sources: Sources, stop: threading.Event, *, seconds: float | None = None) -> bool:
    """Wait until each source has answered or was given up; False when it is time to stop before, or takes longer.

    The GPUs' source has once each GPU has, see `FirstRound`.
    """
    end = None if seconds is None else time.monotonic() + seconds
    while any(state.reason is MissingReason.NOT_YET for state in sources.states()):
        if stop.wait(_LOOK_SECONDS) or (end is not None and time.monotonic() > end):
            return False
    return True


def silent_gpus(states: Sequence[SourceState]) -> list[str]:
    """A line on each GPU that does not answer its driver."""
    return [
        f"GPU {dict(absent.labels)['gpu']} ({absent.reason}: {absent.detail})"
        for state in states
        if state.name == GPUS
        for absent in state.collection.missing
        if not absent.metric and absent.labels
    ]


def what_is_read(states: Sequence[SourceState]) -> str:
    """One line: how many GPUs, and which sources and GPUs give nothing, why."""
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
