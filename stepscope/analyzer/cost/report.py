"""Cost report: shares of cards' time with a rate card, by job, user, team or node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stepscope.analyzer.cost.allocation import Key, Share
from stepscope.core.documents.cost import CostFigures, CostRow
from stepscope.core.vocabulary import GoodputClass

BY = ("job", "user", "team", "node")
NOBODY = "(not known)"
"""User or team of a job that does not say it."""


@dataclass(frozen=True, slots=True)
class RateCard:
    """Prices.

    Attributes:
        gpu_hour: of a card by model; "default" for others.
        kwh: of energy; 0 where it is part of `gpu_hour`.
        pue: power usage effectiveness: energy of the site / energy of its computers.
    """

    currency: str
    gpu_hour: Mapping[str, float]
    kwh: float = 0.0
    pue: float = 1.0

    def rate(self, model: str) -> float | None:
        """Price of an hour of a card; None where the rate card has none."""
        return self.gpu_hour.get(model, self.gpu_hour.get("default"))


@dataclass(frozen=True, slots=True)
class CostedJob:
    """What is known of a job beside its time.

    Attributes:
        key: its labels, job_kind and job_id.
        waste: GPU-hours of its runs by class of goodput.
    """

    key: Mapping[str, str]
    user: str | None = None
    team: str | None = None
    waste: Mapping[GoodputClass, float] = field(default_factory=dict)


def cost_rows(
    shares: Mapping[Key, Share], jobs: Mapping[str, CostedJob], by: str, step_hours: float, rates: RateCard | None
) -> list[CostRow]:
    """Rows by job, user, team or node, the one with most GPU-hours first.

    Args:
        jobs: by the name that the shares have.
        step_hours: length of a step.
    """
    groups: dict[tuple[tuple[str, str], ...], dict[Key, Share]] = defaultdict(dict)
    for key, share in shares.items():
        job, node, _ = key
        if job is not None:
            groups[_group(jobs[job], node, by)][key] = share
    rows = []
    for group, own in groups.items():
        members = {job for job, _, _ in own if job is not None}
        only = jobs[next(iter(members))] if by == "job" else None
        rows.append(
            CostRow(
                dict(group),
                figures(own, step_hours, rates),
                len(members),
                None if only is None else only.user,
                None if only is None else only.team,
                {} if by == "node" else _waste(jobs[job].waste for job in members),
            )
        )
    return sorted(rows, key=lambda row: (-row.figures.gpu_hours, sorted(row.key.items())))


def figures(shares: Mapping[Key, Share], step_hours: float, rates: RateCard | None) -> CostFigures:
    """GPU-hours, energy and money of shares together."""
    gpu_steps, idle, unknown = (
        sum((getattr(share, name) for share in shares.values()), start=0)
        for name in ("steps", "idle_steps", "unknown_steps")
    )
    joules = [share.joules for share in shares.values() if share.joules is not None]
    kwh = sum(joules) / 3.6e6 if joules else None
    money = idle_money = None
    if rates is not None:
        prices = {model: rates.rate(model) for _, _, model in shares}
        if None not in prices.values():
            money, idle_money = (
                sum(float(getattr(share, name)) * step_hours * (prices[key[2]] or 0.0) for key, share in shares.items())
                for name in ("steps", "idle_steps")
            )
            money += (kwh or 0.0) * rates.pue * rates.kwh
    return CostFigures(
        gpu_hours=float(gpu_steps) * step_hours,
        busy_hours=float(gpu_steps - idle - unknown) * step_hours,
        held_but_idle_hours=float(idle) * step_hours,
        unknown_hours=float(unknown) * step_hours,
        energy_kwh=kwh,
        money=money,
        idle_money=idle_money,
    )


def _group(job: CostedJob, node: str, by: str) -> tuple[tuple[str, str], ...]:
    if by == "job":
        return tuple(sorted(job.key.items()))
    if by == "node":
        return (("instance", node),)
    return ((by, (job.user if by == "user" else job.team) or NOBODY),)


def _waste(all_waste: Iterable[Mapping[GoodputClass, float]]) -> dict[GoodputClass, float]:
    total: dict[GoodputClass, float] = defaultdict(float)
    for waste in all_waste:
        for kind, hours in waste.items():
            total[kind] += hours
    return dict(total)
