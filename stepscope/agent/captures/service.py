"""What does it take to have training captured through this agent? A desk, and a token for who may ask it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from stepscope.agent.captures.api import capture_routes
from stepscope.agent.captures.backend import CaptureBackend
from stepscope.agent.captures.choosing import CaptureLimits
from stepscope.agent.captures.desk import CaptureDesk, audit
from stepscope.agent.state_directory import TOKEN_FILE
from stepscope.agent.token_file import token_in
from stepscope.agent.web import Route
from stepscope.core.errors import UsageError

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
        self.desk = CaptureDesk(backends, limits=limits, pids_of_job=pids_of_job, directory=places.state, host=host)
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
            return token_in(named or self._places.state / TOKEN_FILE, is_made=True)
        except UsageError as error:
            if named is not None:
                raise
            _log.warning("nobody can ask for captures: %s", error)
        return None
