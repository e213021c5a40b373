"""Where does the agent keep what outlives it, and its token? A directory of its own user's alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

TOKEN_FILE = "token"
_OF_ROOT = "/var/lib/stepscope"


def state_directory(told: str = "", environment: Mapping[str, str] | None = None) -> Path:
    """The directory; nothing is made.

    Args:
        told: by a setting; empty: what systemd gives the service, else /var/lib/stepscope for root, else the user's.
        environment: the process's own unless given.
    """
    environment = os.environ if environment is None else environment
    if told:
        return Path(told)
    if environment.get("STATE_DIRECTORY"):
        return Path(environment["STATE_DIRECTORY"].partition(":")[0])
    if os.geteuid() == 0:
        return Path(_OF_ROOT)
    home = environment.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(home, "stepscope")
