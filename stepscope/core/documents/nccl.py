"""Report on NCCL's files, `stepscope.nccl/1`: facts, transports, bandwidths, findings."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from stepscope.core.documents.nccl_rank_status import RasRow
from stepscope.core.hardware.health import Severity
from stepscope.core.vocabulary import Notice

NCCL_SCHEMA = "stepscope.nccl/1"

NOTHING_CHECKED = "nothing_checked"
"""Code of the warning that a report without findings has where nothing in the files could be checked."""

MEAN_OVER_SIZES = "mean over sizes"
"""Size of the one row that a run of nccl-tests has among the bandwidths."""


@dataclass(frozen=True, slots=True)
class NcclFinding:
    """A problem or a note.

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
    """A communicator of NCCL.

    Attributes:
        num_ranks: members.
        id: NCCL's id, the same on all ranks.
        ranks: those with logs.
        joined: those of them that have joined.
        num_nodes, channels, nvls_channels: None where no line has them.
        network: "IB", "Socket", "AWS Libfabric"; used between nodes.
        init_seconds: the longest of any rank.
        init_parts: parts of that time in seconds by NCCL's names: "kernels", "bootstrap", "topo"; empty where unknown.
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
    init_parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Transport:
    """The transport from one rank to another. In JSON `source` and `target` are named `from` and `to`.

    Attributes:
        source, target: ranks in the communicator.
        detail: the rest of the log's text.
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
    """Bus bandwidth of one collective at one size, by nccl-tests' definition, in GB/s; median over calls.

    Where several ranks have times of a call, the shortest counts: the other ranks waited for the last one to arrive.

    Attributes:
        communicator: its id.
        collective: AllReduce, AllGather, ...
        num_ranks: members of the communicator; None where unknown.
        size: of a call as words, also where only a range is known.
        count: calls with times.
        bus_bandwidth_gbs: median over calls.
        last_share: share of calls in which that rank arrived last; None where unknown.
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
    """The devices of one machine, by all topologies of it.

    Attributes:
        num_processors: CPU sockets or NUMA nodes.
        num_gpus: GPUs of the machine.
        file: the first of them.
        num_network_cards: ports that NCCL can use; the cards, where a topology names no ports.
        gpu_link_gbs: GB/s of the slowest GPU's slot in one direction; None in a virtual machine that hides it.
        machine: host, where a log names it, else empty.
        network_card_gbs: GB/s of the slowest port; None where unknown.
        nvlink_gbs: GB/s of all NVLinks of the GPU with the least; None where unknown or without NVLink.
        nvlinks: number of NVLinks of the GPU with the fewest, where a topology file tells.
        links: "NVLink", or "XGMI" of AMD's GPUs, whose links `nvlink_gbs` and `nvlinks` are then; empty without.
    """

    file: str
    num_processors: int
    num_gpus: int
    num_network_cards: int
    gpu_link_gbs: float | None
    machine: str = ""
    network_card_gbs: float | None = None
    nvlink_gbs: float | None = None
    nvlinks: int | None = None
    links: str = ""


@dataclass(frozen=True, slots=True)
class PlannedWays:
    """NCCL's plan over a machine's devices, from its graph file; GB/s are per channel.

    Attributes:
        file: the graph file.
        pattern: ring, tree, ... as NCCL names it.
        channels: how many.
        inside, between: path inside a machine and between machines, as NCCL names it.
        inside_gbs, between_gbs: of a channel.
    """

    file: str
    pattern: str
    channels: int
    inside: str
    inside_gbs: float
    between: str
    between_gbs: float


@dataclass(frozen=True, slots=True)
class NetworkUse:
    """A network that NCCL chose, and why.

    Attributes:
        name: as in the log: "Socket", "IB", "AWS Libfabric".
        cards: cards or interfaces: "mlx5_0:1/RoCE", "eth0".
        why: the reason that NCCL uses this network and none faster; empty for all others than sockets.
        direct_memory: whether its cards read GPU memory (GPUDirect RDMA); None where the log does not tell.
        machines: hosts that use it.
    """

    name: str
    cards: list[str]
    why: str
    direct_memory: bool | None
    machines: list[str]


@dataclass(frozen=True, slots=True)
class SettingUse:
    """A variable of NCCL's that is set, where it is named first.

    Attributes:
        name, value: of the variable.
        file, line: where it is named first; line 0 is the whole file.
    """

    name: str
    value: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class BenchmarkSize:
    """One size of an nccl-tests run; GB/s of bus bandwidth.

    Attributes:
        type, reduction: "float", "sum"; `reduction` is empty where the operation has none.
        in_place_us, in_place_bus_gbs: None where not measured.
        wrong: number of wrong values; None where not checked.
    """

    bytes: int
    type: str
    reduction: str
    us: float
    bus_gbs: float
    in_place_us: float | None
    in_place_bus_gbs: float | None
    wrong: int | None


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """One run of nccl-tests.

    Attributes:
        file, line: where the run begins.
        test: "all_reduce"; empty where the log does not name it.
        num_ranks, machines, gpu: by the run's own list of ranks, the number by the highest one; None or empty without.
        sizes: rows of its table.
        peak_bus_gbs, peak_bytes: highest bus bandwidth of the table, in or out of place, and at which size.
        mean_bus_gbs: over all sizes, small ones too, as the run prints it.
        ok: whether it ended without an error and without wrong values; None where its end is not in the file.
        why: reason why not.
    """

    test: str
    file: str
    line: int
    num_ranks: int | None
    machines: list[str]
    gpu: str
    sizes: list[BenchmarkSize]
    peak_bus_gbs: float | None
    peak_bytes: int | None
    mean_bus_gbs: float | None
    ok: bool | None
    why: str

    @property
    def has_missing_rows(self) -> bool:
        """Whether not all rows were read: there is none, or the mean is above the best one."""
        return self.mean_bus_gbs is not None and self.mean_bus_gbs > (self.peak_bus_gbs or 0.0) + 0.01


@dataclass(frozen=True, slots=True)
class RasSummary:
    """What one answer of NCCL's RAS service says about the job; rows are those of its table.

    Attributes:
        file, line: where the answer begins.
        version: of NCCL.
        num_nodes, num_gpus: of the job; None where the answer does not say.
        communicators: rows of its table.
    """

    file: str
    line: int
    version: str
    num_nodes: int | None
    num_gpus: int | None
    communicators: list[RasRow]


@dataclass(frozen=True, slots=True)
class NcclReport:
    """The document `stepscope.nccl/1`.

    Attributes:
        machines: hosts that the logs name.
        num_processes: processes that the logs name.
        cuda_drivers: versions of CUDA that the drivers support: "13.0".
        networks: one entry for each network, set of cards and reason.
        settings: NCCL's variables that are set, also those without an effect.
        ras: the last answer in each file.
    """

    versions: list[str]
    communicators: list[Communicator]
    transports: list[Transport]
    bandwidths: list[Bandwidth]
    devices: list[Devices]
    planned: list[PlannedWays]
    findings: list[NcclFinding]
    machines: list[str] = field(default_factory=list)
    num_processes: int = 0
    cuda_drivers: list[str] = field(default_factory=list)
    networks: list[NetworkUse] = field(default_factory=list)
    settings: list[SettingUse] = field(default_factory=list)
    benchmarks: list[BenchmarkRun] = field(default_factory=list)
    ras: list[RasSummary] = field(default_factory=list)
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
