"""Snapshots of what users may rely on: written from the code, committed, and compared with the code by tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[3] / "tests" / "contract"


def snapshot(name: str) -> dict[str, Any]:
    """Content of one snapshot."""
    content: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content
