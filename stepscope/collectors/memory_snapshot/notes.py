"""What did the training side write down beside a snapshot? memory/rank{r}-oom.json and memory/step{n}/rank{r}.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stepscope.core.memory_snapshot import OutOfMemoryNote

_LARGEST_BYTES = 1 << 26
_CATEGORIES = ("parameters", "gradients", "optimizer")


def read_note(snapshot: Path) -> OutOfMemoryNote | None:
    """The note of the same name as the snapshot; None without one, or where it cannot be read."""
    unpacked = snapshot.with_suffix("") if snapshot.suffix == ".gz" else snapshot
    path = unpacked.with_suffix(".json")
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_BYTES:
            return None
        told = json.loads(path.read_bytes())
        return OutOfMemoryNote(
            _number(told.get("device")),
            _number(told.get("requested_bytes")),
            _number(told.get("device_total_bytes")),
            _number(told.get("device_free_bytes")),
            told.get("training_phase"),
            {
                int(address): category
                for category in _CATEGORIES
                for address in ((told.get("categories") or {}).get(category) or {}).get("addresses") or ()
            },
        )
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _number(told: Any) -> int | None:
    return told if type(told) is int else None
