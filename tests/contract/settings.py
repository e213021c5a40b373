"""Settings of the agent, and variables of the environment that stepscope reads or sets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import stepscope
from stepscope.agent.config.configuration import PREFIX
from stepscope.agent.config.settings import KEYS, Key

_VARIABLE = re.compile(r"\"(_?STEPSCOPE_[A-Z_]*[A-Z])\b")


def settings() -> dict[str, Any]:
    """Key of the agent's configuration -> type, default, limits and flag; and the variables."""
    files = Path(stepscope.__file__).parent.rglob("*.py")
    variables = {name for path in files for name in _VARIABLE.findall(path.read_text(encoding="utf-8"))}
    return {
        "agent": {path: _row(key) for path, key in KEYS.items()},
        "agent's variables": f"{PREFIX}SECTION__KEY",
        "variables": sorted(variables),
    }


def _row(key: Key) -> str:
    parts = [" | ".join(filter(None, key.choices)) or key.type.__name__, f"default {key.default!r}"]
    parts += [f"from {key.least:g}"] if key.least > float("-inf") else []
    parts += [f"to {key.most:g}"] if key.most < float("inf") else []
    parts += [f"flag {key.flag}"] if key.flag else []
    return ", ".join(parts)
