"""What is in a machine, and which GPUs share a network card? From the tree that NCCL saw, of its log or of a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from stepscope.core.counting import counted
from stepscope.core.health import Severity
from stepscope.core.nccl import Devices, NcclFinding, PlannedWays
from stepscope.core.nccl_events import LogEvent, Place, PlannedWay, TopologyNode


def devices_of(events: Iterable[LogEvent]) -> list[Devices]:
    """What each tree has."""
    found = []
    for file, nodes in _trees(events):
        kinds = Counter(node.kind for node in nodes)
        slots = [node.gbs for node in nodes if node.kind == "GPU" and node.gbs]
        found.append(Devices(file, kinds["CPU"], kinds["GPU"], kinds["NIC"], min(slots, default=None)))
    return found


def planned_ways(events: Iterable[LogEvent]) -> list[PlannedWays]:
    """What NCCL planned, file by file."""
    return [
        PlannedWays(
            one.place.file, one.pattern, one.num_channels, one.inside, one.inside_gbs, one.between, one.between_gbs
        )
        for one in events
        if isinstance(one, PlannedWay)
    ]


def shared_cards(events: Iterable[LogEvent]) -> list[NcclFinding]:
    """A finding for each tree in which GPUs are next to fewer network cards than they are themselves."""
    return [finding for file, nodes in _trees(events) for finding in _of_tree(nodes, file)]


def _trees(events: Iterable[LogEvent]) -> Iterator[tuple[str, list[TopologyNode]]]:
    """The trees, each with its file: one a file, or one a process of a log."""
    nodes = [event for event in events if isinstance(event, TopologyNode)]
    for (file, _), of in groupby(nodes, key=lambda node: (node.place.file, node.place.process)):
        yield file, list(of)


def _of_tree(nodes: Sequence[TopologyNode], file: str) -> Iterator[NcclFinding]:
    shares: Counter[tuple[int, int, float]] = Counter()
    first: dict[tuple[int, int, float], Place] = {}
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
    ways: list[list[int]] = []
    stack: list[int] = []
    for number, node in enumerate(nodes):
        while stack and nodes[stack[-1]].depth >= node.depth:
            stack.pop()
        ways.append(list(stack))
        stack.append(number)
    with_cards = {parent for number, node in enumerate(nodes) if node.kind == "NIC" for parent in ways[number]}
    groups: dict[int, list[TopologyNode]] = {}
    for number, node in enumerate(nodes):
        if node.kind in ("GPU", "NIC"):
            around = next((parent for parent in reversed(ways[number]) if parent in with_cards), None)
            if around is not None:
                groups.setdefault(around, []).append(node)
    return groups


def _rate(nodes: Sequence[TopologyNode], card: TopologyNode) -> float:
    """GB/s of the network behind a card where the tree tells, else of its slot."""
    number = nodes.index(card)
    following = nodes[number + 1] if number + 1 < len(nodes) else None
    return following.gbs if following is not None and following.kind == "NET" else card.gbs
