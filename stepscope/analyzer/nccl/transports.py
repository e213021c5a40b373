"""Transports between ranks: the one in use, the expected one, the reason for the difference.

Within a node the expected transport is P2P, over NVLink or PCIe; between nodes it is a network card that reads GPU
memory itself (GPUDirect RDMA). Slower transports work as well, and NCCL mentions them in one log line of thousands.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from stepscope.analyzer.nccl.communicators import CommunicatorIndex, index_communicators
from stepscope.analyzer.nccl.networks import ANY_DISTANCE, OF_ENVIRONMENT, Environment
from stepscope.core.documents.nccl import NcclFinding, Transport
from stepscope.core.documents.nccl_facts import NO_DEVICE, LogEvent, RingPath, Rings, Setting
from stepscope.core.hardware.health import Severity
from stepscope.core.text.numbers import counted, ranks_words

P2P, SHM, IB, SOCKET = "P2P", "SHM", "NET/IB", "NET/Socket"
_DIRECT = "GDRDMA"
_NETWORK_WITH_DIRECT = f"a network card with {_DIRECT}"


def transports_of(events: Sequence[LogEvent], index: CommunicatorIndex) -> list[Transport]:
    """Transports of each pair of ranks that a channel connects, one per pair and transport."""
    environments, hosts = _Environments(events, index), _Hosts(index)
    channels: dict[tuple[str, int, int, str, str], Counter[str]] = defaultdict(Counter)  # lines, by process
    for number, event in enumerate(events):
        if isinstance(event, RingPath):
            via, detail = _parse_transport(event.via)
            name = index.at[number][0] if number in index.at else event.place.file
            channels[name, event.source, event.target, via, detail][event.place.process] += 1
    merged: dict[tuple[int, int, str, str], Transport] = {}
    for (name, source, target, via, detail), lines in channels.items():
        is_one_node = hosts.share_node(name, source, target)
        one = _transport(source, target, via, detail, lines.total() // len(lines), environments.of(name), is_one_node)
        known = merged.get((source, target, via, detail))
        if known is None or known.channels < one.channels:
            merged[source, target, via, detail] = one
    return [merged[key] for key in sorted(merged)]


class JobTransports(NamedTuple):
    """Transports and settings by the ranks of the job.

    Attributes:
        hosts: by rank.
        ranks_with: by variable: ranks whose processes have it set.
    """

    transports: list[Transport]
    hosts: dict[int, str]
    ranks_with: dict[str, list[int]]


def transports_of_job(events: Sequence[LogEvent], world_size: int) -> JobTransports:
    """Transports of communicators of the whole job: others number their members anew.

    Args:
        world_size: 0 if it is unknown: that of the largest communicator.
    """
    index = index_communicators(events)
    num_ranks = world_size or max((one.num_ranks for one in index.communicators), default=0)
    of_world = {one.id for one in index.communicators if one.num_ranks == num_ranks}
    hosts = {rank: host for (name, rank), host in index.hosts.items() if name in of_world}
    rank_of = {events[number].place.process: rank for number, (name, rank) in index.at.items() if name in of_world}
    ranks_with: dict[str, set[int]] = defaultdict(set)
    for event in events:
        if isinstance(event, Setting) and event.place.process in rank_of:
            ranks_with[event.name].add(rank_of[event.place.process])
    kept = [
        event
        for number, event in enumerate(events)
        if not isinstance(event, RingPath) or (number in index.at and index.at[number][0] in of_world)
    ]
    transports = transports_of(kept, index_communicators(kept))
    return JobTransports(transports, hosts, {name: sorted(ranks) for name, ranks in ranks_with.items()})


class _Environments:
    """Environment of each communicator, by the files that have its ranks: those of other jobs say nothing on it."""

    def __init__(self, events: Sequence[LogEvent], index: CommunicatorIndex) -> None:
        self._events: dict[str, list[LogEvent]] = defaultdict(list)
        for event in events:
            if isinstance(event, OF_ENVIRONMENT):
                self._events[event.place.file].append(event)
        self._files: dict[str, set[str]] = defaultdict(set)
        for number, (name, _) in index.at.items():
            self._files[name].add(events[number].place.file)
        self._known: dict[str, Environment] = {}

    def of(self, communicator: str) -> Environment:
        """Of a communicator, or of a file whose ranks belong to no known one."""
        if communicator not in self._known:
            files = sorted(self._files.get(communicator, {communicator}))
            self._known[communicator] = Environment.of(event for file in files for event in self._events[file])
        return self._known[communicator]


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
    if environment.no_peer_access:
        return "the driver allows no P2P between these GPUs: GeForce cards, IOMMU or ACS; see nvidia-smi topo -p2p r"
    return "no peer access, the log does not say why (another NUMA node, IOMMU or ACS?): see nvidia-smi topo -p2p r"


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
    why = environment.why_no_ib()
    if why and why != environment.no_ib:
        return why
    if why:
        plugin = f", and no plugin {environment.plugin}" if environment.plugin else ""
        if why != NO_DEVICE:
            return f"{why}{plugin}: install rdma-core (libibverbs) in the image"
        return f"NCCL found no InfiniBand or RoCE card{plugin}: is the card in the container, the plugin installed?"
    if environment.plugin:
        return f"the plugin {environment.plugin} was not found: install the network's own (aws-ofi-nccl on EFA)"
    return "the log does not say; look for NET/IB and NET/Plugin lines at the start (NCCL_DEBUG_SUBSYS=INIT,NET)"


def slow_transports(transports: Sequence[Transport], events: Iterable[LogEvent]) -> Iterator[NcclFinding]:
    """One finding per transport and reason."""
    wrong: dict[tuple[str, str, str], list[Transport]] = defaultdict(list)
    for one in transports:
        if not one.ok:
            wrong[one.via, one.expected, one.why].append(one)
    for (via, expected, why), pairs in wrong.items():
        ranks = sorted({rank for one in pairs for rank in (one.source, one.target)})
        place = next(event.place for event in events if isinstance(event, RingPath) and event.via.startswith(via))
        ways = counted(len(pairs), "way")
        message = f"{ways} between {ranks_words(ranks)} over {via}, not {expected}: {why}"
        severity = Severity.CRITICAL if via == SOCKET else Severity.WARNING
        yield NcclFinding("wrong_transport", severity, message, place.file, place.line, ranks)


def no_direct_memory(events: Iterable[LogEvent], transports: Sequence[Transport]) -> Iterator[NcclFinding]:
    """Finding on rings without GPUDirect, for logs that contain only the end of the start."""
    if transports:
        return
    for event in events:
        if isinstance(event, Rings) and not event.uses_direct_memory:
            message = "rings are connected without GPUDirect (GDR 0): between nodes each byte goes over host memory"
            yield NcclFinding("no_gdr", Severity.INFO, message, event.place.file, event.place.line)
            return
