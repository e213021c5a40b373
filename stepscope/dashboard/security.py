"""Security headers of pages, and the check of host names in requests."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def content_security_policy(script_hashes: Sequence[str]) -> str:
    """The dashboard's Content-Security-Policy: own files, inline scripts of these hashes, inline styles."""
    return "; ".join(
        [
            "default-src 'self'",
            " ".join(["script-src 'self'", *script_hashes]),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self'",
            "worker-src 'self' blob:",
            "connect-src 'self'",
            "object-src 'none'",
            "base-uri 'self'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        ]
    )


class SecurityMiddleware:
    """Adds security headers to the dashboard's responses and refuses requests under foreign host names.

    Args:
        allowed_hosts: accepted names in a request's Host header; None for all. Else a foreign page that resolves its
            own name to 127.0.0.1 could read the runs (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, *, policy: str, allowed_hosts: Sequence[str] | None) -> None:
        self._app = app
        self._headers = {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        self._allowed_hosts = None if allowed_hosts is None else frozenset(allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers[name] = value
            await send(message)

        host = _host_name(Headers(scope=scope).get("host", ""))
        if self._allowed_hosts is None or host in self._allowed_hosts:
            await self._app(scope, receive, send_with_headers)
            return
        refusal = PlainTextResponse(
            f"host name {host!r} is not allowed; start with --allow-host {host}\n"
            if host.isprintable()
            else "bad host\n",
            status_code=421,
        )
        await refusal(scope, receive, send_with_headers)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a dashboard bound to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name: it may resolve to anything, but for this one
        return host.lower() == "localhost"


def _host_name(host: str) -> str:
    """'localhost:8050' -> 'localhost', '[::1]:8050' -> '::1'."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
