"""Is a rank's ledger turned into the class that counters should name?"""

from __future__ import annotations

import pytest

from benchmarks.fleet_class_sampling import as_unprofiled, label_of
from stepscope.core.analysis import RankLedger
from stepscope.core.causes import Cause
from stepscope.core.headings import Heading


@pytest.mark.parametrize(
    ("ledger", "right"),
    [
        ({Heading.COMPUTE_BOUND: 0.6, Heading.MEMORY_BOUND: 0.3, Heading.WAIT: 0.1}, {Cause.COMPUTE_BOUND}),
        ({Heading.COMPUTE_BOUND: 0.45, Heading.MEMORY_BOUND: 0.5}, {Cause.COMPUTE_BOUND, Cause.MEMORY_BOUND}),
        ({Heading.COMPUTE_BOUND: 0.5, Heading.WAIT: 0.3, Heading.COMMUNICATION: 0.2}, {Cause.COMMUNICATION}),
        ({Heading.COMPUTE_BOUND: 0.4, Heading.DATA_LOADING: 0.6}, {Cause.DATA_LOADING}),
        ({Heading.COMPUTE_BOUND: 0.4, Heading.CHECKPOINT: 0.4, Heading.COPY: 0.2}, {Cause.CHECKPOINT}),
        ({Heading.COMPUTE_BOUND: 0.4, Heading.SYNCHRONIZATION: 0.6}, {Cause.HOST_BOUND}),
    ],
)
def test_labels(ledger: dict[Heading, float], right: set[Cause]) -> None:
    spent, told = label_of(dict.fromkeys(Heading, 0.0) | ledger)
    assert told == right
    assert sum(spent.values()) == pytest.approx(sum(ledger.values()))


@pytest.mark.parametrize(
    ("step_ms", "empty"), [(235.0, 0.21), (290.0, 0.36), (300.0, 0.36), (100.0, 0.0), (None, 0.36)]
)
def test_what_the_profiler_added_leaves_the_gpu_empty(step_ms: float | None, empty: float) -> None:
    shares = dict.fromkeys(Heading, 0.0) | {Heading.COMPUTE_BOUND: 0.64, Heading.SYNCHRONIZATION: 0.36}
    ledger = as_unprofiled(RankLedger(0, 870.0, 290.0, shares, 0.0, []), step_ms)
    assert ledger[Heading.SYNCHRONIZATION] == pytest.approx(empty, abs=0.001)
    assert sum(ledger.values()) == pytest.approx(1.0)
