"""HTTP routes of the agent's health: its document, and what operators say of it.

Reading is as of the node's document; acknowledging and setting healthy need the agent's token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Protocol

from stepscope.agent.config.settings import node_name
from stepscope.agent.health.health_source import StandingConditionError
from stepscope.agent.web.routes import Reply, Request, Route, json_reply
from stepscope.core.documents.health import (
    ACKNOWLEDGE_PATH,
    HEALTH_PATH,
    NODE,
    SET_HEALTHY_PATH,
    health_document,
    node_health_of,
    note_problem,
)
from stepscope.core.hardware.health import HealthEvent, HealthReport

_MAX_BYTES = 16 << 10
_SCHEMA_OF_ERRORS = "stepscope.error/1"


class KnownHealth(Protocol):
    """Health of the machine, which operators may write to."""

    @property
    def is_kept(self) -> bool:
        """Whether it outlives the agent."""

    def report(self) -> HealthReport:
        """Health now."""

    def acknowledge(self, event_id: str, *, by: str, why: str) -> HealthEvent | None:
        """Note that somebody knows of an open event; None where there is no such event."""

    def set_healthy(self, target: str, *, by: str, why: str) -> list[HealthEvent] | None:
        """End all open events of a GPU or of the machine; None where there is no such GPU.

        Raises:
            StandingConditionError: a condition of it stands.
        """


class _RefusedError(Exception):
    def __init__(self, status: HTTPStatus, line: str) -> None:
        self.status = status
        super().__init__(line)


def health_routes(health: KnownHealth, *, host: str = "") -> tuple[Route, ...]:
    """HTTP routes of the health document, of acknowledging an event, and of setting a GPU or the machine healthy."""
    host = node_name(host)

    def document() -> Reply:
        known = node_health_of(health.report(), host=host, is_kept=health.is_kept)
        return json_reply(HTTPStatus.OK, health_document(known))

    def show(_: Request) -> Reply:
        return document()

    def acknowledge(request: Request) -> Reply:
        event_id, by, why = _note(request, "event")
        if health.acknowledge(event_id, by=by, why=why) is None:
            raise _RefusedError(HTTPStatus.NOT_FOUND, f"no open event here is called {event_id}")
        return document()

    def set_healthy(request: Request) -> Reply:
        target, by, why = _note(request, "target")
        try:
            ended = health.set_healthy(NODE if target == host else target, by=by, why=why)
        except StandingConditionError as error:
            event = error.event
            line = (
                f"GPU {target} cannot be set healthy while {event.code} stands: {event.message}; acknowledge {event.id}"
            )
            raise _RefusedError(HTTPStatus.CONFLICT, line) from None
        if ended is None:
            line = f"no GPU here is called {target}: give its index or UUID, or {NODE} for all of the machine"
            raise _RefusedError(HTTPStatus.NOT_FOUND, line)
        return document()

    return (
        Route("GET", HEALTH_PATH, show),
        Route("POST", ACKNOWLEDGE_PATH, _with_refusals(acknowledge), _MAX_BYTES, needs_token=True),
        Route("POST", SET_HEALTHY_PATH, _with_refusals(set_healthy), _MAX_BYTES, needs_token=True),
    )


def _with_refusals(answer: Callable[[Request], Reply]) -> Callable[[Request], Reply]:
    def call(request: Request) -> Reply:
        try:
            return answer(request)
        except _RefusedError as refused:
            return json_reply(refused.status, {"schema": _SCHEMA_OF_ERRORS, "error": str(refused)})

    return call


def _body(request: Request) -> Mapping[str, Any]:
    kind = str(request.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    if kind != "application/json":  # which no form of a foreign page can send
        raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "this needs Content-Type: application/json")
    try:
        document = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise _RefusedError(HTTPStatus.BAD_REQUEST, f"not JSON: {type(error).__name__}") from None
    if not isinstance(document, dict):
        raise _RefusedError(HTTPStatus.BAD_REQUEST, "must be an object")
    return document


def _note(request: Request, of: str) -> tuple[str, str, str]:
    """An operator's note: of which event or GPU, who, why."""
    body = _body(request)
    note = {name: body.get(name) for name in (of, "by", "why")}
    if problem := note_problem(note):
        raise _RefusedError(HTTPStatus.BAD_REQUEST, problem)
    subject, by, why = (str(value).strip() for value in note.values())
    return subject, by, why
