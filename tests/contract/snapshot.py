"""Snapshots of the public contract, one JSON file each: names may be added, but never changed.

`python -m tests.contract.snapshot` rewrites all files, `python -m tests.contract.snapshot metrics` that one. Do so only
when a name was added, or changed on purpose together with its schema; commit the difference with that change.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from difflib import unified_diff
from importlib import import_module
from pathlib import Path
from typing import Any

SNAPSHOTS = (
    "commands",
    "documents",
    "exit_codes",
    "http_paths",
    "metrics",
    "run_files",
    "settings",
    "training_documents",
    "vocabulary",
)
"""Module of the name in this folder, with a function of the name that tells the content."""

NEED_TORCH = ("training_documents",)
"""They are compared apart, as torch takes seconds to load."""


def path_of(name: str) -> Path:
    """The file that is committed."""
    return Path(__file__).parent / f"{name}.json"


def content_of(name: str) -> str:
    """What the file holds where the code is as it was."""
    make: Callable[[], Any] = getattr(import_module(f"tests.contract.{name}"), name)
    return json.dumps(make(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def changes_of(name: str) -> str:
    """What is not as it is committed, and what to do where that is meant; empty without."""
    before, now = path_of(name).read_text(encoding="utf-8").splitlines(), content_of(name).splitlines()
    lines = list(unified_diff(before, now, "committed", "now", n=1, lineterm=""))
    return "\n".join([f"if that is meant: python -m tests.contract.snapshot {name}", *lines]) if lines else ""


def main(names: list[str]) -> None:
    """Write the files of these snapshots; of all where none is named."""
    logging.disable()
    unknown = sorted(set(names) - set(SNAPSHOTS))
    if unknown:
        sys.exit(f"there is no snapshot {unknown[0]!r}; choose from {', '.join(SNAPSHOTS)}")
    for name in names or SNAPSHOTS:
        path_of(name).write_text(content_of(name), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
