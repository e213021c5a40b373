"""Who may ask what? Whoever knows the agent's token may have it do something; to look needs none."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from stepscope.agent.web.routes import Reply, Route, text_reply

_SCHEME = "bearer"


class Access:
    """Decides before a body is read.

    Args:
        token: None refuses all that needs one.
    """

    def __init__(self, token: str | None = None) -> None:
        self._token = None if token is None else token.encode()

    def refusal(self, route: Route, headers: Mapping[str, str] | Any) -> Reply | None:
        """The answer to who may not; None to who may."""
        if not route.needs_token:
            return None
        if self._token is None:
            line = "this agent has no token, so that nobody may ask this; start it with --token-file"
            return text_reply(HTTPStatus.FORBIDDEN, line)
        scheme, _, given = str(headers.get("Authorization") or "").partition(" ")
        if scheme.lower() != _SCHEME:
            line = "this needs the agent's token, as Authorization: Bearer TOKEN"
            return text_reply(HTTPStatus.UNAUTHORIZED, line, WWW_Authenticate='Bearer realm="stepscope agent"')
        if not hmac.compare_digest(given.strip().encode(errors="replace"), self._token):
            return text_reply(HTTPStatus.FORBIDDEN, "the token is not this agent's")
        return None
