"""Topology: the members of each communicator, and the GPUs and network cards of each machine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from stepscope.core.documents.nccl import (
    Channels,
    Communicator,
    Devices,
    Join,
    JoinSeconds,
    LogEvent,
    LogPlace,
    NcclFinding,
    Network,
    PlannedWay,
    PlannedWays,
    Shape,
    TopologyNode,
)
from stepscope.core.hardware.health import Severity
from stepscope.core.text.numbers import counted


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
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CommunicatorIndex:
    """Communicators of a job, and the communicator of each log line.

    Attributes:
        at: communicator and rank of the process, by index of the event.
        hosts: host by communicator and rank.
    """

    communicators: list[Communicator]
    at: dict[int, tuple[str, int]]
    hosts: dict[tuple[str, int], str]


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
        elif isinstance(event, Join | Shape):
            own = current.get(process)
            name = _name(event, own, ids)
            current[process] = (name, event.rank)
            hosts[name, event.rank] = event.place.host
        if process not in current:
            continue
        name, rank = at[index] = current[process]
        _note(known, name, rank, event, networks.get(process))
    return CommunicatorIndex([_communicator(name, one) for name, one in known.items()], at, hosts)


def _ids_by_size(events: Sequence[LogEvent]) -> dict[int, set[str]]:
    ids: dict[int, set[str]] = defaultdict(set)
    for event in events:
        if isinstance(event, Join) and event.communicator:
            ids[event.num_ranks].add(event.communicator)
    return ids


def _name(event: Join | Shape, own: tuple[str, int] | None, ids: dict[int, set[str]]) -> str:
    """The communicator's ID; in a log that begins later or has no IDs, the only one of its size, else the size."""
    if isinstance(event, Join) and event.communicator:
        return event.communicator
    if own is not None and own[1] == event.rank:
        return own[0]
    of_size = ids.get(event.num_ranks, set())
    return next(iter(of_size)) if len(of_size) == 1 else counted(event.num_ranks, "rank")


def _note(known: dict[str, _CommunicatorBuilder], name: str, rank: int, event: LogEvent, network: str | None) -> None:
    num_ranks = event.num_ranks if isinstance(event, Join | Shape | JoinSeconds) else 0
    one = known.setdefault(name, _CommunicatorBuilder(num_ranks))
    one.num_ranks = max(one.num_ranks, num_ranks)
    one.ranks.add(rank)
    one.network = network or one.network
    if isinstance(event, Join) and event.is_complete:
        one.joined.add(rank)
    elif isinstance(event, Shape):
        one.num_nodes = event.num_nodes
    elif isinstance(event, Channels):
        one.channels, one.nvls = event.collective, event.nvls
    elif isinstance(event, JoinSeconds):
        one.seconds = max(one.seconds or 0.0, event.seconds)


def _communicator(name: str, one: _CommunicatorBuilder) -> Communicator:
    ranks, joined = sorted(one.ranks), sorted(one.joined)
    return Communicator(
        name, one.num_ranks, ranks, joined, one.num_nodes, one.channels, one.nvls, one.network, one.seconds
    )


def devices_of(events: Iterable[LogEvent]) -> list[Devices]:
    """Number of devices in each topology tree."""
    found = []
    for file, nodes in _trees(events):
        kinds = Counter(node.kind for node in nodes)
        slots = [node.gbs for node in nodes if node.kind == "GPU" and node.gbs]
        found.append(Devices(file, kinds["CPU"], kinds["GPU"], kinds["NIC"], min(slots, default=None)))
    return found


def planned_paths(events: Iterable[LogEvent]) -> list[PlannedWays]:
    """Paths that NCCL planned, by file."""
    return [
        PlannedWays(
            one.place.file, one.pattern, one.num_channels, one.inside, one.inside_gbs, one.between, one.between_gbs
        )
        for one in events
        if isinstance(one, PlannedWay)
    ]


def shared_cards(events: Iterable[LogEvent]) -> list[NcclFinding]:
    """A finding for each topology in which several GPUs share fewer network cards."""
    return [finding for file, nodes in _trees(events) for finding in _shared_cards_of(nodes, file)]


def _trees(events: Iterable[LogEvent]) -> Iterator[tuple[str, list[TopologyNode]]]:
    """Topology trees with their file: one per file, or one per process of a log."""
    nodes = [event for event in events if isinstance(event, TopologyNode)]
    for (file, _), tree in groupby(nodes, key=lambda node: (node.place.file, node.place.process)):
        yield file, list(tree)


def _shared_cards_of(nodes: Sequence[TopologyNode], file: str) -> Iterator[NcclFinding]:
    shares: Counter[tuple[int, int, float]] = Counter()
    first: dict[tuple[int, int, float], LogPlace] = {}
    for parent, below in _nearest(nodes).items():
        gpus = [node for node in below if node.kind == "GPU"]
        cards = [node for node in below if node.kind == "NIC"]
        if cards and len(gpus) > len(cards):
            key = (len(gpus), len(cards), _rate(nodes, cards[0]))
            shares[key] += 1
            first.setdefault(key, nodes[parent].place)
    for (num_gpus, num_cards, rate), count in shares.items():
        cards_words = counted(num_cards, "network card")
        each = f" of {rate:g} GB/s" if rate else ""
        where = f"behind {count} switches each" if count > 1 else "behind one switch"
        message = f"{num_gpus} GPUs share {cards_words}{each} {where}: each gets a part of its rate between nodes"
        place = first[num_gpus, num_cards, rate]
        yield NcclFinding("shared_nic", Severity.WARNING, message, file, place.line)


def _nearest(nodes: Sequence[TopologyNode]) -> dict[int, list[TopologyNode]]:
    """GPUs and cards by the innermost node around them that has cards below it."""
    ancestors: list[list[int]] = []
    stack: list[int] = []
    for number, node in enumerate(nodes):
        while stack and nodes[stack[-1]].depth >= node.depth:
            stack.pop()
        ancestors.append(list(stack))
        stack.append(number)
    with_cards = {parent for number, node in enumerate(nodes) if node.kind == "NIC" for parent in ancestors[number]}
    groups: dict[int, list[TopologyNode]] = {}
    for number, node in enumerate(nodes):
        if node.kind in ("GPU", "NIC"):
            around = next((parent for parent in reversed(ancestors[number]) if parent in with_cards), None)
            if around is not None:
                groups.setdefault(around, []).append(node)
    return groups


def _rate(nodes: Sequence[TopologyNode], card: TopologyNode) -> float:
    """Bandwidth of the network behind a card, GB/s, if the tree contains it, else of the card's slot."""
    number = nodes.index(card)
    following = nodes[number + 1] if number + 1 < len(nodes) else None
    return following.gbs if following is not None and following.kind == "NET" else card.gbs
