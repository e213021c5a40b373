"""Name of this machine: from the setting, else NODE_NAME, else the host name."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


def node_name(setting: str = "", environment: Mapping[str, str] | None = None) -> str:
    """Name of this machine. In a pod the host name is the pod's; NODE_NAME is the machine's if the pod sets it.

    Args:
        setting: the name in the configuration.
        environment: the process's own by default.
    """
    environment = os.environ if environment is None else environment
    return setting or environment.get("NODE_NAME", "") or socket.gethostname()
