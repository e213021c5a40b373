"""Capture service: the coordinator, the token that allows to ask it, and the HTTP routes below /api/v1/captures."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from stepscope.agent.captures.backend import CaptureBackend
from stepscope.agent.captures.capture import CaptureLimits, RefusedError
from stepscope.agent.captures.coordinator import CaptureCoordinator, audit
from stepscope.agent.state_directory import TOKEN_FILE, read_token
from stepscope.agent.web.routes import Reply, Request, Route, json_reply
from stepscope.core.errors import UsageError
from stepscope.core.protocol.captures import CAPTURES_PATH, order_of, report_document
from stepscope.core.protocol.fields import FieldError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CapturePlaces:
    """Where it keeps what.

    Attributes:
        state: directory for captures, and the token where no file is named; `StateLock` makes it.
        token_file: named by a setting; then it must be there or be made.
    """

    state: Path
    token_file: Path | None = None


class CaptureService:
    """Open while the agent runs; a context manager.

    Attributes:
        desk: takes orders.
        routes: of the HTTP API.
        token: of who may ask; None until it is open, and where none can be had: then nobody may.
    """

    def __init__(
        self,
        backends: Sequence[CaptureBackend],
        places: CapturePlaces,
        *,
        limits: CaptureLimits | None = None,
        pids_of_job: Callable[[str], Collection[int]] = lambda _: (),
        host: str = "",
    ) -> None:
        self._places = places
        self.token: str | None = None
        self.desk = CaptureCoordinator(
            backends, limits=limits, pids_of_job=pids_of_job, directory=places.state, host=host
        )
        self.routes: tuple[Route, ...] = capture_routes(self.desk)
        self._open = ExitStack()

    def __enter__(self) -> CaptureService:
        """
        Raises:
            UsageError: the token file that a setting names cannot be used.
        """
        audit.setLevel(logging.INFO)
        with ExitStack() as opening:
            self.token = self._token()
            opening.enter_context(self.desk)
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _token(self) -> str | None:
        named = self._places.token_file
        try:
            return read_token(named or self._places.state / TOKEN_FILE, create=True)
        except UsageError as error:
            if named is not None:
                raise
            _log.warning("nobody can ask for captures: %s", error)
        return None


_MOST_BYTES = 64 << 10
_SCHEMA_OF_ALL = "stepscope.node-captures/1"
_SCHEMA_OF_ERRORS = "stepscope.error/1"
_ASK_AGAIN_SECONDS = "60"


def capture_routes(desk: CaptureCoordinator) -> tuple[Route, ...]:
    """The routes; all need the agent's token."""

    def create(request: Request) -> Reply:
        kind = str(request.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":  # which no form of a foreign page can send
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "an order is sent as Content-Type: application/json")
        try:
            document = json.loads(request.body)
            if isinstance(document, dict):
                document.setdefault("id", f"c-{secrets.token_hex(6)}")
            order = order_of(document)
        except FieldError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, str(error)) from None
        except (ValueError, RecursionError) as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"this is no JSON: {type(error).__name__}") from None
        return json_reply(HTTPStatus.ACCEPTED, report_document(desk.order(order, by=request.client)))

    def show_all(_: Request) -> Reply:
        documents = [report_document(report) for report in desk.reports()]
        return json_reply(HTTPStatus.OK, {"schema": _SCHEMA_OF_ALL, "captures": documents})

    def show(request: Request) -> Reply:
        return json_reply(HTTPStatus.OK, report_document(desk.report(request.parts["id"])))

    def cancel(request: Request) -> Reply:
        report = desk.cancel(request.parts["id"], by=request.client)
        return json_reply(HTTPStatus.ACCEPTED, report_document(report))

    one = f"{CAPTURES_PATH}/{{id}}"
    return (
        Route("POST", CAPTURES_PATH, _answered(create), _MOST_BYTES, needs_token=True),
        Route("GET", CAPTURES_PATH, _answered(show_all), needs_token=True),
        Route("GET", one, _answered(show), needs_token=True),
        Route("DELETE", one, _answered(cancel), needs_token=True),
    )


def _answered(answer: Callable[[Request], Reply]) -> Callable[[Request], Reply]:
    def call(request: Request) -> Reply:
        try:
            return answer(request)
        except RefusedError as refused:
            document = {"schema": _SCHEMA_OF_ERRORS, "error": str(refused)}
            reply = json_reply(refused.status, document)
            if refused.status not in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
                return reply
            return Reply(reply.status, reply.body, {**reply.headers, "Retry-After": _ASK_AGAIN_SECONDS})

    return call
