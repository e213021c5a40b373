"""What does the job's step take in a scenario? The graph with what is needed to measure steps on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.matching import Matches
from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.what_if.fixes import FixedJob
from stepscope.analyzer.what_if.job_graph import JobGraph, join_ranks
from stepscope.analyzer.what_if.links import alike, expected_transfers
from stepscope.analyzer.what_if.replay import Scenario, as_measured, measured_steps, replay, step_times

BEFORE_WINDOW_SHARE = 0.10
"""A step that lost more than this to what began before the traces is left out: no fix can reach it there."""


@dataclass(frozen=True, slots=True)
class ReplayModel:
    """A job that can be replayed.

    Attributes:
        kept: places of the whole steps that count.
        skipped: places of those left out.
        step_numbers: by place.
    """

    job: FixedJob
    base: Scenario
    kept: npt.NDArray[np.int64]
    skipped: npt.NDArray[np.int64]
    step_numbers: list[int]

    @property
    def graph(self) -> JobGraph:
        return self.job.graph

    def step_ms(self, scenario: Scenario) -> float:
        """Median over ranks of the mean whole step."""
        return self.median_ms(step_times(self.graph, replay(self.graph, scenario), scenario.duration_ns))

    def measured_ms(self) -> float:
        return self.median_ms(measured_steps(self.graph))

    def median_ms(self, steps_of_rank: Mapping[int, Nanoseconds]) -> float:
        return float(np.median([steps[self.kept].mean() for steps in steps_of_rank.values()])) / 1e6


def build_model(
    views: Mapping[int, RankView],
    matches: Matches,
    offsets_ns: Mapping[int, int],
    role: Mapping[int, int],
    before_window: Sequence[float],
) -> ReplayModel | None:
    """Join the ranks' graphs; None where a rank has none.

    Args:
        views: by rank, on the job's clock (their graphs are on the rank's own).
        matches: of the communication calls.
        offsets_ns: by rank, its clock less the job's.
        role: by rank, its pipeline stage.
        before_window: by step, the share of its time charged to what began before the traces.
    """
    graphs = {rank: view.graph for rank, view in views.items() if view.graph is not None}
    if not graphs or len(graphs) < len(views):
        return None
    calls = {rank: view.calls for rank, view in views.items()}
    graph = join_ranks(graphs, calls, matches, offsets_ns)
    job = FixedJob(graph, role, expected_transfers(views), alike(calls))
    num_whole = min(len(view.window.whole_step_ns) for view in views.values())
    late = np.array([*before_window, *[0.0] * num_whole])[:num_whole] > BEFORE_WINDOW_SHARE
    kept = np.flatnonzero(~late) if not late.all() else np.arange(num_whole)
    first = next(iter(views.values()))
    return ReplayModel(
        job=job,
        base=as_measured(graph),
        kept=kept,
        skipped=np.setdiff1d(np.arange(num_whole), kept),
        step_numbers=first.window.index.tolist(),
    )
