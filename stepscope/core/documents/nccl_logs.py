"""Facts from NCCL's logs, topology files, inspector and RAS, and from xpu_timer's hang flags.

The report on NCCL (`documents.nccl`) is made of them; each fact of a log has the file and line where it stands.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where a line stands, and which process wrote it.

    Attributes:
        file, line: the log, counted from 1.
        process: host and process number, as NCCL writes them: "nodeA:1234"; empty for lines of others.
    """

    file: str
    line: int
    process: str = ""

    @property
    def host(self) -> str:
        """Of the process; empty where the line does not say."""
        return self.process.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class Version:
    """NCCL's own version."""

    place: LogPlace
    version: str


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable that NCCL obeys."""

    place: LogPlace
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class NoInfiniBand:
    """NCCL found no InfiniBand or RoCE card."""

    place: LogPlace


@dataclass(frozen=True, slots=True)
class NoPlugin:
    """A network plugin could not be loaded: its library's name."""

    place: LogPlace
    library: str


@dataclass(frozen=True, slots=True)
class Cards:
    """The network cards of one kind: "IB" or "Socket"; each as NCCL writes it, "mlx5_0:1/RoCE"."""

    place: LogPlace
    kind: str
    cards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Network:
    """The network that NCCL uses: "IB", "Socket", "AWS Libfabric"."""

    place: LogPlace
    name: str


@dataclass(frozen=True, slots=True)
class DirectMemory:
    """Whether a card may read GPU memory itself (GPUDirect RDMA)."""

    place: LogPlace
    card: str
    is_enabled: bool


@dataclass(frozen=True, slots=True)
class Join:
    """A rank begins to join a communicator, or has joined it.

    Attributes:
        communicator: the same for all its ranks.
        is_complete: it has joined.
    """

    place: LogPlace
    communicator: str
    rank: int
    num_ranks: int
    device: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class JoinSeconds:
    """How long joining took."""

    place: LogPlace
    rank: int
    num_ranks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Shape:
    """How a communicator lies over nodes."""

    place: LogPlace
    rank: int
    num_ranks: int
    num_nodes: int
    num_local_ranks: int


@dataclass(frozen=True, slots=True)
class RingPath:
    """One channel from rank to rank: "P2P/CUMEM", "SHM/direct/direct", "NET/IB/0/GDRDMA", "NET/Socket/0"."""

    place: LogPlace
    source: int
    target: int
    via: str


@dataclass(frozen=True, slots=True)
class Rings:
    """The rings are connected; `uses_direct_memory` of network cards on any of them."""

    place: LogPlace
    uses_direct_memory: bool


@dataclass(frozen=True, slots=True)
class Channels:
    """How many channels collectives have, and how many of them go through the switch (NVLS)."""

    place: LogPlace
    collective: int
    nvls: int


@dataclass(frozen=True, slots=True)
class FailedTransfer:
    """A card gave a transfer back with an error: InfiniBand's status and the vendor's."""

    place: LogPlace
    peer: str
    status: int
    vendor_error: int
    card: str


@dataclass(frozen=True, slots=True)
class CardEvent:
    """A card told of itself: "port error", "speed change detected"."""

    place: LogPlace
    event: str


@dataclass(frozen=True, slots=True)
class Warned:
    """Any other line of level WARN."""

    place: LogPlace
    text: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """torch's watchdog gave a collective up.

    Attributes:
        sequence: its number in its group.
        operation: "ALLREDUCE".
        milliseconds: how long it had run.
        group: the process group, as torch calls it: "0(default_pg)"; None where the line does not say.
    """

    place: LogPlace
    rank: int
    sequence: int
    operation: str
    milliseconds: int
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """The mean bus bandwidth that nccl-tests measured, GB/s; the test's name comes after it."""

    place: LogPlace
    bus_bandwidth_gbs: float


@dataclass(frozen=True, slots=True)
class Benchmarked:
    """nccl-tests has ended: "all_gather_perf"."""

    place: LogPlace
    test: str


@dataclass(frozen=True, slots=True)
class TrainerTimes:
    """A trainer's own breakdown of a step, in ms by part, as DeepSpeed logs it."""

    place: LogPlace
    parts: dict[str, float]


@dataclass(frozen=True, slots=True)
class TopologyNode:
    """One line of NCCL's dump of the topology: how deep it is, what it is, how many GB/s lead there."""

    place: LogPlace
    depth: int
    link: str
    gbs: float
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class PlannedWay:
    """What NCCL planned over the devices: a channel's GB/s inside a node and between nodes, and by what at worst."""

    place: LogPlace
    pattern: str
    num_channels: int
    inside_gbs: float
    between_gbs: float
    inside: str
    between: str


LogEvent = (
    Version
    | Setting
    | NoInfiniBand
    | NoPlugin
    | Cards
    | Network
    | DirectMemory
    | Join
    | JoinSeconds
    | Shape
    | RingPath
    | Rings
    | Channels
    | FailedTransfer
    | CardEvent
    | Warned
    | TimedOut
    | Measured
    | Benchmarked
    | TrainerTimes
    | TopologyNode
    | PlannedWay
)


@dataclass(frozen=True, slots=True)
class InspectorCall:
    """One collective or message as NCCL's inspector plugin measured it on one rank.

    Attributes:
        communicator: its id, or the name that its user gave it.
        sequence: the same on all ranks; None of what a Prometheus page sums up.
        bytes: None where only a range is told, as `size` says.
        bus_gbs: bus bandwidth, GB/s.
    """

    communicator: str
    rank: int | None
    num_ranks: int | None
    collective: str
    sequence: int | None
    bytes: int | None
    size: str
    microseconds: float
    bus_gbs: float


@dataclass(frozen=True, slots=True)
class RasRank:
    """A rank as RAS knows it; counts of collectives by kind, empty where it does not answer."""

    rank: int
    host: str
    process: int
    counts: dict[str, int] = field(default_factory=dict)
    is_unresponsive: bool = False
    is_dead: bool = False


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """A communicator as RAS knows it.

    Attributes:
        problems: what RAS itself says of it, by ranks: "have launched up to operation 6649".
        ranks: those that RAS lists by themselves; in JSON all.
    """

    id: str
    size: int | None
    ranks: tuple[RasRank, ...] = ()
    missing: tuple[RasRank, ...] = ()
    problems: tuple[tuple[tuple[int, ...], str], ...] = ()


@dataclass(frozen=True, slots=True)
class RasStatus:
    """One answer of the RAS service.

    Attributes:
        dead: lines on processes that are considered dead, and on missing ones.
    """

    file: str
    communicators: tuple[RasCommunicator, ...]
    dead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HangFlags:
    """xpu_timer's own judgement by rank."""

    file: str
    flagged: tuple[int, ...]
    clear: tuple[int, ...]


def ranks_with_fewer_calls(one: RasCommunicator) -> list[int]:
    """Those that launched fewer collectives than most; by counts, which JSON alone has."""
    totals = {rank.rank: sum(rank.counts.values()) for rank in one.ranks if rank.counts}
    if len(set(totals.values())) < 2:
        return []
    most, _ = max(Counter(totals.values()).items(), key=lambda entry: (entry[1], entry[0]))
    return sorted(rank for rank, total in totals.items() if total < most)


def ranks_behind(one: RasCommunicator) -> list[int]:
    """The same, and those that are dead or do not answer, or that text names as unlike the others."""
    missing = {rank.rank for rank in one.missing}
    told = {rank for ranks, _ in one.problems for rank in ranks}
    return sorted(missing | told | set(ranks_with_fewer_calls(one)))
