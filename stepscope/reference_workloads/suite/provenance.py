"""Provenance of a suite's results: the line by which it knows those of other code, another torch or another device."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import stepscope
from stepscope.reference_workloads.environment import device_name, torch_version

_CODE = frozenset({".py", ".toml", ".so", ".json"})
_READ_RESULTS_ONLY = ("cli", "dashboard", "reference_workloads/suite/score.py", "reference_workloads/suite/report.py")
"""What can change without a run measuring or being called otherwise, so that old results can be scored anew."""


def provenance(device_type: str) -> str:
    """Suite: one line by which it knows results of other code, another torch or another device."""
    return f"{code_digest()} with torch {torch_version()} on {device_name(device_type)}"


@cache
def code_digest() -> str:
    """Suite: digest of the package's files that its runs go through, with local changes."""
    root = Path(stepscope.__file__).parent
    skipped = tuple(root / part for part in _READ_RESULTS_ONLY)
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix in _CODE and not any(path == part or part in path.parents for part in skipped):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
