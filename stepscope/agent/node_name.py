"""Name of this machine: from the setting, else NODE_NAME, else the host name."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


def node_name(told: str = "", environment: Mapping[str, str] | None = None) -> str:
    """The name. In a pod the host name is the pod's, and NODE_NAME the machine's where the pod is given it.

    Args:
        told: by a setting.
        environment: the process's own unless given.
    """
    environment = os.environ if environment is None else environment
    return told or environment.get("NODE_NAME", "") or socket.gethostname()
