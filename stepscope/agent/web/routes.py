"""Routes: requests, replies, and the function that answers a path."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request to the agent with its body.

    Attributes:
        method: GET, POST or DELETE; HEAD comes as GET.
        headers: with case-insensitive lookup, as of an email.message.Message.
        body: empty unless the route takes one.
        parts: parts of the path by the {name} that the route has for them.
        client: address of the client, for the log.
    """

    method: str
    path: str
    headers: Mapping[str, str] | Any
    body: bytes = b""
    parts: Mapping[str, str] = field(default_factory=dict)
    client: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP reply: status, headers and body; the server adds Content-Length."""

    status: HTTPStatus
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": TEXT})


def text_reply(status: HTTPStatus, line: str, **headers: str) -> Reply:
    """An HTTP reply of one line of text; `headers` with _ for -."""
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, f"{line}\n".encode(errors="replace"), {"Content-Type": TEXT, **more})


def json_reply(status: HTTPStatus, document: Mapping[str, Any] | list[Any]) -> Reply:
    """An HTTP reply of one JSON document."""
    return Reply(status, json.dumps(document, separators=(",", ":")).encode() + b"\n", {"Content-Type": JSON})


@dataclass(frozen=True, slots=True)
class Route:
    """HTTP route: the handler of a method on a path.

    Attributes:
        path: a part of it may be {name}, which matches any one part.
        answer: called in the connection's own thread.
        max_body_bytes: 0 takes no body.
        needs_token: only for clients with the agent's token.
        is_open: for everybody, also where users need a password.
    """

    method: str
    path: str
    answer: Callable[[Request], Reply]
    max_body_bytes: int = 0
    needs_token: bool = False
    is_open: bool = False


class Routes:
    """HTTP routes by path and method."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = [(route, route.path.split("/")) for route in routes]

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | Reply:
        """The route and the path's parts by name; else the error reply."""
        parts, allowed = path.split("/"), []
        for route, pattern in self._routes:
            values = _matched(pattern, parts)
            if values is not None:
                if route.method == method:
                    return route, values
                allowed.append(route.method)
        if allowed:
            allow = ", ".join(allowed)
            return text_reply(HTTPStatus.METHOD_NOT_ALLOWED, f"only {allow} is allowed here", Allow=allow)
        return text_reply(HTTPStatus.NOT_FOUND, "there is nothing here; see /")


def _matched(pattern: list[str], parts: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(parts):
        return None
    values: dict[str, str] = {}
    for wanted, part in zip(pattern, parts, strict=True):
        if wanted.startswith("{") and part:
            values[wanted[1:-1]] = part
        elif wanted != part:
            return None
    return values
