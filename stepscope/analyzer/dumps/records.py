"""Attempts and steps of a run, by which a dump belongs to the job as it ended or to an earlier time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from stepscope.core.documents.analysis import EvidenceLayer
from stepscope.core.documents.run_directory import Attempt, Step
from stepscope.core.vocabulary import Cause, Evidence, Notice, Reason

_FINISHED = "finished"


class Ending(NamedTuple):
    """How a job ended by its dumps: the fields of a verdict."""

    cause: Cause
    reasons: list[Reason]
    ranks: list[int]
    confidence: float
    summary: str
    evidence: list[Evidence]
    actions: list[str]


class Finding(NamedTuple):
    """What the dumps of one kind add: a layer of evidence, notices, and how the job ended; None: not by these."""

    layer: EvidenceLayer
    notices: Sequence[Notice] = ()
    ending: Ending | None = None


class JobRecords(NamedTuple):
    """What a run records beside its dumps.

    Attributes:
        world_size: number of ranks.
        attempts: as the manifest lists them.
        steps: by rank, those of all attempts in order.
        hosts: names by rank; unknown ones are left out.
    """

    world_size: int
    attempts: Sequence[Attempt] = ()
    steps: Mapping[int, Sequence[Step]] = MappingProxyType({})
    hosts: Mapping[int, str] = MappingProxyType({})

    def is_of_earlier_attempt(self, time_ns: int | None) -> bool:
        """Whether something happened before the last attempt began."""
        return len(self.attempts) > 1 and time_ns is not None and time_ns < self.attempts[-1].start_ns

    def went_on_ns(self, rank: int, time_ns: int) -> int | None:
        """When a rank had trained on after a moment: the end of a later step, or of that step of a finished job."""
        later = [step for step in self.steps.get(rank, ()) if step.end_ns > time_ns]
        return min((step.end_ns for step in later if self._is_finished or step.start_ns > time_ns), default=None)

    def may_have_gone_on(self, ranks: Sequence[int]) -> bool:
        """Whether the job finished, and no record of these ranks tells when they ended their steps."""
        return self._is_finished and not any(self.steps.get(rank) for rank in ranks)

    @property
    def _is_finished(self) -> bool:
        return bool(self.attempts) and self.attempts[-1].ended == _FINISHED
