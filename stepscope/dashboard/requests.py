"""How is a request answered that no route takes as it is? HEAD as GET without a body, the rest in the API's words."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepscope.core.errors import UsageError
from stepscope.dashboard.api import refusal


class HeadMiddleware:
    """Answers HEAD with the head of GET's answer: FastAPI's routes take GET alone, load balancers ask with HEAD."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, send_without_body)


def refuse_in_one_shape(server: FastAPI) -> None:
    """Let the framework's own refusals (wrong query, wrong method) read as the API's do."""
    server.add_exception_handler(RequestValidationError, _wrong_question)
    server.add_exception_handler(HTTPException, _wrong_method)


def _wrong_question(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [f"{entry['loc'][-1]}: {entry['msg'].lower()}" for entry in error.errors()]
    return refusal(422, UsageError("; ".join(problems), where=request.url.path, what_next="see /api/v1/openapi.json"))


def _wrong_method(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what_next = "see /api/v1/openapi.json"
    answer = refusal(error.status_code, UsageError(str(error.detail), where=request.url.path, what_next=what_next))
    answer.headers.update(error.headers or {})
    return answer
