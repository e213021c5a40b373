"""Routes of the HTTP server: requests, replies, the function that answers a path, and who may ask it.

The agent's token is for requests that change something, users and passwords for reading. Basic and Bearer share one
header: the right token may also read, without a password. bcrypt is slow on purpose, so checks get only a share of one
core.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import Any

from stepscope.agent.web.web_config import WebConfigReloader

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request to the agent with its body.

    Attributes:
        method: GET, POST or DELETE; HEAD comes as GET.
        headers: with case-insensitive lookup.
        body: empty unless the route takes one.
        parts: parts of the path by the {name} that the route has for them.
        client: address of the client, for the log.
        query: what follows the question mark of the request's address.
    """

    method: str
    path: str
    headers: Mapping[str, str] | Any
    body: bytes = b""
    parts: Mapping[str, str] = field(default_factory=dict)
    client: str = ""
    query: str = ""


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


_SCHEME = "bearer"


class Access:
    """Access to the agent's HTTP server: decides before the body is read whether a request is allowed.

    Args:
        token: None refuses all requests that need one.
    """

    def __init__(self, token: str | None = None, reloader: WebConfigReloader | None = None) -> None:
        self._token = None if token is None else token.encode()
        self._reloader = reloader or WebConfigReloader()
        self._passwords = Passwords()

    def refusal(self, route: Route | None, headers: Mapping[str, str] | Any, client: str = "") -> Reply | None:
        """The reply that refuses a request, whose route is None for an unknown path; None where it is allowed."""
        if route is not None and route.is_open:
            return None
        scheme, _, credentials = str(headers.get("Authorization") or "").partition(" ")
        if route is not None and route.needs_token:
            return self._token_refusal(scheme.lower(), credentials.strip())
        return self._password_refusal(scheme.lower(), credentials.strip(), client)

    def _token_refusal(self, scheme: str, token: str) -> Reply | None:
        if self._token is None:
            line = "this agent has no token, so nobody may do this; start it with --token-file"
            return text_reply(HTTPStatus.FORBIDDEN, line)
        if scheme != _SCHEME:
            line = "this needs the agent's token, as Authorization: Bearer TOKEN"
            return text_reply(HTTPStatus.UNAUTHORIZED, line, WWW_Authenticate='Bearer realm="stepscope agent"')
        if not self._is_token(token):
            return text_reply(HTTPStatus.FORBIDDEN, "this is not the agent's token")
        return None

    def _password_refusal(self, scheme: str, credentials: str, client: str) -> Reply | None:
        users = self._reloader.config().users
        if not users or (scheme == _SCHEME and self._is_token(credentials)):
            return None
        pair = _user_and_password(credentials) if scheme == "basic" else None
        result = PasswordCheck.WRONG if pair is None else self._passwords.check(users, *pair, client)
        if result is PasswordCheck.RIGHT:
            return None
        if result is PasswordCheck.BUSY:
            return text_reply(HTTPStatus.TOO_MANY_REQUESTS, "too many password checks", Retry_After="10")
        realm = 'Basic realm="stepscope agent", charset="UTF-8"'
        return text_reply(HTTPStatus.UNAUTHORIZED, "this needs a user and a password", WWW_Authenticate=realm)

    def _is_token(self, token: str) -> bool:
        import hmac  # it loads OpenSSL, 4 MB that an agent whom nobody gives orders does without

        return self._token is not None and hmac.compare_digest(token.encode(errors="replace"), self._token)


