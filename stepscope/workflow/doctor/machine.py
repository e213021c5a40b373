"""What is looked at: files, environment, this process's rights and limits. A test makes its own."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.collectors.host.files import Files, Unread

_ADMIN, _PERFMON = 21, 38
"""Capabilities by which the driver grants profiling counters (CAP_SYS_ADMIN, CAP_PERFMON)."""
_LIMITS = {"memlock": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE}

UNLIMITED = resource.RLIM_INFINITY


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine as a process on it sees it.

    Attributes:
        files: below "/".
        environment: of the process.
        limits: soft ones: "memlock" in bytes, "nofile".
        num_cpus: on which it may run.
        may_profile: whether it has the capabilities for profiling counters.
    """

    files: Files = field(default_factory=Files)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    limits: Mapping[str, int] = field(
        default_factory=lambda: {name: resource.getrlimit(number)[0] for name, number in _LIMITS.items()}
    )
    num_cpus: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    may_profile: bool = field(default_factory=lambda: _has_capability(Files(), _ADMIN, _PERFMON))

    def text(self, path: str) -> str | None:
        """The text of a file; None where it cannot be read."""
        text = self.files.read(path)
        return None if isinstance(text, Unread) else text

    def names(self, path: str) -> list[str]:
        """Names in a folder; none where there is none."""
        names = self.files.names(path)
        return [] if isinstance(names, Unread) else names

    def path(self, path: str) -> Path:
        """The file itself."""
        return self.files.root / path


def _has_capability(files: Files, *wanted: int) -> bool:
    status = files.read("proc/self/status")
    if isinstance(status, Unread):
        return False
    line = next((line for line in status.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    return any(int(line.split()[1], 16) >> number & 1 for number in wanted)
