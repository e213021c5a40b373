"""A large imitated job with three faults at once: each is named, with its ranks; a healthy one has none."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from benchmarks.speed.faulty_job import Faults, drawn_faults, imitated_job
from stepscope.analyzer.job import analyse_job
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.summaries import JobContext
from stepscope.core.documents.analysis import Analysis
from stepscope.core.vocabulary import Cause
from stepscope.workflow.rank_views import view_files

NUM_RANKS = 48


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def recorded(request: pytest.FixtureRequest, shared_traces: Path) -> list[RankView]:
    traces = sorted(map(str, (shared_traces / "h100x2" / request.param).glob("*.json.gz")))
    return list(view_files(traces, whole_file=False).views.values())


def analyse(recorded: list[RankView], faults: Faults) -> Analysis:
    return analyse_job(imitated_job(recorded, NUM_RANKS, faults, seed=1), JobContext())[0]


@pytest.mark.shared
@pytest.mark.parametrize("seed", [1, 2])
def test_three_faults_at_once_are_named(recorded: list[RankView], seed: int) -> None:
    step_ns = median(median(view.window.whole_step_ns.tolist()) for view in recorded)
    faults = drawn_faults(seed, NUM_RANKS, step_ns)
    rows = {row.cause: row for row in analyse(recorded, faults).root_causes}
    assert {cause: sorted(rows[cause].ranks) for cause in faults.truth()} == faults.truth()


@pytest.mark.shared
def test_a_healthy_job_has_no_such_loss(recorded: list[RankView]) -> None:
    analysis = analyse(recorded, Faults())
    shares = {row.cause: row.fraction for row in analysis.root_causes}
    assert shares.get(Cause.STRAGGLER, 0.0) + shares.get(Cause.DATA_LOADING, 0.0) < 0.01
    assert analysis.verdict.cause not in (Cause.STRAGGLER, Cause.DATA_LOADING)
