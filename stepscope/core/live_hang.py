"""Does a job hang while it runs? What each rank says of its long step, and the `stepscope.live-hang/1` document."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from stepscope.core.causes import Reason
from stepscope.core.hang import HangEvidence, HangKind

LIVE_HANG_SCHEMA = "stepscope.live-hang/1"
RANK_STATE_SCHEMA = "stepscope.rank-state/1"
STALE_SECONDS = 15.0
"""Ranks say how they are every few seconds: who has not for so long does not any more."""


@dataclass(frozen=True, slots=True)
class RankState:
    """How one rank is whose step lasts long, as it says itself.

    Attributes:
        step: the open one.
        since_ns: when it began to say so, ns since the epoch.
        seen_ns: when it looked last.
        age_seconds: of the step.
        limit_seconds: the age from which that is worth a look.
        is_still: its training thread gets nowhere: no code, no bytes, no helper that computes.
        doing: what takes long by nature: a named phase, "compilation", "a checkpoint"; empty: nothing of that.
        where: the innermost thing that has a name: a collective, a function.
        is_in_collective: its Python stands in a call of torch.distributed.
    """

    rank: int
    host: str
    step: int
    since_ns: int
    seen_ns: int
    age_seconds: float
    limit_seconds: float
    is_still: bool
    doing: str
    where: str
    is_in_collective: bool


class LiveHangState(StrEnum):
    """What is to be said of the job."""

    NONE = "none"  # no step lasts longer than it may
    UNDECIDED = "undecided"  # one does; it is too early to say more
    BUSY = "busy"  # it is waited for ranks that are at work
    HANG = "hang"


@dataclass(frozen=True, slots=True)
class LiveHang:
    """The answer at one moment.

    Attributes:
        kind: what of the guilty is stuck; None without a hang.
        ranks: whom it names: the guilty, or those at work.
        step, age_seconds: the oldest open step and its age.
        silent_ranks: those that should have said something and have not.
    """

    state: LiveHangState
    kind: HangKind | None = None
    reasons: list[Reason] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    confidence: float = 0.0
    summary: str = ""
    evidence: list[HangEvidence] = field(default_factory=list)
    step: int | None = None
    age_seconds: float = 0.0
    silent_ranks: list[int] = field(default_factory=list)
    schema: str = LIVE_HANG_SCHEMA
