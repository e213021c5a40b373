"""Openings of the profilers of one job: from where on all ranks are recorded, if they began seconds apart.

Before the last profiler opened the other ranks waited for its rank (opening takes seconds the first time), or ran steps
that it did not record. Neither is part of the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.rank_view import RankView
from stepscope.core.vocabulary import Notice

APART_NS = 1_000_000_000
"""Ranks of one job reach their first recorded step within milliseconds; opening a profiler takes up to ten seconds."""
APART_STEPS = 2.0
"""Least difference in usual steps: hosts run ahead of each other by about a step."""


class Beginning(NamedTuple):
    """From where on all ranks are recorded: the first such step, or without steps the time, ns."""

    apart_ns: int
    step: int | None = None
    time_ns: int | None = None

    @property
    def notice(self) -> Notice:
        """What is left out, and why."""
        lead_in = "the time until all recorded is" if self.step is None else f"the steps before {self.step} are"
        apart = f"the ranks' profilers began {self.apart_ns / 1e6:,.1f} ms apart: {lead_in} left out"
        return Notice("profilers_apart", apart)


def common_beginning(views: Mapping[int, RankView]) -> Beginning | None:
    """Where the windows of the ranks should begin; None if they opened together, or were never recorded together."""
    opened = {rank: view.facts.begins_ns for rank, view in views.items()}
    last = max(opened.values())
    apart = last - min(opened.values())
    if apart < APART_NS:
        return None
    if all(view.facts.step_indices for view in views.values()):
        usual = min(float(np.median(view.window.whole_step_ns)) for view in views.values())
        step = _first_common_step(views, last)
        return None if step is None or apart < APART_STEPS * usual else Beginning(apart, step=step)
    if len({view.header.host_name for view in views.values()}) > 1:
        return None  # their clocks may differ
    return Beginning(apart, time_ns=max(_first_return(view, last) for view in views.values()))


def _first_common_step(views: Mapping[int, RankView], last_ns: int) -> int | None:
    """The first step that began on every rank when all were recorded."""
    windows = [view.window for view in views.values()]
    later = [set(window.index[window.boundary_ns >= last_ns].tolist()) for window in windows]
    return min(set.intersection(*later), default=None)


def _first_return(view: RankView, last_ns: int) -> int:
    """When a rank's first communication after the last opening ends: the ranks wait for each other until then."""
    return min((call.end_ns for call in view.calls if call.end_ns > last_ns), default=last_ns)
