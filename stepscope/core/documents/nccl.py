"""Report on NCCL (transports, bandwidths, findings): the typed form of `stepscope.nccl/1`."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.core.documents.evidence import Notice
from stepscope.core.hardware.health import Severity

NCCL_SCHEMA = "stepscope.nccl/1"


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
    """The transport from one rank to another. In JSON `source` and `target` are named `from` and `to`.

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
    """Bus bandwidth of one collective at one size, by nccl-tests' definition, in GB/s; median over calls.

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
    """The devices of one machine in a topology file.

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
    """NCCL's plan over a machine's devices, from its graph file; GB/s are per channel."""

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
