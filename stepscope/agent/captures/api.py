"""What does the agent answer who wants training captured? POST, GET and DELETE below /api/v1/captures."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from http import HTTPStatus

from stepscope.agent.captures.choosing import RefusedError
from stepscope.agent.captures.desk import CaptureDesk
from stepscope.agent.web import Reply, Request, Route, json_reply
from stepscope.core.captures import CAPTURES_PATH, order_of, report_document
from stepscope.core.checked_fields import FieldError

_MOST_BYTES = 64 << 10
_SCHEMA_OF_ALL = "stepscope.node-captures/1"
_SCHEMA_OF_ERRORS = "stepscope.error/1"
_ASK_AGAIN_SECONDS = "60"


def capture_routes(desk: CaptureDesk) -> tuple[Route, ...]:
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
