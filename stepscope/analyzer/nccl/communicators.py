"""Communicators: members, shape and start of each, and to which one a line of the log belongs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from stepscope.analyzer.nccl.networks import network_words
from stepscope.core.documents.nccl import Communicator, NcclFinding
from stepscope.core.documents.nccl_facts import Channels, Join, JoinSeconds, LogEvent, Network, Shape
from stepscope.core.hardware.health import Severity
from stepscope.core.text.numbers import counted, form, listed, ranks_words


@dataclass(slots=True)
class _CommunicatorBuilder:
    """What the log lines so far tell about a communicator."""

    num_ranks: int
    ranks: set[int] = field(default_factory=set)
    joined: set[int] = field(default_factory=set)
    num_nodes: int | None = None
    channels: int | None = None
    nvls: int | None = None
    network: str | None = None
    hosts_by_network: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    seconds: dict[int, JoinSeconds] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommunicatorIndex:
    """Communicators of a job, and the communicator of each log line.

    Attributes:
        at: communicator and rank of the process, by index of the event.
        hosts: host by communicator and rank.
        join_seconds: by communicator and rank.
        hosts_by_network: by communicator and network.
    """

    communicators: list[Communicator]
    at: dict[int, tuple[str, int]]
    hosts: dict[tuple[str, int], str]
    join_seconds: dict[str, dict[int, JoinSeconds]]
    hosts_by_network: dict[str, dict[str, set[str]]]

    def machines(self) -> list[set[str]]:
        """Hosts of each communicator."""
        by_communicator: dict[str, set[str]] = defaultdict(set)
        for (name, _), host in self.hosts.items():
            by_communicator[name].add(host)
        return list(by_communicator.values())


_JOINS = (Join, Shape, JoinSeconds)
_OF_COMMUNICATORS = (*_JOINS, Channels, Network)


def index_communicators(events: Sequence[LogEvent]) -> CommunicatorIndex:
    """Follow each process through its communicators: a line belongs to the one that its process joined last."""
    known: dict[str, _CommunicatorBuilder] = {}
    current: dict[str, tuple[str, int]] = {}
    networks: dict[str, str] = {}
    at: dict[int, tuple[str, int]] = {}
    hosts: dict[tuple[str, int], str] = {}
    ids = _ids_by_size(events)
    for index, event in enumerate(events):
        process = event.place.process
        if isinstance(event, Network):
            networks[process] = event.name
        elif isinstance(event, _JOINS):
            own = current.get(process)
            name = _name(event, own, ids)
            current[process] = (name, event.rank)
            hosts[name, event.rank] = event.place.host
        if process not in current:
            continue
        name, rank = at[index] = current[process]
        if isinstance(event, _OF_COMMUNICATORS):
            _note(known, name, rank, event, networks.get(process))
    communicators = [_communicator(name, one) for name, one in known.items()]
    seconds = {name: one.seconds for name, one in known.items()}
    return CommunicatorIndex(
        communicators, at, hosts, seconds, {name: one.hosts_by_network for name, one in known.items()}
    )


def _ids_by_size(events: Sequence[LogEvent]) -> dict[int, set[str]]:
    ids: dict[int, set[str]] = defaultdict(set)
    for event in events:
        if isinstance(event, Join) and event.communicator:
            ids[event.num_ranks].add(event.communicator)
    return ids


def _name(event: Join | Shape | JoinSeconds, own: tuple[str, int] | None, ids: dict[int, set[str]]) -> str:
    """The communicator's ID; in a log that begins later or has no IDs, the only one of its size, else the size."""
    if isinstance(event, Join) and event.communicator:
        return event.communicator
    if own is not None and own[1] == event.rank:
        return own[0]
    of_size = ids.get(event.num_ranks, set())
    return next(iter(of_size)) if len(of_size) == 1 else counted(event.num_ranks, "rank")


def _note(known: dict[str, _CommunicatorBuilder], name: str, rank: int, event: LogEvent, network: str | None) -> None:
    num_ranks = event.num_ranks if isinstance(event, _JOINS) else 0
    one = known.setdefault(name, _CommunicatorBuilder(num_ranks))
    one.num_ranks = max(one.num_ranks, num_ranks)
    one.ranks.add(rank)
    one.network = network or one.network
    if network:
        one.hosts_by_network[network].add(event.place.host)
    if isinstance(event, Join) and event.is_complete:
        one.joined.add(rank)
    elif isinstance(event, Shape):
        one.num_nodes = event.num_nodes
    elif isinstance(event, Channels):
        one.channels, one.nvls = event.collective, event.nvls
    elif isinstance(event, JoinSeconds):
        known_seconds = one.seconds.get(rank)
        if known_seconds is None or known_seconds.seconds < event.seconds:
            one.seconds[rank] = event


