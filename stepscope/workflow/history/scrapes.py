"""One scrape of an agent: its request, and what its answer means."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from stepscope.core.errors import UnreachableError
from stepscope.store.history.questions import Labels
from stepscope.workflow.history.episodes import GapReason
from stepscope.workflow.nodes.agent_client import AgentClient
from stepscope.workflow.nodes.exchanges import Body

PATH = "/metrics"
HEADERS: Mapping[str, str] = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "gzip"}
MAX_PAGE_BYTES = 8 << 20
"""Unpacked. The page of 16 GPUs with all metrics and many jobs has some hundred kilobytes."""
_MAX_REASON = 200


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """An agent that is scraped.

    Attributes:
        labels: of all its series, sorted: its address as `instance`, those of its source, those of the recorder.
    """

    client: AgentClient
    labels: Labels

    @property
    def instance(self) -> str:
        """Its address, or the name that its source gives it."""
        return dict(self.labels)["instance"]


def target_of(client: AgentClient, labels: Mapping[str, str]) -> ScrapeTarget:
    """The target of an agent.

    Labels that begin with two underscores are dropped, as Prometheus does after its relabelling.

    Args:
        labels: of the recorder, for all its targets; those of the target's source stand above them.
    """
    own = {name: value for name, value in client.labels if value and not name.startswith("__")}
    address = str(client).partition("://")[2]
    return ScrapeTarget(client, tuple(sorted({"instance": address, **labels, **own}.items())))


@dataclass(frozen=True, slots=True)
class Scrape:
    """An answer of an agent, or why there is none.

    Attributes:
        time_ns: at which it was asked, ns since the epoch, by the clock here.
        seconds: until the answer, or until it was given up.
    """

    target: ScrapeTarget
    time_ns: int
    seconds: float
    answer: Body | UnreachableError


class NoPageError(Exception):
    """A scrape without a page: the reason of the gap, and one line."""

    def __init__(self, reason: GapReason, text: str) -> None:
        super().__init__(text)
        self.reason, self.text = reason, text


def content_of(scrape: Scrape) -> bytes:
    """The content of the answer of a scrape.

    Raises:
        NoPageError: there is none, or it is an error.
    """
    answer = scrape.answer
    if isinstance(answer, UnreachableError):
        raise NoPageError(_reason_of(answer), answer.what)
    status, content = answer
    if status == HTTPStatus.OK:
        return content
    is_refused = status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
    line = next(iter(content[:_MAX_REASON].decode(errors="replace").split("\n")), "").strip()
    is_text = line and not line.startswith(("<", "{"))
    text = f"answers with HTTP status {status}" + (f": {line}" if is_text else "")
    raise NoPageError(GapReason.NO_PERMISSION if is_refused else GapReason.HTTP_STATUS, text)


def _reason_of(error: UnreachableError) -> GapReason:
    cause = error.__cause__
    if cause is None:
        return GapReason.TOO_LARGE
    if isinstance(cause, TimeoutError):
        return GapReason.TIMED_OUT
    if isinstance(cause, ssl.SSLError):
        return GapReason.TLS
    if isinstance(cause, (socket.gaierror, UnicodeError)):
        return GapReason.NO_SUCH_HOST
    if isinstance(cause, http.client.HTTPException):
        is_broken = isinstance(cause, (http.client.RemoteDisconnected, http.client.IncompleteRead))
        return GapReason.UNREACHABLE if is_broken else GapReason.NOT_HTTP
    return GapReason.REFUSED if isinstance(cause, ConnectionRefusedError) else GapReason.UNREACHABLE