def _user_and_password(credentials: str) -> tuple[str, bytes] | None:
    try:
        user, colon, password = base64.b64decode(credentials, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (user.decode(errors="surrogateescape"), password) if colon else None


class TokenBucket:
    """Rate limit of the HTTP server: a budget that refills with time; thread-safe.

    Args:
        burst: largest amount that can be spent at once.
        refill_per_second: amount that comes back each second.
    """

    def __init__(self, burst: float, refill_per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._refill_per_second, self._clock = burst, refill_per_second, clock
        self._lock = threading.Lock()
        self._left, self._at = burst, clock()

    def has_any(self) -> bool:
        """Whether anything is left; more may then be spent, which leaves a debt."""
        with self._lock:
            self._refill()
            return self._left > 0

    def spend(self, amount: float) -> None:
        """Subtract an amount that was used, also when less is left."""
        with self._lock:
            self._left -= amount

    def take(self, amount: float) -> bool:
        """Subtract an amount if so much is left; whether it was."""
        with self._lock:
            self._refill()
            if self._left < amount:
                return False
            self._left -= amount
            return True

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._refill_per_second)
        self._at = now


_MAX_REMEMBERED = 256
"""Right passwords, wrong passwords and clients, each."""
_WAIT_SECONDS = 2.0
_MAX_PASSWORD_BYTES = 72
"""bcrypt's own limit."""


class PasswordCheck(Enum):
    """Result of a password check of the HTTP server."""

    RIGHT = "right"
    WRONG = "wrong"
    BUSY = "busy"  # too many checks: try again later


class Passwords:
    """Checks users' passwords within a budget of CPU seconds; thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._secret = os.urandom(32)
        self._clock = clock
        self._lock = threading.Lock()
        self._one_check = threading.Lock()
        self._known: dict[bool, OrderedDict[bytes, None]] = {True: OrderedDict(), False: OrderedDict()}
        self._all = TokenBucket(3.0, 0.1, clock)
        self._clients: OrderedDict[str, TokenBucket] = OrderedDict()

    def check(self, users: Mapping[str, bytes], user: str, password: bytes, client: str) -> PasswordCheck:
        """Whether the password is the user's, by bcrypt hashes of at least one user; each client has a budget, too."""
        hashed = users.get(user)
        is_user = hashed is not None
        if hashed is None:
            hashed = next(iter(users.values()))
        if len(password) > _MAX_PASSWORD_BYTES or b"\0" in password:
            return PasswordCheck.WRONG
        digest = self._digest(user, hashed, password)
        known = self._remembered(digest)
        if known is not None:
            return known
        if not self._one_check.acquire(timeout=_WAIT_SECONDS):
            return PasswordCheck.BUSY
        try:
            known = self._remembered(digest)  # by another thread, while this one waited
            if known is not None:
                return known
            budgets = self._all, self._budget_of(client)
            if not all(budget.has_any() for budget in budgets):
                return PasswordCheck.BUSY
            begin = self._clock()
            is_right = _matches(password, hashed) and is_user
            for budget in budgets:
                budget.spend(self._clock() - begin)
        finally:
            self._one_check.release()
        self._remember(digest, is_right)
        return PasswordCheck.RIGHT if is_right else PasswordCheck.WRONG

    def _digest(self, user: str, hashed: bytes, password: bytes) -> bytes:
        import hashlib

        digest = hashlib.blake2b(key=self._secret)
        for part in (user.encode(errors="surrogateescape"), hashed, password):
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()

    def _remembered(self, digest: bytes) -> PasswordCheck | None:
        with self._lock:
            for is_right, known in self._known.items():
                if digest in known:
                    known.move_to_end(digest)
                    return PasswordCheck.RIGHT if is_right else PasswordCheck.WRONG
        return None

    def _remember(self, digest: bytes, is_right: bool) -> None:
        with self._lock:
            known = self._known[is_right]  # separate: wrong passwords never evict right ones
            known[digest] = None
            if len(known) > _MAX_REMEMBERED:
                known.popitem(last=False)

    def _budget_of(self, client: str) -> TokenBucket:
        budget = self._clients.setdefault(client, TokenBucket(1.0, 0.02, self._clock))
        self._clients.move_to_end(client)
        if len(self._clients) > _MAX_REMEMBERED:
            self._clients.popitem(last=False)
        return budget


def _matches(password: bytes, hashed: bytes) -> bool:
    import bcrypt

    try:
        return bcrypt.checkpw(password, hashed)
    except ValueError:
        return False
