"""Facts about NCCL as read from logs, topology files, nccl-tests and the inspector.

Each fact of a log has its file and line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


def host_of(process: str) -> str:
    """ "node1" of "node1:4711"; empty where unknown."""
    return process.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Place of a line in a log, and the process that wrote it.

    Attributes:
        line: counted from 1.
        process: host and process id as NCCL writes them: "nodeA:1234"; empty for lines of other programs.
        thread: thread id; a process with several GPUs has one thread for each.
    """

    file: str
    line: int
    process: str = ""
    thread: str = field(default="", compare=False)

    @property
    def host(self) -> str:
        """Host of the process; empty where unknown."""
        return host_of(self.process)


class Version(NamedTuple):
    """Version of NCCL."""

    place: LogPlace
    version: str


class Driver(NamedTuple):
    """Version of CUDA that the driver supports: 13000."""

    place: LogPlace
    version: int


class Setting(NamedTuple):
    """An environment variable that NCCL uses."""

    place: LogPlace
    name: str
    value: str


NO_DEVICE = "no InfiniBand device"


class NoInfiniBand(NamedTuple):
    """NCCL found no InfiniBand or RoCE card."""

    place: LogPlace
    why: str = NO_DEVICE


class NoPlugin(NamedTuple):
    """A network plugin that could not be loaded."""

    place: LogPlace
    library: str


class Cards(NamedTuple):
    """The network cards of one kind ("IB", "Socket"), as NCCL writes them: "mlx5_0:1/RoCE"; or the interface over which
    ranks meet ("Bootstrap")."""

    place: LogPlace
    kind: str
    cards: tuple[str, ...]


class Network(NamedTuple):
    """The network that NCCL uses: "IB", "Socket", "AWS Libfabric"."""

    place: LogPlace
    name: str


class DirectMemory(NamedTuple):
    """Whether a card may access GPU memory directly (GPUDirect RDMA)."""

    place: LogPlace
    card: str
    is_enabled: bool


class NoPeerAccess(NamedTuple):
    """Two GPUs of one node, by number, that cannot read each other's memory."""

    place: LogPlace
    gpu: int
    peer: int


class Join(NamedTuple):
    """A rank begins to join a communicator, or has joined it (`is_complete`)."""

    place: LogPlace
    communicator: str
    rank: int
    num_ranks: int
    device: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class JoinSeconds:
    """Time that a rank took to join its communicator; `parts` by NCCL's names: "bootstrap", "topo"."""

    place: LogPlace
    rank: int
    num_ranks: int
    seconds: float
    parts: dict[str, float] = field(default_factory=dict)


class Shape(NamedTuple):
    """Distribution of a communicator over nodes."""

    place: LogPlace
    rank: int
    num_ranks: int
    num_nodes: int
    num_local_ranks: int


class RingPath(NamedTuple):
    """Transport of one channel between two ranks: "P2P/CUMEM", "SHM/direct/direct", "NET/IB/0/GDRDMA"."""

    place: LogPlace
    source: int
    target: int
    via: str


class Rings(NamedTuple):
    """The rings are connected; `uses_direct_memory`: any of them uses GPUDirect RDMA."""

    place: LogPlace
    uses_direct_memory: bool


class Channels(NamedTuple):
    """Number of channels for collectives, and for NVLS (through the switch)."""

    place: LogPlace
    collective: int
    nvls: int


class FailedTransfer(NamedTuple):
    """A transfer that a card completed with an error: InfiniBand's status and the vendor's."""

    place: LogPlace
    peer: str
    status: int
    vendor_error: int
    card: str


class CardEvent(NamedTuple):
    """An event of a card: "port error", "speed change detected"."""

    place: LogPlace
    event: str


class Warned(NamedTuple):
    """Any other line of level WARN, or the last one as torch repeats it."""

    place: LogPlace
    text: str


