"""Facts about NCCL as read from logs, topology files, inspector, RAS, nccl-tests and xpu_timer's hang flags.

Each fact of a log has its file and line.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stepscope.core.documents.hang import MAX_RANKS


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
        return self.process.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class Version:
    """Version of NCCL."""

    place: LogPlace
    version: str


@dataclass(frozen=True, slots=True)
class Driver:
    """Version of CUDA that the driver supports: 13000."""

    place: LogPlace
    version: int


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable that NCCL uses."""

    place: LogPlace
    name: str
    value: str


NO_DEVICE = "no InfiniBand device"


@dataclass(frozen=True, slots=True)
class NoInfiniBand:
    """NCCL found no InfiniBand or RoCE card."""

    place: LogPlace
    why: str = NO_DEVICE


@dataclass(frozen=True, slots=True)
class NoPlugin:
    """A network plugin that could not be loaded."""

    place: LogPlace
    library: str


@dataclass(frozen=True, slots=True)
class Cards:
    """The network cards of one kind ("IB", "Socket"), as NCCL writes them: "mlx5_0:1/RoCE"; or the interface over which
    ranks meet ("Bootstrap")."""

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
class NoPeerAccess:
    """Two GPUs of one node, by number, that cannot read each other's memory."""

    place: LogPlace
    gpu: int
    peer: int


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
    """Time that a rank took to join its communicator; `parts` by NCCL's names: "bootstrap", "topo"."""

    place: LogPlace
    rank: int
    num_ranks: int
    seconds: float
    parts: dict[str, float] = field(default_factory=dict)


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
    """Any other line of level WARN, or the last one as torch repeats it."""

    place: LogPlace
    text: str


@dataclass(frozen=True, slots=True)
class CallFailed:
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


@dataclass(frozen=True, slots=True)
class GroupProgress:
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


@dataclass(frozen=True, slots=True)
class WatchdogStuck:
    """torch's watchdog itself made no progress: a CUDA call or Python's lock blocks it."""

    place: LogPlace
    rank: int | None
    seconds: int


@dataclass(frozen=True, slots=True)
class BenchmarkBegun:
    """First lines of an nccl-tests run; `test` is empty in versions that name it only at the end."""

    place: LogPlace
    test: str


@dataclass(frozen=True, slots=True)
class BenchmarkRank:
    """A rank of an nccl-tests run: its host and GPU."""

    place: LogPlace
    rank: int
    host: str
    gpu: str


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
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


@dataclass(frozen=True, slots=True)
class Measured:
    """Mean bus bandwidth of an nccl-tests run, GB/s; `is_too_low`: by the limit that the run was given."""

    place: LogPlace
    bus_bandwidth_gbs: float
    is_too_low: bool = False


@dataclass(frozen=True, slots=True)
class BenchmarkFailed:
    """An error that ended an nccl-tests run on a host."""

    place: LogPlace
    host: str
    error: str


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
    """State of a rank in RAS; counts of collectives by kind, empty where the rank does not answer.

    Attributes:
        error: NCCL's name of the error that the rank reports, else empty.
    """

    rank: int
    host: str
    process: int
    counts: dict[str, int] = field(default_factory=dict)
    is_unresponsive: bool = False
    is_dead: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class RasGroup:
    """Ranks of a communicator that RAS's text reports together.

    Attributes:
        num_ranks: all of them.
        what: "launched up to operation 6649".
        collective: the kind whose calls `operation` counts: "AllGather"; empty where RAS counts all kinds together.
        operation: number of the last call; 0 before the first; None where `what` is no count.
        ranks: those that are named; none of a majority.
    """

    num_ranks: int
    what: str
    collective: str = ""
    operation: int | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """State of a communicator in RAS.

    Attributes:
        ranks: those that RAS lists individually; in its JSON all.
        groups: of its text form, where ranks differ.
    """

    id: str
    size: int | None
    ranks: tuple[RasRank, ...] = ()
    missing: tuple[RasRank, ...] = ()
    groups: tuple[RasGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class RasRow:
    """Communicators of one size and state, as RAS's table sums them up: "RUNNING", "MISMATCH"."""

    communicators: int
    num_nodes: int
    num_ranks: int
    status: str
    errors: str


@dataclass(frozen=True, slots=True)
class RasStatus:
    """One answer of the RAS service.

    Attributes:
        dead: lines on processes that are considered dead or missing.
        line: where the answer begins in its file; 0 is the whole file.
        version: NCCL's, of the process that answered.
        num_nodes, num_gpus: of the job.
    """

    file: str
    communicators: tuple[RasCommunicator, ...]
    dead: tuple[str, ...] = ()
    rows: tuple[RasRow, ...] = ()
    line: int = 0
    version: str = ""
    num_nodes: int | None = None
    num_gpus: int | None = None


@dataclass(frozen=True, slots=True)
class HangFlags:
    """Hang flags of xpu_timer by rank."""

    file: str
    flagged: tuple[int, ...]
    clear: tuple[int, ...]


def launch_groups(communicator: RasCommunicator) -> dict[str, list[RasGroup]]:
    """Ranks by the number of their last call, fewest calls first; one entry per kind of call in which ranks differ."""
    groups: dict[str, list[RasGroup]] = {}
    for group in communicator.groups:
        if group.operation is not None:
            groups.setdefault(group.collective, []).append(group)
    if not groups:
        groups = _groups_of_counts(communicator.ranks)
    return {
        kind: sorted(_with_remaining(members), key=lambda group: group.operation or 0)
        for kind, members in groups.items()
        if len({group.operation for group in members}) > 1
    }


def _with_remaining(groups: list[RasGroup]) -> list[RasGroup]:
    """The groups; where RAS names the ranks of all but one, that one has the remaining ranks."""
    unnamed = [group for group in groups if len(group.ranks) != group.num_ranks]
    size = sum(group.num_ranks for group in groups)
    if len(unnamed) != 1 or unnamed[0].ranks or size > MAX_RANKS:
        return groups
    remaining = set(range(size)).difference(*(group.ranks for group in groups))
    if len(remaining) != unnamed[0].num_ranks:
        return groups
    return [replace(one, ranks=tuple(sorted(remaining))) if one is unnamed[0] else one for one in groups]


def _groups_of_counts(ranks: tuple[RasRank, ...]) -> dict[str, list[RasGroup]]:
    """The same from the counts of the JSON form."""
    counted = [rank for rank in ranks if rank.counts]
    groups: dict[str, list[RasGroup]] = {}
    for kind in dict.fromkeys(kind for rank in counted for kind in rank.counts):
        by_count: dict[int, list[int]] = {}
        for rank in counted:
            by_count.setdefault(rank.counts.get(kind, 0), []).append(rank.rank)
        groups[kind] = [
            RasGroup(len(members), f"launched up to operation {count}", kind, count, tuple(sorted(members)))
            for count, members in by_count.items()
        ]
    return groups


def ranks_behind(communicator: RasCommunicator) -> list[int]:
    """Ranks that launched fewer calls than the foremost, as far as they are named; those that are dead or do not
    answer; those in another state than most."""
    behind = {rank.rank for rank in communicator.missing}
    behind |= {rank for group in communicator.groups if group.operation is None for rank in group.ranks}
    behind |= {rank for groups in launch_groups(communicator).values() for group in groups[:-1] for rank in group.ranks}
    return sorted(behind)
