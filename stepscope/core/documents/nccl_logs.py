"""Facts from NCCL's logs, topology files, inspector and RAS, and from xpu_timer's hang flags.

The report on NCCL (`documents.nccl`) is made from them; each fact of a log has its file and line.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Place of a line in a log, and the process that wrote it.

    Attributes:
        line: counted from 1.
        process: host and process id as NCCL writes them: "nodeA:1234"; empty for lines of other programs.
    """

    file: str
    line: int
    process: str = ""

    @property
    def host(self) -> str:
        """Host of the process; empty where unknown."""
        return self.process.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class Version:
    """Version of NCCL."""

    place: LogPlace
    version: str


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable that NCCL uses."""

    place: LogPlace
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class NoInfiniBand:
    """NCCL found no InfiniBand or RoCE card."""

    place: LogPlace


@dataclass(frozen=True, slots=True)
class NoPlugin:
    """A network plugin that could not be loaded."""

    place: LogPlace
    library: str


@dataclass(frozen=True, slots=True)
class Cards:
    """The network cards of one kind ("IB" or "Socket"), as NCCL writes them: "mlx5_0:1/RoCE"."""

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
    """Whether a card may access GPU memory directly (GPUDirect RDMA)."""

    place: LogPlace
    card: str
    is_enabled: bool


@dataclass(frozen=True, slots=True)
class Join:
    """A rank begins to join a communicator, or has joined it (`is_complete`)."""

    place: LogPlace
    communicator: str
    rank: int
    num_ranks: int
    device: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class JoinSeconds:
    """Time that a rank took to join its communicator."""

    place: LogPlace
    rank: int
    num_ranks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Shape:
    """Distribution of a communicator over nodes."""

    place: LogPlace
    rank: int
    num_ranks: int
    num_nodes: int
    num_local_ranks: int


@dataclass(frozen=True, slots=True)
class RingPath:
    """Transport of one channel between two ranks: "P2P/CUMEM", "SHM/direct/direct", "NET/IB/0/GDRDMA"."""

    place: LogPlace
    source: int
    target: int
    via: str


@dataclass(frozen=True, slots=True)
class Rings:
    """The rings are connected; `uses_direct_memory`: any of them uses GPUDirect RDMA."""

    place: LogPlace
    uses_direct_memory: bool


@dataclass(frozen=True, slots=True)
class Channels:
    """Number of channels for collectives, and for NVLS (through the switch)."""

    place: LogPlace
    collective: int
    nvls: int


@dataclass(frozen=True, slots=True)
class FailedTransfer:
    """A transfer that a card completed with an error: InfiniBand's status and the vendor's."""

    place: LogPlace
    peer: str
    status: int
    vendor_error: int
    card: str


@dataclass(frozen=True, slots=True)
class CardEvent:
    """An event of a card: "port error", "speed change detected"."""

    place: LogPlace
    event: str


@dataclass(frozen=True, slots=True)
class Warned:
    """Any other line of level WARN."""

    place: LogPlace
    text: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A collective that torch's watchdog aborted.

    Attributes:
        sequence: its number in the group.
        operation: "ALLREDUCE".
        milliseconds: its age.
        group: torch's name of the process group: "0(default_pg)"; None where unknown.
    """

    place: LogPlace
    rank: int
    sequence: int
    operation: str
    milliseconds: int
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Mean bus bandwidth of an nccl-tests run, GB/s; the name of the test follows in `Benchmarked`."""

    place: LogPlace
    bus_bandwidth_gbs: float


@dataclass(frozen=True, slots=True)
class Benchmarked:
    """End of an nccl-tests run: "all_gather_perf"."""

    place: LogPlace
    test: str


@dataclass(frozen=True, slots=True)
class TrainerTimes:
    """A trainer's own breakdown of a step in ms by part, as logged by DeepSpeed."""

    place: LogPlace
    parts: dict[str, float]


@dataclass(frozen=True, slots=True)
class TopologyNode:
    """One line of NCCL's topology dump: depth, kind and name of a node, and its link with GB/s."""

    place: LogPlace
    depth: int
    link: str
    gbs: float
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class PlannedWay:
    """NCCL's plan over the devices: GB/s of a channel within and between nodes, and the slowest kind of path."""

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
    """One collective or message, measured on one rank by NCCL's inspector plugin.

    Attributes:
        communicator: its id, or the user's name for it.
        sequence: the same on all ranks; None for sums of a Prometheus page.
        bytes: None where only a range is known, which is in `size`.
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
    """State of a rank in RAS; counts of collectives by kind, empty where the rank does not answer."""

    rank: int
    host: str
    process: int
    counts: dict[str, int] = field(default_factory=dict)
    is_unresponsive: bool = False
    is_dead: bool = False


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """State of a communicator in RAS.

    Attributes:
        ranks: those that RAS lists individually; in its JSON all.
        problems: RAS's own remarks as (ranks, text): "have launched up to operation 6649".
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
        dead: lines on processes that are considered dead or missing.
    """

    file: str
    communicators: tuple[RasCommunicator, ...]
    dead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HangFlags:
    """Hang flags of xpu_timer by rank."""

    file: str
    flagged: tuple[int, ...]
    clear: tuple[int, ...]


def ranks_with_fewer_calls(communicator: RasCommunicator) -> list[int]:
    """Ranks that launched fewer collectives than most, by their counts, which only RAS's JSON has."""
    totals = {rank.rank: sum(rank.counts.values()) for rank in communicator.ranks if rank.counts}
    if len(set(totals.values())) < 2:
        return []
    most, _ = max(Counter(totals.values()).items(), key=lambda entry: (entry[1], entry[0]))
    return sorted(rank for rank, total in totals.items() if total < most)


def ranks_behind(communicator: RasCommunicator) -> list[int]:
    """Ranks with fewer calls, dead or unresponsive ranks, and those that a problem names."""
    missing = {rank.rank for rank in communicator.missing}
    with_problem = {rank for ranks, _ in communicator.problems for rank in ranks}
    return sorted(missing | with_problem | set(ranks_with_fewer_calls(communicator)))
