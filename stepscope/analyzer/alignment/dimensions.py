"""Which parallel dimension does a process group serve? By the description that torch's DeviceMesh gives it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stepscope.trace.columns import ProcessGroup

_DESCRIPTION = re.compile(r"(?:^|_)(tp|pp|dp|cp|ep|fsdp|dp_shard|dp_replicate)$")


def dimension_of(group: ProcessGroup) -> str | None:
    """tp, pp, dp, cp or ep from a description such as `mesh_tp`; None where it does not tell."""
    match = _DESCRIPTION.search(group.description)
    if match is None:
        return None
    return "dp" if "dp" in match.group(1) else match.group(1)


def dimension_of_members(groups: Iterable[ProcessGroup]) -> dict[tuple[int, ...], str]:
    """Members -> dimension, for the groups whose description tells and that have more than one member."""
    return {
        group.ranks: dimension
        for group in groups
        if group.ranks and len(group.ranks) > 1 and (dimension := dimension_of(group)) is not None
    }
