"""Who communicates with whom? From the lines in which ranks join, and those that follow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepscope.core.counting import counted
from stepscope.core.nccl import Communicator
from stepscope.core.nccl_events import Channels, Join, JoinSeconds, LogEvent, Network, Shape


@dataclass(slots=True)
class _Known:
    num_ranks: int
    ranks: set[int] = field(default_factory=set)
    joined: set[int] = field(default_factory=set)
    num_nodes: int | None = None
    channels: int | None = None
    nvls: int | None = None
    network: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Members:
    """The communicators, and which rank of which one a process is at a line.

    Attributes:
        at: of each event, the communicator and rank its process was at: by its place in the sequence of events.
        hosts: of each rank of a communicator, its host.
    """

    communicators: list[Communicator]
    at: dict[int, tuple[str, int]]
    hosts: dict[tuple[str, int], str]


def members_of(events: Sequence[LogEvent]) -> Members:
    """Follow each process through its communicators: a line belongs to the one that it joined, or joins, last."""
    known: dict[str, _Known] = {}
    current: dict[str, tuple[str, int]] = {}
    networks: dict[str, str] = {}
    at: dict[int, tuple[str, int]] = {}
    hosts: dict[tuple[str, int], str] = {}
    ids = _ids_by_size(events)
    for number, event in enumerate(events):
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
        name, rank = at[number] = current[process]
        _note(known, name, rank, event, networks.get(process))
    return Members([_communicator(name, one) for name, one in known.items()], at, hosts)


def _ids_by_size(events: Sequence[LogEvent]) -> dict[int, set[str]]:
    ids: dict[int, set[str]] = defaultdict(set)
    for event in events:
        if isinstance(event, Join) and event.communicator:
            ids[event.num_ranks].add(event.communicator)
    return ids


def _name(event: Join | Shape, own: tuple[str, int] | None, ids: dict[int, set[str]]) -> str:
    """Its id; of a log that begins later, or of an NCCL that tells none, the only one of its size, else its size."""
    if isinstance(event, Join) and event.communicator:
        return event.communicator
    if own is not None and own[1] == event.rank:
        return own[0]
    of_size = ids.get(event.num_ranks, set())
    return next(iter(of_size)) if len(of_size) == 1 else counted(event.num_ranks, "rank")


def _note(known: dict[str, _Known], name: str, rank: int, event: LogEvent, network: str | None) -> None:
    num_ranks = event.num_ranks if isinstance(event, Join | Shape | JoinSeconds) else 0
    one = known.setdefault(name, _Known(num_ranks))
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


def _communicator(name: str, one: _Known) -> Communicator:
    ranks, joined = sorted(one.ranks), sorted(one.joined)
    return Communicator(
        name, one.num_ranks, ranks, joined, one.num_nodes, one.channels, one.nvls, one.network, one.seconds
    )
