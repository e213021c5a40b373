"""HTTP routes of captures, below /api/v1/captures."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from http import HTTPStatus

from stepscope.agent.captures.capture import RefusedError
from stepscope.agent.captures.coordinator import CaptureCoordinator
from stepscope.agent.web.routes import Reply, Request, Route, json_reply
from stepscope.core.protocol.captures import CAPTURES_PATH, read_order, report_document
from stepscope.core.protocol.fields import FieldError

_MAX_BYTES = 64 << 10
_SCHEMA_OF_ALL = "stepscope.node-captures/1"
_SCHEMA_OF_ERRORS = "stepscope.error/1"
_ASK_AGAIN_SECONDS = "60"


def capture_routes(coordinator: CaptureCoordinator) -> tuple[Route, ...]:
    """The routes to list, start, show and cancel captures; all need the agent's token."""

    def create(request: Request) -> Reply:
        kind = str(request.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":  # which no form of a foreign page can send
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "an order needs Content-Type: application/json")
        try:
            document = json.loads(request.body)
            if isinstance(document, dict):
                document.setdefault("id", f"c-{secrets.token_hex(6)}")
            order = read_order(document)
        except FieldError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, str(error)) from None
        except (ValueError, RecursionError) as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"not JSON: {type(error).__name__}") from None
        report = coordinator.request(order, client=request.client)
        return json_reply(HTTPStatus.ACCEPTED, report_document(report))

    def show_all(_: Request) -> Reply:
        documents = [report_document(report) for report in coordinator.reports()]
        return json_reply(HTTPStatus.OK, {"schema": _SCHEMA_OF_ALL, "captures": documents})

    def show(request: Request) -> Reply:
        return json_reply(HTTPStatus.OK, report_document(coordinator.report(request.parts["id"])))

    def cancel(request: Request) -> Reply:
        report = coordinator.cancel(request.parts["id"], client=request.client)
        return json_reply(HTTPStatus.ACCEPTED, report_document(report))

    one = f"{CAPTURES_PATH}/{{id}}"
    return (
        Route("POST", CAPTURES_PATH, _with_refusals(create), _MAX_BYTES, needs_token=True),
        Route("GET", CAPTURES_PATH, _with_refusals(show_all), needs_token=True),
        Route("GET", one, _with_refusals(show), needs_token=True),
        Route("DELETE", one, _with_refusals(cancel), needs_token=True),
    )


def _with_refusals(answer: Callable[[Request], Reply]) -> Callable[[Request], Reply]:
    """The same, with a refused request as a reply."""

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
