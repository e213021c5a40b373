"""Is each kernel tied to the operator that launched it?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stepscope.analyzer.roofline.kernel_operator import launching_operators
from stepscope.trace.columns import NONE, Category
from stepscope.trace.kineto import read_trace


@pytest.mark.shared
@pytest.mark.parametrize("case", ["ddp", "tp"])
def test_nesting_on_the_launching_thread_agrees_with_external_ids(shared_traces: Path, case: str) -> None:
    trace = read_trace(shared_traces / "h100x2" / case / f"{case}.rank0.json.gz")
    kernels = trace.rows_of(Category.KERNEL)
    by_id = launching_operators(trace, kernels)
    by_nesting = launching_operators(replace(trace, external_id=np.full(len(trace), NONE)), kernels)
    assert (by_id != NONE).mean() > 0.8
    np.testing.assert_array_equal(by_nesting, by_id)


@pytest.mark.shared
def test_ids_of_another_numbering_are_not_believed(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "h100x2" / "ddp" / "ddp.rank0.json.gz")
    kernels = trace.rows_of(Category.KERNEL)
    shifted = np.where(trace.category == Category.CPU_OP, trace.external_id + 500, trace.external_id)
    found = launching_operators(replace(trace, external_id=shifted), kernels)
    np.testing.assert_array_equal(found, launching_operators(trace, kernels))


@pytest.mark.shared
def test_kernels_launched_before_the_trace_have_no_operator(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "h100x2" / "ddp" / "ddp.rank0.json.gz")
    kernels = trace.rows_of(Category.KERNEL)
    calls = trace.correlation[trace.rows_of(Category.RUNTIME)]
    orphans = ~np.isin(trace.correlation[kernels], calls)
    assert orphans.any()
    assert (launching_operators(trace, kernels)[orphans] == NONE).all()
    assert not len(launching_operators(trace, kernels[:0]))
