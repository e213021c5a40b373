"""Which code, which torch and which device make a run's result? A result of others is of another run."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import stepscope
from stepscope.reference_workloads.throughput.environment import cpu_name

_CODE = frozenset({".py", ".toml", ".so", ".json"})
_READ_RESULTS_ONLY = ("cli", "dashboard", "reference_workloads/suite/score.py", "reference_workloads/suite/report.py")
"""What can change without a run measuring or being called otherwise, so that old results can be scored anew."""


def provenance(device_type: str) -> str:
    """Of the code that trains and analyses, of torch, and of the device, "cpu" or "cuda", that it runs on here."""
    return f"{code_digest()} with torch {torch_version()} on {device_name(device_type)}"


def torch_version() -> str:
    """With what it was built for: "2.13.0+cu130"."""
    import torch

    return str(torch.__version__)


def device_name(device_type: str) -> str:
    """The GPU's model, or the processor's."""
    if device_type == "cpu":
        return cpu_name() or "cpu"
    import torch

    return torch.cuda.get_device_name()


@cache
def code_digest() -> str:
    """Of all files of the package that a run goes through, changed ones of a checkout too."""
    root = Path(stepscope.__file__).parent
    skipped = tuple(root / part for part in _READ_RESULTS_ONLY)
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix in _CODE and not any(path == part or part in path.parents for part in skipped):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
