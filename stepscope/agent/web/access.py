"""Access control: the agent's token for what changes something, users and passwords for reading.

Basic and Bearer share one header: the right token may also read, without a password. bcrypt is slow on purpose: checks
never take more than a share of a core.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum
from http import HTTPStatus
from typing import Any

from stepscope.agent.token_bucket import TokenBucket
from stepscope.agent.web.config_reload import WebConfigReloader
from stepscope.agent.web.routes import Reply, Route, text_reply

_SCHEME = "bearer"


class Access:
    """Decides before a body is read.

    Args:
        token: None refuses all that needs one.
        guard: knows the users.
    """

    def __init__(self, token: str | None = None, guard: WebConfigReloader | None = None) -> None:
        self._token = None if token is None else token.encode()
        self._guard = guard or WebConfigReloader()
        self._passwords = Passwords()

    def refusal(self, route: Route | None, headers: Mapping[str, str] | Any, client: str = "") -> Reply | None:
        """The answer to who may not; None to who may.

        Args:
            route: None for a path that there is not.
            headers: of the request.
            client: address of who asks.
        """
        if route is not None and route.is_open:
            return None
        scheme, _, given = str(headers.get("Authorization") or "").partition(" ")
        if route is not None and route.needs_token:
            return self._without_token(scheme.lower(), given.strip())
        return self._without_password(scheme.lower(), given.strip(), client)

    def _without_token(self, scheme: str, given: str) -> Reply | None:
        if self._token is None:
            line = "this agent has no token, so that nobody may ask this; start it with --token-file"
            return text_reply(HTTPStatus.FORBIDDEN, line)
        if scheme != _SCHEME:
            line = "this needs the agent's token, as Authorization: Bearer TOKEN"
            return text_reply(HTTPStatus.UNAUTHORIZED, line, WWW_Authenticate='Bearer realm="stepscope agent"')
        if not self._is_token(given):
            return text_reply(HTTPStatus.FORBIDDEN, "the token is not this agent's")
        return None

    def _without_password(self, scheme: str, given: str, client: str) -> Reply | None:
        users = self._guard.config().users
        if not users or (scheme == _SCHEME and self._is_token(given)):
            return None
        pair = _user_and_password(given) if scheme == "basic" else None
        answer = Answer.WRONG if pair is None else self._passwords.check(users, *pair, client)
        if answer is Answer.RIGHT:
            return None
        if answer is Answer.BUSY:
            return text_reply(HTTPStatus.TOO_MANY_REQUESTS, "too many passwords to check", Retry_After="10")
        realm = 'Basic realm="stepscope agent", charset="UTF-8"'
        return text_reply(HTTPStatus.UNAUTHORIZED, "this needs a user and a password", WWW_Authenticate=realm)

    def _is_token(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(given.encode(errors="replace"), self._token)


def _user_and_password(given: str) -> tuple[str, bytes] | None:
    try:
        user, colon, password = base64.b64decode(given, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (user.decode(errors="surrogateescape"), password) if colon else None


_KEPT = 256
"""Right passwords, wrong ones and clients that are remembered, each."""
_WAIT_SECONDS = 2.0
_LONGEST_PASSWORD = 72
"""Bytes, bcrypt's own limit."""


class Answer(Enum):
    """What came of a check."""

    RIGHT = "right"
    WRONG = "wrong"
    BUSY = "busy"  # too many checks: ask again later


class Passwords:
    """Checks passwords; may be called by many threads.

    Args:
        clock: seconds, for the budgets.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._secret = os.urandom(32)
        self._clock = clock
        self._lock = threading.Lock()
        self._one_check = threading.Lock()
        self._known: dict[bool, OrderedDict[bytes, None]] = {True: OrderedDict(), False: OrderedDict()}
        self._all = TokenBucket(3.0, 0.1, clock)
        self._clients: OrderedDict[str, TokenBucket] = OrderedDict()

    def check(self, users: Mapping[str, bytes], user: str, password: bytes, client: str) -> Answer:
        """Whether the password is the user's.

        Args:
            users: bcrypt hashes by name; at least one.
            user, password: as given.
            client: who asks; each has a budget of its own, too.
        """
        hashed = users.get(user)
        is_user = hashed is not None
        if hashed is None:
            hashed = next(iter(users.values()))
        if len(password) > _LONGEST_PASSWORD or b"\0" in password:
            return Answer.WRONG
        digest = self._digest(user, hashed, password)
        known = self._remembered(digest)
        if known is not None:
            return known
        if not self._one_check.acquire(timeout=_WAIT_SECONDS):
            return Answer.BUSY
        try:
            known = self._remembered(digest)  # by another thread, while this one waited
            if known is not None:
                return known
            budgets = self._all, self._budget_of(client)
            if not all(budget.has_any() for budget in budgets):
                return Answer.BUSY
            begin = self._clock()
            is_right = _matches(password, hashed) and is_user
            for budget in budgets:
                budget.spend(self._clock() - begin)
        finally:
            self._one_check.release()
        self._remember(digest, is_right)
        return Answer.RIGHT if is_right else Answer.WRONG

    def _digest(self, user: str, hashed: bytes, password: bytes) -> bytes:
        digest = hashlib.blake2b(key=self._secret)
        for part in (user.encode(errors="surrogateescape"), hashed, password):
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()

    def _remembered(self, digest: bytes) -> Answer | None:
        with self._lock:
            for is_right, known in self._known.items():
                if digest in known:
                    known.move_to_end(digest)
                    return Answer.RIGHT if is_right else Answer.WRONG
        return None

    def _remember(self, digest: bytes, is_right: bool) -> None:
        with self._lock:
            known = self._known[is_right]  # apart: wrong ones never push right ones out
            known[digest] = None
            if len(known) > _KEPT:
                known.popitem(last=False)

    def _budget_of(self, client: str) -> TokenBucket:
        budget = self._clients.setdefault(client, TokenBucket(1.0, 0.02, self._clock))
        self._clients.move_to_end(client)
        if len(self._clients) > _KEPT:
            self._clients.popitem(last=False)
        return budget


def _matches(password: bytes, hashed: bytes) -> bool:
    import bcrypt

    try:
        return bcrypt.checkpw(password, hashed)
    except ValueError:
        return False
