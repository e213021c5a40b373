"""Who may ask what? Whoever knows the agent's token may have it do something; to look needs a password where users are.

Basic and Bearer share one header: a token that is right also looks, without a password.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from stepscope.agent.web.guard import Guard
from stepscope.agent.web.passwords import Answer, Passwords
from stepscope.agent.web.routes import Reply, Route, text_reply

_SCHEME = "bearer"


class Access:
    """Decides before a body is read.

    Args:
        token: None refuses all that needs one.
        guard: knows the users.
    """

    def __init__(self, token: str | None = None, guard: Guard | None = None) -> None:
        self._token = None if token is None else token.encode()
        self._guard = guard or Guard()
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
