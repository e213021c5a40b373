"""What do NCCL's other sources say: its inspector, its RAS service, and the hang flags of xpu_timer?"""

from __future__ import annotations

from dataclasses import dataclass, field


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
