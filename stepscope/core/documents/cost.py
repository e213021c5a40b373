"""Cost of GPUs by job, user, team or node: the typed form of `stepscope.cost/1`.

GPU-hours are hours of whole cards: a MIG instance counts as its part of the card, and jobs that share a device in turns
have equal parts of it, so that all rows and what no job has add up to the wall-clock time of the cards.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.core.vocabulary import GoodputClass, Notice

COST_SCHEMA = "stepscope.cost/1"


@dataclass(frozen=True, slots=True)
class CostFigures:
    """Cost document: GPU-hours, energy and money.

    Attributes:
        gpu_hours: held by jobs, or of the cards.
        busy_hours: of them, those of jobs on whose devices kernels ran.
        held_but_idle_hours: of them, those of jobs on whose devices no kernel ran for minutes.
        unknown_hours: of them, those whose use is not known.
        energy_kwh: of the cards, by time; None where no card said its power.
        money: in the rate card's currency; None where a rate is missing.
        idle_money: the part of it for `held_but_idle_hours`.
    """

    gpu_hours: float = 0.0
    busy_hours: float = 0.0
    held_but_idle_hours: float = 0.0
    unknown_hours: float = 0.0
    energy_kwh: float | None = None
    money: float | None = None
    idle_money: float | None = None


@dataclass(frozen=True, slots=True)
class CostRow:
    """Cost document: cost of one job, user, team or node.

    Attributes:
        user, team: of a job; None in other rows, and where the node did not know them.
        key: labels that identify it: job_kind and job_id, user, team, or instance.
        waste: GPU-hours by class of goodput, of jobs whose runs are known; `productive_training` is none.
        jobs: how many jobs are in it.
    """

    key: dict[str, str]
    figures: CostFigures
    jobs: int = 1
    user: str | None = None
    team: str | None = None
    waste: dict[GoodputClass, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CostReport:
    """The document `stepscope.cost/1`.

    Attributes:
        by: job | user | team | node.
        start_ns, end_ns, step_ns: the time, ns since the epoch, and how finely it was looked at.
        num_cards: cards that were there at any time.
        rows: most GPU-hours first.
        held: all jobs together.
        free: cards and parts of cards that no job had: in use by nobody, or by processes of no known job.
        cards: `held` and `free` together: the wall-clock time of the cards, while they were recorded.
        currency: of the money; None without a rate card.
    """

    by: str
    start_ns: int
    end_ns: int
    step_ns: int
    num_cards: int
    rows: list[CostRow]
    held: CostFigures
    free: CostFigures
    cards: CostFigures
    currency: str | None = None
    warnings: list[Notice] = field(default_factory=list)
    schema: str = COST_SCHEMA
