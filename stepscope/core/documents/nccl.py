"""Report on NCCL (transports, bandwidths, findings): the typed form of `stepscope.nccl/1`."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.core.documents.evidence import Notice
from stepscope.core.hardware.health import Severity

NCCL_SCHEMA = "stepscope.nccl/1"


@dataclass(frozen=True, slots=True)
class NcclFinding:
    """Something that is wrong, or that one should know.

    Attributes:
        code: what kind, for programs.
        message: what, and what to do, in a line.
        file, line: where it is said; line 0 where a file as a whole says it.
        ranks: whom it concerns; empty: all, or not known.
    """

    code: str
    severity: Severity
    message: str
    file: str
    line: int
    ranks: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Communicator:
    """Ranks that communicate with each other.

    Attributes:
        id: NCCL's, the same on all its ranks.
        ranks: those whose logs are here.
        joined: those of them that have joined.
        num_nodes, channels, nvls_channels: None where no line says so.
        network: "IB", "Socket", "AWS Libfabric"; between nodes it is used.
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
    """The way from one rank to another. In JSON `source` and `target` are called from and to.

    Attributes:
        via: P2P, SHM, NET/IB, NET/Socket, NVLS, as the log says; `detail` is the rest of it.
        channels: how many go this way.
        expected: what it should be.
        ok: whether it is.
        why: why not, as far as log and environment tell.
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
    """How fast one collective of one size was: bus bandwidth by nccl-tests' definition, GB/s, median over calls.

    Of a call that several ranks tell of, the shortest time counts: the others waited for the last to come.

    Attributes:
        bytes: of one call; None where only a range is told, as `size` says.
        last_arriver: the rank that came last most often; `last_share` of the calls that several ranks tell of.
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
    """What a topology shows of one machine.

    Attributes:
        gpu_link_gbs: GB/s of the slowest GPU's slot, one way; None where a virtual machine does not say.
    """

    file: str
    num_processors: int
    num_gpus: int
    num_network_cards: int
    gpu_link_gbs: float | None


@dataclass(frozen=True, slots=True)
class PlannedWays:
    """What NCCL planned over a machine's devices, as its file of graphs says; GB/s is a channel's."""

    file: str
    pattern: str
    channels: int
    inside: str
    inside_gbs: float
    between: str
    between_gbs: float


@dataclass(frozen=True, slots=True)
class NcclReport:
    """All that `stepscope nccl` says."""

    versions: list[str]
    communicators: list[Communicator]
    transports: list[Transport]
    bandwidths: list[Bandwidth]
    devices: list[Devices]
    planned: list[PlannedWays]
    findings: list[NcclFinding]
    warnings: list[Notice] = field(default_factory=list)
    schema: str = NCCL_SCHEMA
