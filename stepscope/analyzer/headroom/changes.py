"""Changes: the type of a model of one known change, and the inputs that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from stepscope.analyzer.headroom.step_model import Span, StepModel
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.what_if.replay import ReplayModel
from stepscope.core.documents.analysis import Analysis
from stepscope.core.documents.training_settings import TrainingSettings
from stepscope.core.vocabulary import Change

MOST_USED = 0.9
"""Share of a GPU's memory that a job may use; the rest is for the context and fragments."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What models of changes know of a job beside its step.

    Attributes:
        analysis: with its verdict and its training time.
        views: one a rank.
        settings: of the run; None where unknown.
        peak_memory_bytes: most memory that a rank's allocator held; None where not recorded.
        batch_bytes: what a batch takes of it: the peak above what stays allocated between steps.
        memory_bytes: of a GPU; None where unknown.
        host_ms: what the host needs for a step without the profiler; None where no light capture shows it.
        replay: makes the model of all ranks' traces; None or a call's None where they cannot be replayed.
    """

    analysis: Analysis
    views: Mapping[int, RankView]
    settings: TrainingSettings | None = None
    peak_memory_bytes: float | None = None
    batch_bytes: float | None = None
    memory_bytes: int | None = None
    host_ms: Span | None = None
    replay: Callable[[], ReplayModel | None] | None = None

    @property
    def free_memory_bytes(self) -> float | None:
        """Memory that a rank leaves free of what it may use; None where unknown."""
        if self.peak_memory_bytes is None or self.memory_bytes is None:
            return None
        return max(MOST_USED * self.memory_bytes - self.peak_memory_bytes, 0.0)


class Changed(NamedTuple):
    """A step after a change.

    Attributes:
        why: what the change replaces, in one clause with its numbers.
        error: relative error of the model; None where unknown.
        basis: model or replay.
        knob: what to write, where it depends on the job's sizes; else that of the kind of change.
    """

    step: StepModel
    why: str
    error: float | None = None
    knob: str = ""
    basis: str = "model"


ChangeModel = Callable[[StepModel, JobFacts], Changed | None]
"""The step after a change, by the step before it; None where there is nothing to change or not enough is known."""


class Effort(IntEnum):
    """What a change asks for."""

    A_SETTING = 0
    """an option, a size or a call: certain, and as exact as the model"""
    A_COMPILER = 1
    """minutes of compiling, and a model that the compiler can read"""
    OTHER_TRAINING = 2
    """another number of samples a step, which changes what is learned"""


class KnownChange(NamedTuple):
    """A kind of change with its model.

    Attributes:
        asks: how much it asks for; the order of changes is by this first, then by gain.
        contains: changes that gain nothing after it, and come before it.
    """

    change: Change
    model: ChangeModel
    asks: Effort = Effort.A_SETTING
    contains: frozenset[Change] = frozenset()
