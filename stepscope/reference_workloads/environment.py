"""Environment of a measurement: GPUs, CPU, versions and code. Nothing in it could hold a secret."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any

import stepscope
from stepscope.training.run.identity import num_usable_cpus, software_versions
from stepscope.training.settings.environment import relevant_environment

_GPU_QUERY = ("driver_version", "clocks.max.sm", "clocks.max.memory", "power.limit", "power.max_limit")
_TIMEOUT_SECONDS = 20


def describe_environment(device_type: str) -> dict[str, Any]:
    """Reference workload: GPUs, CPU, versions and commit under which it is benchmarked; None for what is unknown."""
    return {
        "host": socket.gethostname(),
        "cpu": _cpu_name(),
        "num_usable_cpus": num_usable_cpus(),
        "gpus": _gpus() if device_type == "cuda" else [],
        "versions": software_versions(),
        "commit": _commit(),
        "variables": relevant_environment(),
    }


def _gpus() -> list[dict[str, Any]]:
    import torch

    # Driver and limits by UUID, as nvidia-smi tells them; nothing where it is missing.
    table = _output("nvidia-smi", f"--query-gpu=uuid,{','.join(_GPU_QUERY)}", "--format=csv,noheader,nounits")
    found = {}
    for line in (table or "").splitlines():
        uuid, *values = (value.strip() for value in line.split(","))
        if len(values) == len(_GPU_QUERY):
            named = zip(_GPU_QUERY, values, strict=True)
            found[uuid] = {name.replace(".", "_"): value if value[:1] != "[" else None for name, value in named}
    return [
        {"name": torch.cuda.get_device_name(index)}
        | found.get(f"GPU-{getattr(torch.cuda.get_device_properties(index), 'uuid', index)}", {})
        for index in range(torch.cuda.device_count())
    ]


def _cpu_name() -> str | None:
    """The processor's model; None where the system does not tell it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    names = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(names, None)


def _commit() -> str | None:
    """Commit of the checkout that this package runs from, with "+" where files differ from it; None if installed."""
    root = Path(stepscope.__file__).parents[1]
    if not (root / ".git").exists():
        return None
    commit = _output("git", "-C", str(root), "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _output("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    return commit.strip() + ("+" if changes else "")


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def torch_version() -> str:
    """Version of torch under which a workload ran, with its build: "2.13.0+cu130"."""
    import torch

    return str(torch.__version__)


def device_name(device_type: str) -> str:
    """Name of the GPU or CPU that a workload runs on here."""
    if device_type == "cpu":
        return _cpu_name() or "cpu"
    import torch

    return torch.cuda.get_device_name()
