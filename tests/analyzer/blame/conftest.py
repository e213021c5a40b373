"""Smallest rank for which causes can be found."""

from __future__ import annotations

import pytest

from stepscope.analyzer.rank_view import RankView
from tests.analyzer.build import TraceBuilder
from tests.analyzer.readings import view_of


@pytest.fixture(scope="module")
def view() -> RankView:
    """One step of one kernel; tests replace what they are about."""
    trace = TraceBuilder()
    trace.step(5, 0, 1000)
    trace.kernel(50, 100, launch=10)
    return view_of(trace)
