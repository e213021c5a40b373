"""What becomes of an error nobody expected? It goes into the log under an id that the reader of the page is told."""

from __future__ import annotations

import logging
import secrets

_LOG = logging.getLogger(__name__)


def report(error: Exception, *, doing: str) -> str:
    """Log `error` with its traceback; the id it stands under."""
    error_id = secrets.token_hex(4)
    _LOG.error("error %s while %s", error_id, doing, exc_info=error)
    return error_id
