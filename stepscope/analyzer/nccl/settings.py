"""Which environment variables do harm that nobody remembers having set?"""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.core.health import Severity
from stepscope.core.nccl import NcclFinding
from stepscope.core.nccl_events import LogEvent, Setting

ANY_DISTANCE = frozenset(["SYS", "sys", "5"])
"""Values of NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL that forbid nothing."""

_HARMFUL: dict[str, tuple[str, frozenset[str]]] = {
    "NCCL_P2P_DISABLE": ("GPUs of one node do not reach each other directly", frozenset("0")),
    "NCCL_IB_DISABLE": ("no InfiniBand or RoCE is used", frozenset("0")),
    "NCCL_SHM_DISABLE": ("ranks of one node without P2P go over the network", frozenset("0")),
    "NCCL_NET_GDR_LEVEL": ("network cards read GPU memory themselves only up to this distance", ANY_DISTANCE),
    "NCCL_P2P_LEVEL": ("GPUs reach each other directly only up to this distance", ANY_DISTANCE),
    "NCCL_ALGO": ("NCCL may not choose its algorithm by size", frozenset()),
    "NCCL_PROTO": ("NCCL may not choose its protocol by size", frozenset()),
    "NCCL_MAX_NCHANNELS": ("no more channels than that, where the links could take more", frozenset()),
    "NCCL_NVLS_ENABLE": ("NVSwitches do not sum up: large all-reduces within a node get less", frozenset("12")),
}
"""What follows from each, as a statement, and from which of its values nothing does."""


def harmful_settings(events: Iterable[LogEvent]) -> list[NcclFinding]:
    """Each variable once, where it is set first; whether it does harm here the transports tell."""
    found: dict[str, NcclFinding] = {}
    for event in events:
        if isinstance(event, Setting) and event.name in _HARMFUL and event.name not in found:
            does, harmless = _HARMFUL[event.name]
            if event.value not in harmless:
                message = f"{event.name}={event.value} set in the environment: {does}"
                place = event.place
                found[event.name] = NcclFinding("setting", Severity.INFO, message, place.file, place.line)
    return list(found.values())
