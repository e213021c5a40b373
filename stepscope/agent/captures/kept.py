"""How does an agent that starts know of the captures of the one before? They are kept in its state directory."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from stepscope.core.captures import CaptureReport, report_document, report_of
from stepscope.core.checked_fields import FieldError

_log = logging.getLogger(__name__)

_FILE = "captures.json"
_MOST_BYTES = 16 << 20


class KeptCaptures:
    """The file; whole or not at all.

    Args:
        directory: None keeps nothing.
    """

    def __init__(self, directory: Path | None) -> None:
        self._file = None if directory is None else directory / _FILE
        self._has_warned = False

    def read(self) -> list[CaptureReport]:
        """What was kept; nothing where there is nothing that can be used, which is logged."""
        if self._file is None:
            return []
        try:
            if self._file.stat().st_size > _MOST_BYTES:
                raise FieldError("it is too large")
            return [report_of(one) for one in json.loads(self._file.read_bytes())]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, RecursionError) as error:
            _log.warning("captures of before are forgotten: %s: %s", self._file, error)
            return []

    def write(self, reports: Sequence[CaptureReport]) -> None:
        """Keep these alone."""
        if self._file is None:
            return
        beside = self._file.with_suffix(".new")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w") as file:
                json.dump([report_document(one) for one in reports], file, separators=(",", ":"))
            os.replace(beside, self._file)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("captures would be forgotten by a restart: %s: %s", self._file, error)
