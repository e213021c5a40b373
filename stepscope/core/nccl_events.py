"""What did NCCL's logs of a job say, line by line? The facts that a diagnosis is made from, each with its place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
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

    place: Place
    version: str


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable that NCCL obeys."""

    place: Place
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class NoInfiniBand:
    """NCCL found no InfiniBand or RoCE card."""

    place: Place


@dataclass(frozen=True, slots=True)
class NoPlugin:
    """A network plugin could not be loaded: its library's name."""

    place: Place
    library: str


@dataclass(frozen=True, slots=True)
class Cards:
    """The network cards of one kind: "IB" or "Socket"; each as NCCL writes it, "mlx5_0:1/RoCE"."""

    place: Place
    kind: str
    cards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Network:
    """The network that NCCL uses: "IB", "Socket", "AWS Libfabric"."""

    place: Place
    name: str


@dataclass(frozen=True, slots=True)
class DirectMemory:
    """Whether a card may read GPU memory itself (GPUDirect RDMA)."""

    place: Place
    card: str
    is_enabled: bool


@dataclass(frozen=True, slots=True)
class Join:
    """A rank begins to join a communicator, or has joined it.

    Attributes:
        communicator: the same for all its ranks.
        is_complete: it has joined.
    """

    place: Place
    communicator: str
    rank: int
    num_ranks: int
    device: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class JoinSeconds:
    """How long joining took."""

    place: Place
    rank: int
    num_ranks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Shape:
    """How a communicator lies over nodes."""

    place: Place
    rank: int
    num_ranks: int
    num_nodes: int
    num_local_ranks: int


@dataclass(frozen=True, slots=True)
class Path:
    """One channel from rank to rank: "P2P/CUMEM", "SHM/direct/direct", "NET/IB/0/GDRDMA", "NET/Socket/0"."""

    place: Place
    source: int
    target: int
    via: str


@dataclass(frozen=True, slots=True)
class Rings:
    """The rings are connected; `uses_direct_memory` of network cards on any of them."""

    place: Place
    uses_direct_memory: bool


@dataclass(frozen=True, slots=True)
class Channels:
    """How many channels collectives have, and how many of them go through the switch (NVLS)."""

    place: Place
    collective: int
    nvls: int


@dataclass(frozen=True, slots=True)
class FailedTransfer:
    """A card gave a transfer back with an error: InfiniBand's status and the vendor's."""

    place: Place
    peer: str
    status: int
    vendor_error: int
    card: str


@dataclass(frozen=True, slots=True)
class CardEvent:
    """A card told of itself: "port error", "speed change detected"."""

    place: Place
    event: str


@dataclass(frozen=True, slots=True)
class Warned:
    """Any other line of level WARN."""

    place: Place
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

    place: Place
    rank: int
    sequence: int
    operation: str
    milliseconds: int
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """The mean bus bandwidth that nccl-tests measured, GB/s; the test's name comes after it."""

    place: Place
    bus_bandwidth_gbs: float


@dataclass(frozen=True, slots=True)
class Benchmarked:
    """nccl-tests has ended: "all_gather_perf"."""

    place: Place
    test: str


@dataclass(frozen=True, slots=True)
class TrainerTimes:
    """A trainer's own breakdown of a step, in ms by part, as DeepSpeed logs it."""

    place: Place
    parts: dict[str, float]


@dataclass(frozen=True, slots=True)
class TopologyNode:
    """One line of NCCL's dump of the topology: how deep it is, what it is, how many GB/s lead there."""

    place: Place
    depth: int
    link: str
    gbs: float
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class PlannedWay:
    """What NCCL planned over the devices: a channel's GB/s inside a node and between nodes, and by what at worst."""

    place: Place
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
    | Path
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
