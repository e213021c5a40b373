"""Words of comparisons of runs."""

from __future__ import annotations

_TITLES = {"run_delay": "waiting for a CPU", "rest": "all other time"}


def recorded_title(name: str) -> str:
    """A recorded part of a step as users read it: a phase by its own name."""
    return _TITLES.get(name, name.replace("_", " "))