def _communicator(name: str, one: _CommunicatorBuilder) -> Communicator:
    slowest = max(one.seconds.values(), key=lambda event: event.seconds, default=None)
    return Communicator(
        name,
        one.num_ranks,
        sorted(one.ranks),
        sorted(one.joined),
        one.num_nodes,
        one.channels,
        one.nvls,
        one.network,
        None if slowest is None else slowest.seconds,
        {} if slowest is None else slowest.parts,
    )


def not_joined(communicators: Iterable[Communicator], events: Iterable[LogEvent]) -> Iterator[NcclFinding]:
    """Ranks that began to join and have not: the log ends there, or the start hangs."""
    for one in communicators:
        waiting = sorted(set(one.ranks) - set(one.joined))
        if one.joined or not waiting or one.num_ranks <= len(one.ranks) or one.num_nodes is not None:
            continue  # all ranks have begun before the shape is known
        if one.num_ranks <= 2 * len(one.ranks):  # else nearly all ranks have no log here; or a damaged number
            silent = sorted(set(range(one.num_ranks)) - set(one.ranks))
            who = f"{ranks_words(silent)} {form(len(silent), 'has', 'have')}"
            message = f"communicator {one.id}: none has joined, and {who} not begun to"
            place = next(event.place for event in events)
            yield NcclFinding("not_joined", Severity.WARNING, message, place.file, 0, silent)


def different_networks(index: CommunicatorIndex, events: Sequence[LogEvent]) -> Iterator[NcclFinding]:
    """Communicators whose machines chose different networks: NCCL connects only equal ones."""
    for name, hosts_by_network in index.hosts_by_network.items():
        if len(hosts_by_network) < 2:
            continue
        place = next(event.place for event in events if isinstance(event, Network))
        each = "; ".join(
            f"{network_words(network)} on {listed(sorted(hosts), 4)}" for network, hosts in hosts_by_network.items()
        )
        message = f"communicator {name}: machines use different networks: {each}; all ranks need the same"
        yield NcclFinding("network_mismatch", Severity.CRITICAL, message, place.file, place.line)


_MIN_SECONDS = 10.0
"""Start-ups of thousands of ranks take less."""
_LATE_SHARE = 0.5
"""A rank whose bootstrap is shorter than that of the slowest rank by this share came last: the others waited for it."""
_PARTS = {
    "kernels": "loading NCCL's kernels onto the GPU: CUDA's start; other processes on the GPU slow it",
    "alloc": "allocating GPU and host memory",
    "bootstrap": "meeting the other ranks over TCP: it lasts until the last one has come",
    "allgathers": "exchanging addresses over TCP",
    "topo": "reading links and cards from /sys and NVML",
    "graphs": "searching rings and trees",
    "connections": "connecting GPUs and network cards",
    "rest": "what NCCL does not time",
}


def slow_joins(index: CommunicatorIndex) -> Iterator[NcclFinding]:
    """Communicators whose start took long, by the part that did."""
    for one in index.communicators:
        if one.init_seconds is None or one.init_seconds < _MIN_SECONDS:
            continue
        by_rank = index.join_seconds[one.id]
        slowest = max(by_rank.values(), key=lambda event: event.seconds)
        message = f"communicator {one.id}: rank {slowest.rank} took {slowest.seconds:,.1f} s to join"
        if slowest.parts:
            part, seconds = max(slowest.parts.items(), key=lambda entry: entry[1])
            message += f", {seconds:,.1f} s of them {part}: {_PARTS.get(part, 'a part that NCCL names so')}"
            late = _last_to_come(by_rank.values()) if part == "bootstrap" else []
            if late:
                message += f"; {ranks_words(late)} came last: look at what {form(len(late), 'it', 'they')} did before"
        place = slowest.place
        yield NcclFinding("slow_init", Severity.WARNING, message, place.file, place.line, [slowest.rank])


def _last_to_come(joins: Iterable[JoinSeconds]) -> list[int]:
    """Ranks that met the others at once, where those waited."""
    waits = {event.rank: event.parts.get("bootstrap", 0.0) for event in joins}
    limit = max(waits.values()) * _LATE_SHARE
    late = sorted(rank for rank, seconds in waits.items() if seconds < limit)
    return late if len(late) < len(waits) / 2 else []
