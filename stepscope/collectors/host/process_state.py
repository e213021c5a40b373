"""In which state is a process, by the kernel?"""

from __future__ import annotations

from pathlib import Path


def state_of_process(pid: int, *, proc: Path = Path("/proc")) -> str:
    """Its letter as ps shows it: R, S, D, T, ...; empty when it has ended or is a zombie."""
    try:
        letter = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    return "" if letter in "ZX" else letter
