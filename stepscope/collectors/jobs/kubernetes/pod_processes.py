"""In which pod is a process? By its cgroup, which has the pod's uid; the name belongs to the uid by the pods' logs."""

from __future__ import annotations

import re

from stepscope.collectors.host.files import Files, Unread
from stepscope.collectors.jobs.processes import Process

_UID = re.compile(r"kubepods.*?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})")
"""The second form is a static pod's."""
_LOGS = "var/log/pods"


def pod_uid_of(process: Process) -> str:
    """Uid of its pod; empty where it is in none. systemd's slices write it with underscores."""
    return next((match[1].replace("_", "-") for path in process.cgroups if (match := _UID.search(path))), "")


def pods_with_logs(files: Files) -> dict[str, tuple[str, str]]:
    """Namespace and name of the node's pods by uid: /var/log/pods/NAMESPACE_NAME_UID. Needs no API."""
    names = files.names(_LOGS)
    found: dict[str, tuple[str, str]] = {}
    for name in [] if isinstance(names, Unread) else names:
        parts = name.split("_")
        if len(parts) == 3:
            found[parts[2]] = parts[0], parts[1]
    return found