class CallFailed(NamedTuple):
    """An NCCL error as torch raises it: "unhandled system error", with NCCL's version. NCCL's own line tells why."""

    place: LogPlace
    error: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A collective that torch's watchdog aborted.

    Attributes:
        sequence: its number in the group; None in torch before 2.0.
        operation: "ALLREDUCE".
        milliseconds: its age.
        group: torch's name of the process group: "0(default_pg)"; None where unknown.
        group_size: number of its ranks, where the sizes of input and output tell.
    """

    place: LogPlace
    rank: int
    sequence: int | None
    operation: str
    milliseconds: int
    group: str | None = None
    group_size: int | None = None


class GroupProgress(NamedTuple):
    """Calls of a rank in a process group when torch's watchdog ended the job.

    Attributes:
        failed: number of the call that timed out on this rank; None where another rank's did.
        enqueued, completed: numbers of its last calls; None where unknown.
    """

    place: LogPlace
    rank: int
    group: str | None
    failed: int | None
    enqueued: int | None = None
    completed: int | None = None


class WatchdogStuck(NamedTuple):
    """torch's watchdog itself made no progress: a CUDA call or Python's lock blocks it."""

    place: LogPlace
    rank: int | None
    seconds: int


class BenchmarkBegun(NamedTuple):
    """First lines of an nccl-tests run; `test` is empty in versions that name it only at the end."""

    place: LogPlace
    test: str


class BenchmarkRank(NamedTuple):
    """A rank of an nccl-tests run: its host and GPU."""

    place: LogPlace
    rank: int
    host: str
    gpu: str


class BenchmarkRow(NamedTuple):
    """One size of an nccl-tests run: time and bandwidths out of place, and in place where measured.

    Attributes:
        wrong: values that were wrong; None where not checked.
    """

    place: LogPlace
    bytes: int
    type: str
    reduction: str
    microseconds: float
    bus_gbs: float
    in_place_microseconds: float | None
    in_place_bus_gbs: float | None
    wrong: int | None


@dataclass(frozen=True, slots=True)
class OutOfBounds:
    """Number of wrong values of an nccl-tests run."""

    place: LogPlace
    count: int


class Measured(NamedTuple):
    """Mean bus bandwidth of an nccl-tests run, GB/s; `is_too_low`: by the limit that the run was given."""

    place: LogPlace
    bus_bandwidth_gbs: float
    is_too_low: bool = False


class BenchmarkFailed(NamedTuple):
    """An error that ended an nccl-tests run on a host."""

    place: LogPlace
    host: str
    error: str


class Benchmarked(NamedTuple):
    """End of an nccl-tests run: "all_gather_perf"."""

    place: LogPlace
    test: str


class TrainerTimes(NamedTuple):
    """A trainer's own breakdown of a step in ms by part, as logged by DeepSpeed."""

    place: LogPlace
    parts: dict[str, float]


@dataclass(frozen=True, slots=True)
class TopologyNode:
    """A node of NCCL's topology, or a link from the node above it in the tree.

    Attributes:
        link: "PCI" to the devices of the tree; "NVL", "SYS", "NET" and others to what another place describes.
        gbs: GB/s of the link; 0 where unknown.
        kind, name: "GPU" and "0-17000" (system and PCI address), as NCCL writes them in logs.
        count: number of NVLinks, in topology files.
        machine: hash of the host, in topology files of NCCL 2.20 and newer.
        is_of_file: in a topology file, not a log.
    """

    place: LogPlace
    depth: int
    link: str
    gbs: float
    kind: str
    name: str
    count: int | None = None
    machine: str = ""
    is_of_file: bool = False


class PlannedWay(NamedTuple):
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
    | Driver
    | Setting
    | NoInfiniBand
    | NoPlugin
    | Cards
    | Network
    | DirectMemory
    | NoPeerAccess
    | Join
    | JoinSeconds
    | Shape
    | RingPath
    | Rings
    | Channels
    | FailedTransfer
    | CardEvent
    | Warned
    | CallFailed
    | TimedOut
    | GroupProgress
    | WatchdogStuck
    | BenchmarkBegun
    | BenchmarkRank
    | BenchmarkRow
    | OutOfBounds
    | Measured
    | BenchmarkFailed
    | Benchmarked
    | TrainerTimes
    | TopologyNode
    | PlannedWay
)


class InspectorCall(NamedTuple):
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
