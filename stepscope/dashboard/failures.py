"""Log lines of unexpected errors, each under an id that the page or the API's answer names."""

from __future__ import annotations

import logging
import secrets

_LOG = logging.getLogger(__name__)


def log_failure(error: Exception, *, doing: str) -> str:
    """Log an unexpected error of the dashboard with its traceback; returns the id of the log line."""
    error_id = secrets.token_hex(4)
    _LOG.error("error %s while %s", error_id, doing, exc_info=error)
    return error_id
