"""Changes: the type of a model of one known change, and the inputs that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stepscope.analyzer.headroom.step_model import StepModel
from stepscope.analyzer.rank_view import RankView
from stepscope.core.documents.analysis import Analysis
from stepscope.core.documents.training_settings import TrainingSettings
from stepscope.core.vocabulary import Change


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What models of changes know of a job beside its step.

    Attributes:
        analysis: with its verdict and its training time.
        views: one a rank.
        settings: of the run; None where unknown.
        peak_memory_bytes: most memory that a rank's allocator held; None where not recorded.
        memory_bytes: of a GPU; None where unknown.
    """

    analysis: Analysis
    views: Mapping[int, RankView]
    settings: TrainingSettings | None = None
    peak_memory_bytes: float | None = None
    memory_bytes: int | None = None


class Changed(NamedTuple):
    """A step after a change.

    Attributes:
        why: what the change replaces, in one clause with its numbers.
        error: relative error of the model; None where unknown.
    """

    step: StepModel
    why: str
    error: float | None = None


ChangeModel = Callable[[StepModel, JobFacts], Changed | None]
"""The step after a change, by the step before it; None where there is nothing to change or not enough is known."""


class KnownChange(NamedTuple):
    """A kind of change with its model.

    Attributes:
        instead_of: changes that it contains, so that they gain nothing after it.
    """

    change: Change
    model: ChangeModel
    instead_of: frozenset[Change] = frozenset()
