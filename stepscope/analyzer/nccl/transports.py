"""Transports between ranks: the one in use, the expected one, the reason for the difference, harmful settings.

Within a node the expected transport is P2P, over NVLink or PCIe; between nodes it is a network card that reads GPU
memory itself (GPUDirect RDMA). Slower transports work as well, and NCCL mentions them in one log line of thousands.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from stepscope.analyzer.nccl.topology import CommunicatorIndex
from stepscope.core.documents.nccl import (
    DirectMemory,
    LogEvent,
    NcclFinding,
    NoInfiniBand,
    NoPlugin,
    RingPath,
    Setting,
    Transport,
)
from stepscope.core.hardware.health import Severity

ANY_DISTANCE = frozenset(["SYS", "sys", "5"])
"""Values of NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL that allow every distance."""

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
"""Effect of each variable, and its values without effect."""


def harmful_settings(events: Iterable[LogEvent]) -> list[NcclFinding]:
    """One finding per harmful variable, where it is set first; the transports show whether it has an effect."""
    found: dict[str, NcclFinding] = {}
    for event in events:
        if isinstance(event, Setting) and event.name in _HARMFUL and event.name not in found:
            does, harmless = _HARMFUL[event.name]
            if event.value not in harmless:
                message = f"{event.name}={event.value} set in the environment: {does}"
                place = event.place
                found[event.name] = NcclFinding("setting", Severity.INFO, message, place.file, place.line)
    return list(found.values())


P2P, SHM, IB, SOCKET = "P2P", "SHM", "NET/IB", "NET/Socket"
_DIRECT = "GDRDMA"
_NETWORK_WITH_DIRECT = f"a network card with {_DIRECT}"
_OFF = ("0", "off", "false", "LOC")


class Environment:
    """Settings and start-up messages that decide which transports are possible."""

    def __init__(self, events: Iterable[LogEvent]) -> None:
        self.settings: dict[str, str] = {}
        self.has_no_ib = False
        self.plugin: str | None = None
        self.without_direct: set[str] = set()
        for event in events:
            if isinstance(event, Setting):
                self.settings[event.name] = event.value
            elif isinstance(event, NoInfiniBand):
                self.has_no_ib = True
            elif isinstance(event, NoPlugin):
                self.plugin = event.library
            elif isinstance(event, DirectMemory) and not event.is_enabled:
                self.without_direct.add(event.card)

    def is_set(self, name: str) -> bool:
        """Whether a variable is set and not off."""
        return self.settings.get(name, "0") not in _OFF


def transports_of(events: Sequence[LogEvent], index: CommunicatorIndex) -> list[Transport]:
    """Transports of each pair of ranks that a channel connects, one per pair and transport."""
    environment, hosts = Environment(events), _Hosts(index)
    channels: dict[tuple[str, int, int, str, str], Counter[str]] = defaultdict(Counter)  # lines, by process
    for number, event in enumerate(events):
        if isinstance(event, RingPath):
            via, detail = _parse_transport(event.via)
            name = index.at.get(number, ("", 0))[0]
            channels[name, event.source, event.target, via, detail][event.place.process] += 1
    merged: dict[tuple[int, int, str, str], Transport] = {}
    for (name, source, target, via, detail), lines in channels.items():
        is_one_node = hosts.share_node(name, source, target)
        one = _transport(source, target, via, detail, lines.total() // len(lines), environment, is_one_node)
        known = merged.get((source, target, via, detail))
        if known is None or known.channels < one.channels:
            merged[source, target, via, detail] = one
    return [merged[key] for key in sorted(merged)]


def _parse_transport(via: str) -> tuple[str, str]:
    """Parse "NET/IB/0(8)/GDRDMA/Shared" to ("NET/IB", "GDRDMA"), without card and channel numbers."""
    words = via.split("/")
    if words[0] == "NET" and len(words) > 1:
        return f"NET/{words[1]}", _DIRECT if _DIRECT in words else ""
    return words[0], "/".join(words[1:2])


class _Hosts:
    """Which ranks are on one node: by host name, unless containers of several nodes have the same name."""

    def __init__(self, index: CommunicatorIndex) -> None:
        self._hosts = index.hosts
        names: dict[str, set[str]] = defaultdict(set)
        for (of, _), host in index.hosts.items():
            names[of].add(host)
        self._on_one = {one.id for one in index.communicators if one.num_nodes == 1}
        self._ambiguous = {
            one.id
            for one in index.communicators
            if one.num_nodes is not None and len(one.ranks) == one.num_ranks and len(names[one.id]) < one.num_nodes
        }

    def share_node(self, communicator: str, source: int, target: int) -> bool | None:
        """Whether two ranks are on one node; None if unknown."""
        if communicator in self._on_one:
            return True
        here, there = self._hosts.get((communicator, source)), self._hosts.get((communicator, target))
        if not here or not there or (here == there and communicator in self._ambiguous):
            return None
        return here == there


def _transport(
    source: int, target: int, via: str, detail: str, channels: int, environment: Environment, is_one_node: bool | None
) -> Transport:
    is_network = via.startswith("NET/")
    is_inside = not is_network or is_one_node is True  # NVLink also joins nodes (MNNVL)
    expected = P2P if is_inside else _NETWORK_WITH_DIRECT
    why = _why_not_peer_to_peer(via, detail, environment) if is_inside else _why_not_direct(via, detail, environment)
    return Transport(source, target, via, detail, max(channels, 1), expected, not why, why)


def _why_not_peer_to_peer(via: str, detail: str, environment: Environment) -> str:
    if via in (P2P, "NVLS") and detail != "indirect":
        return ""
    if detail == "indirect":
        return "the GPUs reach each other through a third one"
    if environment.is_set("NCCL_P2P_DISABLE"):
        return f"NCCL_P2P_DISABLE={environment.settings['NCCL_P2P_DISABLE']} set in the environment"
    if environment.settings.get("NCCL_P2P_LEVEL", "SYS") not in ANY_DISTANCE:
        return f"NCCL_P2P_LEVEL={environment.settings['NCCL_P2P_LEVEL']} set in the environment"
    if via != SHM and environment.is_set("NCCL_SHM_DISABLE"):
        return f"NCCL_SHM_DISABLE={environment.settings['NCCL_SHM_DISABLE']} set in the environment, and no P2P"
    return "no peer access: another NUMA node, IOMMU or ACS; see nvidia-smi topo -p2p r and topo -m"


def _why_not_direct(via: str, detail: str, environment: Environment) -> str:
    if via == SOCKET:
        return _why_socket(environment)
    if not via.startswith(IB) or detail == _DIRECT:  # also those of plugins, IBext_v8
        return ""
    level = environment.settings.get("NCCL_NET_GDR_LEVEL")
    if level is not None and level not in ANY_DISTANCE:
        return f"no {_DIRECT}: NCCL_NET_GDR_LEVEL={level} set in the environment"
    if environment.without_direct:
        return f"no {_DIRECT}: disabled for {', '.join(sorted(environment.without_direct))}; is nvidia_peermem loaded?"
    return f"no {_DIRECT}: card and GPU are too far apart, or nvidia_peermem is not loaded"


def _why_socket(environment: Environment) -> str:
    for name in ("NCCL_IB_DISABLE", "NCCL_NET_DISABLE"):
        if environment.is_set(name):
            return f"{name}={environment.settings[name]} set in the environment"
    if environment.settings.get("NCCL_NET", "").lower() == "socket":
        return "NCCL_NET=Socket set in the environment"
    if environment.has_no_ib:
        plugin = f", and no plugin {environment.plugin}" if environment.plugin else ""
        return f"NCCL found no InfiniBand or RoCE card{plugin}: is the card in the container, the plugin installed?"
    if environment.plugin:
        return f"the plugin {environment.plugin} was not found: install the network's own (aws-ofi-nccl on EFA)"
    return "the log does not say; look for NET/IB and NET/Plugin lines at the start (NCCL_DEBUG_SUBSYS=INIT,NET)"
