"""Facts about NCCL (logs, topology files, inspector, RAS, xpu_timer's hang flags), and the report made from them.

Each fact of a log has its file and line. The report is the typed form of `stepscope.nccl/1`: transports, bandwidths,
findings.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from stepscope.core.hardware.health import Severity
from stepscope.core.vocabulary import Notice


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Typed place of a line in an NCCL log, and the process that wrote it.

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
class LogEvent:
    """Typed fact of an NCCL log, a trainer's log or the output of nccl-tests, and its place there."""

    place: LogPlace


@dataclass(frozen=True, slots=True)
class Version(LogEvent):
    """Typed fact of an NCCL log: version of NCCL."""

    version: str


@dataclass(frozen=True, slots=True)
class Setting(LogEvent):
    """Typed fact of an NCCL log: an environment variable that NCCL uses."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class NoInfiniBand(LogEvent):
    """Typed fact of an NCCL log: NCCL found no InfiniBand or RoCE card."""


@dataclass(frozen=True, slots=True)
class NoPlugin(LogEvent):
    """Typed fact of an NCCL log: a network plugin that could not be loaded."""

    library: str


@dataclass(frozen=True, slots=True)
class Cards(LogEvent):
    """Typed fact of an NCCL log: the network cards of one kind ("IB", "Socket"), as "mlx5_0:1/RoCE"."""

    kind: str
    cards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Network(LogEvent):
    """Typed fact of an NCCL log: the network that NCCL uses: "IB", "Socket", "AWS Libfabric"."""

    name: str


@dataclass(frozen=True, slots=True)
class DirectMemory(LogEvent):
    """Typed fact of an NCCL log: whether a card may access GPU memory directly (GPUDirect RDMA)."""

    card: str
    is_enabled: bool


@dataclass(frozen=True, slots=True)
class Join(LogEvent):
    """Typed fact of an NCCL log: a rank begins to join a communicator, or has joined it (`is_complete`)."""

    communicator: str
    rank: int
    num_ranks: int
    device: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class JoinSeconds(LogEvent):
    """Typed fact of an NCCL log: time that a rank took to join its communicator."""

    rank: int
    num_ranks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Shape(LogEvent):
    """Typed fact of an NCCL log: distribution of a communicator over nodes."""

    rank: int
    num_ranks: int
    num_nodes: int
    num_local_ranks: int


@dataclass(frozen=True, slots=True)
class RingPath(LogEvent):
    """Typed fact of an NCCL log: a channel's transport between two ranks, "P2P/CUMEM", "NET/IB/0/GDRDMA"."""

    source: int
    target: int
    via: str


@dataclass(frozen=True, slots=True)
class Rings(LogEvent):
    """Typed fact of an NCCL log: the rings are connected; `uses_direct_memory`: any of them uses GPUDirect RDMA."""

    uses_direct_memory: bool


@dataclass(frozen=True, slots=True)
class Channels(LogEvent):
    """Typed fact of an NCCL log: number of channels for collectives, and for NVLS (through the switch)."""

    collective: int
    nvls: int


@dataclass(frozen=True, slots=True)
class FailedTransfer(LogEvent):
    """Typed fact of an NCCL log: a transfer that a card ended with an error: InfiniBand's status, the vendor's."""

    peer: str
    status: int
    vendor_error: int
    card: str


@dataclass(frozen=True, slots=True)
class CardEvent(LogEvent):
    """Typed fact of an NCCL log: an event of a card: "port error", "speed change detected"."""

    event: str


@dataclass(frozen=True, slots=True)
class Warned(LogEvent):
    """Typed fact of an NCCL log: any other line of level WARN."""

    text: str


@dataclass(frozen=True, slots=True)
class TimedOut(LogEvent):
    """Typed fact of an NCCL log: a collective that torch's watchdog aborted.

    Attributes:
        sequence: its number in the group.
        operation: "ALLREDUCE".
        milliseconds: its age.
        group: torch's name of the process group: "0(default_pg)"; None where unknown.
    """

    rank: int
    sequence: int
    operation: str
    milliseconds: int
    group: str | None = None


@dataclass(frozen=True, slots=True)
class NcclTestBandwidth(LogEvent):
    """Typed fact of an NCCL log: mean bus bandwidth of an nccl-tests run, GB/s; its name follows in `NcclTestEnd`."""

    bus_bandwidth_gbs: float


@dataclass(frozen=True, slots=True)
class NcclTestEnd(LogEvent):
    """Typed fact of an NCCL log: end of an nccl-tests run: "all_gather_perf"."""

    test: str


@dataclass(frozen=True, slots=True)
class TrainerTimes(LogEvent):
    """Typed fact of an NCCL log: a trainer's own breakdown of a step in ms by part, as logged by DeepSpeed."""

    parts: dict[str, float]


@dataclass(frozen=True, slots=True)
class TopologyNode(LogEvent):
    """Typed fact of an NCCL log: one line of the topology dump, with depth, kind and name, and its link in GB/s."""

    depth: int
    link: str
    gbs: float
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class PlannedWay(LogEvent):
    """Typed fact of an NCCL log: planned GB/s of a channel within and between nodes, and the slowest path."""

    pattern: str
    num_channels: int
    inside_gbs: float
    between_gbs: float
    inside: str
    between: str


