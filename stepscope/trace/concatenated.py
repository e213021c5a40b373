"""Where does the next trace begin in a file that holds several, one after another (`cat rank*.json > all.json`)?"""

from __future__ import annotations

import json
import re
from itertools import islice

EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN_DOCUMENTS = re.compile(rb"\}[\s\x00]*\{")
_MOST_KEYS_TRIED = 4
_MOST_STARTS_TRIED = 32
"""More places where a document could begin are strings that look like it."""
LONGEST_KEY_BYTES = 4096
"""The key, its colon and its bracket, with blanks between."""


def is_top_level(before: bytes) -> bool:
    """Whether a key that follows this text is one of the document's own: the text closes to an object."""
    try:
        return isinstance(json.loads(before.rstrip().rstrip(b",") + b"}", strict=False), dict)
    except (ValueError, RecursionError):
        return False


def next_document(tail: bytes, searched: int = 0) -> int | None:
    """Where in the text behind an event array another trace's document begins; None when none does.

    Args:
        tail: from behind the array's bracket.
        searched: so much of it is known to hold no key traceEvents.
    """
    for key in islice(EVENTS_KEY.finditer(tail, searched), _MOST_KEYS_TRIED):
        for between in islice(_BETWEEN_DOCUMENTS.finditer(tail, 0, key.start()), _MOST_STARTS_TRIED):
            start = between.end() - 1
            if is_top_level(tail[start : key.start()]):
                return start
    return None
