"""Where are the files of a process's cgroup? Of both versions, in containers too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.collectors.host.files import Files, Unread
from stepscope.core.readings import MissingReason

_OCTAL = re.compile(r"\\([0-7]{3})")
_USUAL = (
    ("sys/fs/cgroup/cgroup.controllers", frozenset[str](), "/sys/fs/cgroup"),
    *((f"sys/fs/cgroup/{name}", frozenset({name}), f"/sys/fs/cgroup/{name}") for name in ("cpu", "cpuacct", "memory")),
)
"""A file that is there, the controllers, the mount point."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted hierarchy.

    Attributes:
        controllers: of version 1; empty of version 2.
        root: the cgroup that the mount point shows.
        point: where it is mounted, from the root of the files.
    """

    controllers: frozenset[str]
    root: str
    point: str

    @property
    def is_unified(self) -> bool:
        """Whether it is version 2."""
        return not self.controllers


def parse_mounts(text: str) -> list[Mount]:
    """The cgroup hierarchies of /proc/<pid>/mountinfo."""
    mounts = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if not dash or len(left) < 6 or len(right) < 3 or right[0] not in ("cgroup", "cgroup2"):
            continue
        is_named = any(option.startswith("name=") for option in right[2].split(","))  # systemd's own: no controller
        controllers = frozenset() if right[0] == "cgroup2" else frozenset(right[2].split(",")) - {"rw", "ro", "xattr"}
        if right[0] == "cgroup" and (is_named or not controllers):
            continue
        mounts.append(Mount(controllers, _unescaped(left[3]), _unescaped(left[4])))
    return mounts


def parse_membership(text: str) -> dict[frozenset[str], str]:
    """The cgroup of a process in each hierarchy, by its controllers (none: version 2), of /proc/<pid>/cgroup."""
    paths = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/"):
            controllers = frozenset(parts[1].split(",")) if parts[1] else frozenset[str]()
            paths[controllers] = parts[2].removesuffix(" (deleted)")
    return paths


def folder_of(mount: Mount, path: str) -> str | Unread:
    """The folder of a cgroup, from the root of the files.

    Args:
        mount: of its hierarchy.
        path: of the cgroup in it.
    """
    root = mount.root.rstrip("/")
    if "/../" in f"{path}/" or not f"{path}/".startswith(f"{root}/"):
        detail = f"cgroup {path} lies outside of what is mounted at {mount.point}"
        return Unread(MissingReason.NOT_SUPPORTED, detail)
    return (mount.point + path[len(root) :]).strip("/")


def mounts_of(files: Files) -> list[Mount]:
    """The hierarchies of the machine; the usual places where it does not tell."""
    for process in ("1", "self") if files.is_mounted else ("self", "1"):
        text = files.read(f"proc/{process}/mountinfo")
        mounts = [] if isinstance(text, Unread) else parse_mounts(text)
        if mounts:
            return mounts
    return [Mount(controllers, "/", point) for file, controllers, point in _USUAL if files.exists(file)]


def place_of(
    mounts: Sequence[Mount], membership: dict[frozenset[str], str], controller: str
) -> tuple[Mount, str] | None:
    """The hierarchy that has this controller and a process's cgroup in it; None where there is none.

    Version 1 comes first: on machines with both, its controllers are where work is limited.
    """
    for controllers, path in membership.items():
        if controller in controllers:
            for mount in mounts:
                if controller in mount.controllers:
                    return mount, path
    for mount in mounts:
        if mount.is_unified and frozenset() in membership:
            return mount, membership[frozenset()]
    return None


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
