"""Groups of series over time: which job has which GPU when, what is known of jobs, and whose values an answer has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from stepscope.core.metrics.agent import JOB_FACTS
from stepscope.store.history.grouping import NONE, Indices, only_one
from stepscope.store.history.questions import GROUP_LABELS, GroupBy, Labels, Question, is_one_of

TARGET = "instance"
_BY_JOB = {GroupBy.JOB, GroupBy.USER, GroupBy.TEAM}
_JOB = GROUP_LABELS[GroupBy.JOB]
_GPU = GROUP_LABELS[GroupBy.GPU]
_DEVICE = ("instance", "uuid", "gpu_instance")
_OF_JOB = frozenset({*_JOB, *JOB_FACTS})
"""Labels that a series has of its job, if not of its own."""


def newest_by_target(labels: Sequence[Labels], newest: Indices) -> dict[str, Indices]:
    """Time of the newest sample of each target, from those of its series."""
    pages: dict[str, Indices] = {}
    for one, times in zip(labels, newest, strict=True):
        target = dict(one).get(TARGET, "")
        pages[target] = np.maximum(pages[target], times) if target in pages else times
    return pages


def page_of(labels: Sequence[Labels], newest: Indices, pages: Mapping[str, Indices]) -> Indices:
    """Newest page of each series' target; of one without `up` what its other series say."""
    known = {**newest_by_target(labels, newest), **pages}
    if not labels:
        return newest
    return np.stack([known[dict(one).get(TARGET, "")] for one in labels])


def needs_jobs(question: Question, series: Mapping[int, Labels]) -> bool:
    """Whether the groups of a question depend on who has the GPUs."""
    if _BY_JOB.intersection(question.by):
        return True
    names = {tuple(name for name, _ in labels) for labels in series.values()}
    return any(key not in one for key in _OF_JOB.intersection(question.where) for one in names)


class Jobs:
    """Which job has which GPU when, and what is known of the jobs.

    Args:
        labels: of the assignments of GPUs to jobs.
        present: whether each assignment holds at each time.
        facts: labels of the series that say what is known of a job.
        newest: time of the newest sample of each of those.
    """

    def __init__(
        self,
        labels: Sequence[Labels],
        present: np.ndarray[Any, np.dtype[np.bool_]],
        facts: Sequence[Labels],
        newest: Indices,
    ) -> None:
        index: dict[Labels, int] = {}
        devices: dict[Labels, int] = {}
        device, job = [], []
        self.extra: dict[int, dict[str, str]] = {}
        for one in labels:
            device.append(devices.setdefault(_device(one), len(devices)))
            job.append(index.setdefault(_some(one, _JOB), len(index)))
            self.extra.setdefault(job[-1], {}).update(pair for pair in one if pair[0] not in _GPU)
        for place in np.argsort(newest[:, -1], kind="stable") if newest.size else ():
            one = facts[place]
            self.extra.setdefault(index.setdefault(_some(one, _JOB), len(index)), {}).update(
                pair for pair in one if pair[0] not in ("instance", "rack")
            )
        self.labels = list(index)
        self.index, self._devices = index, devices
        self._owner = only_one(present, device, job, len(devices))

    def of(self, labels: Labels, num_steps: int) -> Indices:
        """Job of a series at each step: that of its labels, or of its GPU."""
        own = _some(labels, _JOB)
        if len(own) == len(_JOB):
            if own not in self.index:
                self.index[own] = len(self.labels)
                self.labels.append(own)
            return np.full(num_steps, self.index[own], np.int64)
        device = self._devices.get(_device(labels))
        return np.full(num_steps, NONE, np.int64) if device is None else self._owner[device]

    def fact(self, job: int, name: str) -> str | None:
        """A label of a job."""
        return dict(self.labels[job]).get(name) or self.extra.get(job, {}).get(name)


def _device(labels: Labels) -> Labels:
    """What identifies a GPU or MIG instance: its UUID, which series of its ranks have too, else its number."""
    uuid = _some(labels, _DEVICE)
    return uuid if any(name == "uuid" for name, _ in uuid) else _some(labels, _GPU)


def _some(labels: Labels, names: Iterable[str]) -> Labels:
    return tuple(pair for pair in labels if pair[0] in names)


class Grouping:
    """Series that a question is about, and the group of each.

    Attributes:
        ids, labels: of the series.
        group: index into `groups` of each series, or of each series and step; NONE where it has none.
        num_series: that the metric has.
    """

    def __init__(self, question: Question, series: Mapping[int, Labels], jobs: Jobs | None, num_steps: int) -> None:
        self.num_series = len(series)
        self.ids: list[int] = []
        self.labels: list[Labels] = []
        for number, labels in series.items():
            own = dict(labels)
            of_job = [name for name in question.where if name in _OF_JOB and name not in own]
            is_own = all(
                is_one_of(own.get(name), values) for name, values in question.where.items() if name not in of_job
            )
            if is_own and (jobs or not of_job):
                self.ids.append(number)
                self.labels.append(labels)
        names = {name for by in question.by if by not in _BY_JOB for name in GROUP_LABELS[by]}
        index: dict[Labels, int] = {}
        if jobs is None:
            self.group: Indices = np.array(
                [index.setdefault(_some(one, names), len(index)) for one in self.labels], np.int64
            )
        else:
            self.group = np.full((len(self.ids), num_steps), NONE, np.int64)
            for row, labels in enumerate(self.labels):
                job_at = jobs.of(labels, num_steps)
                for job in np.unique(job_at).tolist():
                    group = _with_job(question, labels, names, jobs, job)
                    if group is not None:
                        self.group[row, job_at == job] = index.setdefault(group, len(index))
        self.groups: list[Labels] = list(index)


def _with_job(question: Question, labels: Labels, names: set[str], jobs: Jobs, job: int) -> Labels | None:
    """Group of a series while a job has it; None if it is in no group then."""
    own = dict(labels)
    for name, values in question.where.items():
        if name in _OF_JOB and name not in own:
            fact = None if job == NONE else jobs.fact(job, name)
            if fact is None or not is_one_of(fact, values):
                return None
    group = dict(_some(labels, names))
    for by in question.by:
        if by in _BY_JOB:
            for name in GROUP_LABELS[by]:
                fact = own.get(name) or (None if job == NONE else jobs.fact(job, name))
                if fact is None:
                    return None
                group[name] = fact
    return tuple(sorted(group.items()))
