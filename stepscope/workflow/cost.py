"""Cost of GPUs from the metric history: who had which card when, its energy and price, and what jobs wasted of it."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.analyzer.cost.allocation import CardTime, DeviceTime, Flags, allocate
from stepscope.analyzer.cost.report import BY, CostedJob, RateCard, cost_rows, figures
from stepscope.core.documents.cost import CostReport
from stepscope.core.documents.jobs import UseState
from stepscope.core.errors import DataError, UsageError, from_os_error
from stepscope.core.metrics.agent import JOB
from stepscope.core.metrics.readings import GPU
from stepscope.core.text.numbers import counted, listed, unknown_name
from stepscope.core.vocabulary import GoodputClass, Notice
from stepscope.store.files import read_text
from stepscope.store.history.questions import (
    GroupBy,
    Labels,
    MetricHistory,
    Question,
    Statistic,
    TimeRange,
    Where,
)
from stepscope.store.rank_places import read_rank_places
from stepscope.workflow.goodput import read_goodput

_LEAST_STEP_NS, _MAX_STEPS = 60 * 10**9, 3000
_NODES_AT_ONCE = 64
_USE, _HOLDS, _FACTS = GPU + "use_state", GPU + "job_info", JOB + "info"
_KEYS = {"currency", "gpu_hour", "energy"}


def read_rates(path: Path) -> RateCard:
    """The rate card in a TOML file.

    Raises:
        DataError: it cannot be read, or is not a rate card.
    """
    try:
        document = tomllib.loads(read_text(path))
        unknown = document.keys() - _KEYS
        if unknown:
            raise ValueError(f"unknown {listed(sorted(unknown), 4)}")
        energy = document.get("energy", {})
        rates = {str(model): _price(price) for model, price in document["gpu_hour"].items()}
        kwh, pue = _price(energy.get("price_per_kwh", 0.0)), _price(energy.get("pue", 1.0))
        return RateCard(str(document.get("currency", "USD")), rates, kwh, pue)
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValueError, KeyError, AttributeError, TypeError) as error:
        what_next = 'give: currency = "USD", [gpu_hour] default = 2.5, [energy] price_per_kwh = 0.12, pue = 1.3'
        raise DataError(f"is not a rate card ({error})", where=str(path), what_next=what_next) from error


def _price(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise ValueError(f"{value!r} is not a price")
    return float(value)


def read_cost(
    history: MetricHistory,
    start_ns: int,
    end_ns: int,
    *,
    by: str = "job",
    rates: RateCard | None = None,
    runs: Sequence[str] = (),
) -> CostReport:
    """Cost of all cards in the history over a span of time, in whole minutes.

    Args:
        by: job, user, team or node.
        runs: run directories or folders of them, whose goodput gives the jobs' waste.

    Raises:
        UsageError: the span is empty, there is no such group, or the history does not say who used GPUs.
        UnreachableError, DataError: as the history's methods; a run cannot be read.
    """
    if by not in BY:
        raise unknown_name("group", str(by), BY)
    if end_ns - start_ns < _LEAST_STEP_NS:
        raise UsageError("the time is shorter than a minute", what_next="give --start and --end, or --last")
    start_ns, end_ns = (time_ns // _LEAST_STEP_NS * _LEAST_STEP_NS for time_ns in (start_ns, end_ns))
    step_ns = _LEAST_STEP_NS * max(1, -(-(end_ns - start_ns) // (_LEAST_STEP_NS * _MAX_STEPS)))
    reader = _Reader(history, TimeRange(start_ns, end_ns, step_ns))
    cards = list(reader.cards())
    shares = allocate(cards, step_ns / 1e9)
    jobs, notices = reader.jobs({job for job, _, _ in shares if job is not None}, _waste_of_runs(runs))
    hours = step_ns / 3.6e12
    held = figures({key: share for key, share in shares.items() if key[0] is not None}, hours, rates)
    free = figures({key: share for key, share in shares.items() if key[0] is None}, hours, rates)
    free = replace(free, busy_hours=0.0)  # kernels of nobody that is known are nobody's use
    unpriced = sorted({model or "an unknown model" for _, _, model in shares if rates and rates.rate(model) is None})
    if unpriced:
        notices.append(Notice("no_rate", f"the rate card has no price of {listed(unpriced, 4)}"))
    return CostReport(
        by=by,
        start_ns=start_ns,
        end_ns=end_ns,
        step_ns=step_ns,
        num_cards=len(cards),
        rows=cost_rows(shares, jobs, by, hours, rates),
        held=held,
        free=free,
        cards=replace(figures(shares, hours, rates), busy_hours=held.busy_hours),
        currency=None if rates is None else rates.currency,
        warnings=notices,
    )


def _waste_of_runs(paths: Sequence[str]) -> dict[tuple[str, str], dict[GoodputClass, float]]:
    """GPU-hours by class of goodput, by kind and id of the job that the runs say they were."""
    waste: dict[tuple[str, str], dict[GoodputClass, float]] = defaultdict(lambda: defaultdict(float))
    for job in read_goodput(paths).jobs if paths else ():
        places = [place for run in job.runs for place in read_rank_places(Path(run))[0]]
        key = next(((one.job_kind, one.job_id) for one in places if one.job_kind and one.job_id), None)
        if key is not None:
            for kind, share in job.time.items():
                if kind is not GoodputClass.PRODUCTIVE_TRAINING and share > 0:
                    waste[str(key[0]), str(key[1])][kind] += share * job.rank_seconds / 3600
    return {key: dict(hours) for key, hours in waste.items()}


class _Reader:
    """Reads cards, their use and their jobs from the history, some nodes at a time."""

    def __init__(self, history: MetricHistory, time: TimeRange) -> None:
        self._history, self._time = history, time
        self._known = {metric.name for metric in history.metrics()}
        if _USE not in self._known:
            what_next = "record agents with stepscope history run; dcgm-exporter's pages do not have it"
            raise UsageError(f"the history has no {_USE}: it does not say who used GPUs", what_next=what_next)

    def cards(self) -> Iterator[CardTime]:
        """Each card with its devices."""
        nodes = sorted(dict(group)["instance"] for group in self._present(_USE, (GroupBy.NODE,), {}))
        for first in range(0, len(nodes), _NODES_AT_ONCE):
            yield from self._cards_of({"instance": nodes[first : first + _NODES_AT_ONCE]})

    def _cards_of(self, nodes: Where) -> Iterator[CardTime]:
        by_device = (GroupBy.GPU, GroupBy.MIG_PROFILE)
        there = self._present(_USE, by_device, nodes)
        idle = self._present(_USE, by_device, {**nodes, "state": UseState.HELD_BUT_IDLE.value})
        unknown = self._present(_USE, by_device, {**nodes, "state": UseState.UNKNOWN.value})
        holders: dict[tuple[str, str], dict[str, Flags]] = defaultdict(dict)
        for group, flags in self._present(_HOLDS, (GroupBy.GPU, GroupBy.JOB), nodes).items():
            labels = dict(group)
            holders[_device(labels)][_job_name(labels)] = flags
        models = {
            _card(labels): labels.get("name", "")
            for labels in map(dict, self._present(GPU + "info", (GroupBy.GPU, GroupBy.MODEL), nodes))
        }
        power = {}
        if GPU + "power_watts" in self._known:
            answer = self._history.range(Question(GPU + "power_watts", (GroupBy.GPU,), where=nodes), self._time)
            for group, values in zip(answer.groups, answer.values, strict=True):
                power[_card(dict(group))] = values
        devices: dict[tuple[str, str], list[DeviceTime]] = defaultdict(list)
        never = np.zeros(len(self._time.step_ends()), np.bool_)
        for group, present in there.items():
            labels = dict(group)
            device = DeviceTime(
                labels.get("mig_profile", ""),
                present,
                idle.get(group, never),
                unknown.get(group, never),
                holders.get(_device(labels), {}),
            )
            devices[_card(labels)].append(device)
        nothing = np.full(len(never), np.nan)
        for card, of_card in devices.items():
            yield CardTime("/".join(card), card[0], models.get(card, ""), of_card, power.get(card, nothing))

    def jobs(
        self, names: set[str], waste: dict[tuple[str, str], dict[GoodputClass, float]]
    ) -> tuple[dict[str, CostedJob], list[Notice]]:
        """What is known of the jobs, by name."""
        users, teams = (self._facts(by, label) for by, label in ((GroupBy.USER, "user"), (GroupBy.TEAM, "team")))
        jobs = {}
        for name in names:
            kind, _, number = name.partition(" ")
            key = {"job_kind": kind, "job_id": number}
            jobs[name] = CostedJob(key, users.get(name), teams.get(name), waste.get((kind, number), {}))
        unmatched = [number for kind, number in waste if f"{kind} {number}" not in names]
        if not unmatched:
            return jobs, []
        text = f"{counted(len(unmatched), 'job')} of the runs had no GPU in the history: {listed(unmatched, 4)}"
        return jobs, [Notice("not_in_history", text)]

    def _facts(self, by: GroupBy, label: str) -> dict[str, str]:
        groups = self._present(_FACTS, (GroupBy.JOB, by), {})
        return {_job_name(dict(group)): dict(group)[label] for group in groups if label in dict(group)}

    def _present(self, metric: str, by: tuple[GroupBy, ...], where: Where) -> dict[Labels, Flags]:
        """In which steps a group has any series; empty where the history does not have the metric."""
        if metric not in self._known:
            return {}
        answer = self._history.range(Question(metric, by, Statistic.COUNT, where), self._time)
        return dict(zip(answer.groups, np.nan_to_num(answer.values) > 0, strict=True))


def _card(labels: dict[str, str]) -> tuple[str, str]:
    return labels["instance"], labels.get("gpu", labels.get("uuid", ""))


def _device(labels: dict[str, str]) -> tuple[str, str]:
    return labels["instance"], labels.get("uuid", labels.get("gpu", ""))


def _job_name(labels: dict[str, str]) -> str:
    return f"{labels['job_kind']} {labels['job_id']}"