@dataclass(frozen=True, slots=True)
class InspectorCall:
    """Typed NCCL input: one collective or message, measured on one rank by NCCL's inspector plugin.

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
    """Typed NCCL input: state of a rank in RAS; counts of collectives by kind, empty where the rank does not answer."""

    rank: int
    host: str
    process: int
    counts: dict[str, int] = field(default_factory=dict)
    is_unresponsive: bool = False
    is_dead: bool = False


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """Typed NCCL input: state of a communicator in RAS.

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
    """Typed NCCL input: one answer of the RAS service.

    Attributes:
        dead: lines on processes that are considered dead or missing.
    """

    file: str
    communicators: tuple[RasCommunicator, ...]
    dead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HangFlags:
    """Typed NCCL input: hang flags of xpu_timer by rank."""

    file: str
    flagged: tuple[int, ...]
    clear: tuple[int, ...]


def ranks_with_fewer_calls(communicator: RasCommunicator) -> list[int]:
    """NCCL document: ranks that launched fewer collectives than most, by their counts, which only RAS's JSON has."""
    totals = {rank.rank: sum(rank.counts.values()) for rank in communicator.ranks if rank.counts}
    if len(set(totals.values())) < 2:
        return []
    most, _ = max(Counter(totals.values()).items(), key=lambda entry: (entry[1], entry[0]))
    return sorted(rank for rank, total in totals.items() if total < most)


def ranks_behind(communicator: RasCommunicator) -> list[int]:
    """NCCL document: ranks with fewer calls, dead or unresponsive ranks, and those that a problem names."""
    missing = {rank.rank for rank in communicator.missing}
    with_problem = {rank for ranks, _ in communicator.problems for rank in ranks}
    return sorted(missing | with_problem | set(ranks_with_fewer_calls(communicator)))


NCCL_SCHEMA = "stepscope.nccl/1"


@dataclass(frozen=True, slots=True)
class NcclFinding:
    """NCCL document: a problem or a note.

    Attributes:
        code: kind, for programs.
        message: the problem and what to do, in one line.
        file, line: source; line 0 is the whole file.
        ranks: affected ranks; empty: all, or unknown.
    """

    code: str
    severity: Severity
    message: str
    file: str
    line: int
    ranks: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Communicator:
    """NCCL document: a communicator of NCCL.

    Attributes:
        id: NCCL's id, the same on all ranks.
        ranks: those with logs.
        joined: those of them that have joined.
        num_nodes, channels, nvls_channels: None where no line has them.
        network: "IB", "Socket", "AWS Libfabric"; used between nodes.
        init_seconds: the longest of any rank.
    """

    id: str
    num_ranks: int
    ranks: list[int]
    joined: list[int]
    num_nodes: int | None
    channels: int | None
    nvls_channels: int | None
    network: str | None
    init_seconds: float | None


@dataclass(frozen=True, slots=True)
class Transport:
    """NCCL document: the transport from one rank to another. In JSON `source` and `target` are named `from` and `to`.

    Attributes:
        via: P2P, SHM, NET/IB, NET/Socket or NVLS, as in the log; `detail` is the rest of the log's text.
        channels: number of channels that use it.
        expected: the transport that it should be.
        ok: whether it is the expected one.
        why: reason why not, as far as log and environment show.
    """

    source: int
    target: int
    via: str
    detail: str
    channels: int
    expected: str
    ok: bool
    why: str


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """NCCL document: bus bandwidth of one collective at one size, as nccl-tests defines it, GB/s; median over calls.

    Where several ranks have times of a call, the shortest counts: the other ranks waited for the last one to arrive.

    Attributes:
        bytes: of one call; None where only a range is known, which is in `size`.
        last_arriver: the rank that arrived last most often, in `last_share` of the calls with times of several ranks.
    """

    communicator: str
    collective: str
    num_ranks: int | None
    bytes: int | None
    size: str
    count: int
    bus_bandwidth_gbs: float
    last_arriver: int | None = None
    last_share: float | None = None


@dataclass(frozen=True, slots=True)
class Devices:
    """NCCL document: the devices of one machine in a topology file.

    Attributes:
        gpu_link_gbs: GB/s of the slowest GPU's slot in one direction; None in a virtual machine that hides it.
    """

    file: str
    num_processors: int
    num_gpus: int
    num_network_cards: int
    gpu_link_gbs: float | None


@dataclass(frozen=True, slots=True)
class PlannedWays:
    """NCCL document: NCCL's plan over a machine's devices, from its graph file; GB/s are per channel."""

    file: str
    pattern: str
    channels: int
    inside: str
    inside_gbs: float
    between: str
    between_gbs: float


@dataclass(frozen=True, slots=True)
class NcclReport:
    """The document `stepscope.nccl/1`."""

    versions: list[str]
    communicators: list[Communicator]
    transports: list[Transport]
    bandwidths: list[Bandwidth]
    devices: list[Devices]
    planned: list[PlannedWays]
    findings: list[NcclFinding]
    warnings: list[Notice] = field(default_factory=list)
    schema: str = NCCL_SCHEMA


def nccl_document(report: NcclReport) -> dict[str, Any]:
    """The JSON document of an NCCL report, which names the two ends of a transport `from` and `to`."""
    document = asdict(report)
    document["transports"] = [
        {"from": transport.pop("source"), "to": transport.pop("target"), **transport}
        for transport in document["transports"]
    ]
    return document
