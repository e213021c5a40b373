"""Is each kernel tied to the operator that launched it?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.launches import Rows, launch_rows
from stepscope.analyzer.roofline.kernel_operator import innermost_on_thread, launching_operators
from stepscope.trace.columns import NONE, Category, TraceColumns
from stepscope.trace.kineto import read_trace
from tests.analyzer.build import TraceBuilder


def _operators(trace: TraceColumns, kernels: Rows) -> Rows:
    return launching_operators(trace, kernels, launch_rows(trace, kernels))


@given(st.lists(st.sampled_from(["open", "close", "empty", "open and empty"]), min_size=1, max_size=30))
def test_the_innermost_open_span_is_the_last_that_began(changes: list[str]) -> None:
    built = TraceBuilder()
    spans: list[tuple[int, int]] = []
    stack: list[int] = []
    for moment, change in enumerate([*changes, *["close"] * len(changes)]):
        if "open" in change:
            stack.append(moment)
        if "empty" in change:  # as operators of less than a microsecond in traces that know no shorter time
            spans.append((moment, moment))
        if change == "close" and stack:
            spans.append((stack.pop(), moment))
    moments = range(2 * len(changes))
    for start, end in spans:
        built.operator("aten::op", 2 * start, 2 * end)
    for moment in moments:
        built.runtime("launch", 2 * moment + 1, 2 * moment + 1)
    trace = built.build()
    rows = np.arange(len(spans))
    found = innermost_on_thread(trace, rows, len(spans) + np.arange(len(moments)))
    expected = [
        max((start, row) for row, (start, end) in enumerate(spans) if start <= moment < end)[1]
        if any(start <= moment < end for start, end in spans)
        else NONE
        for moment in moments
    ]
    assert found.tolist() == expected


@pytest.mark.shared
@pytest.mark.parametrize("case", ["ddp", "tp"])
def test_nesting_on_the_launching_thread_agrees_with_external_ids(shared_traces: Path, case: str) -> None:
    trace = read_trace(shared_traces / "h100x2" / case / f"{case}.rank0.json.gz")
    kernels = trace.rows_of(Category.KERNEL)
    by_id = _operators(trace, kernels)
    by_nesting = _operators(replace(trace, external_id=np.full(len(trace), NONE)), kernels)
    assert (by_id != NONE).mean() > 0.8
    np.testing.assert_array_equal(by_nesting, by_id)


@pytest.mark.shared
def test_ids_of_another_numbering_are_not_believed(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "h100x2" / "ddp" / "ddp.rank0.json.gz")
    kernels = trace.rows_of(Category.KERNEL)
    shifted = np.where(trace.category == Category.CPU_OP, trace.external_id + 500, trace.external_id)
    found = _operators(replace(trace, external_id=shifted), kernels)
    np.testing.assert_array_equal(found, _operators(trace, kernels))


@pytest.mark.shared
def test_kernels_launched_before_the_trace_have_no_operator(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "h100x2" / "ddp" / "ddp.rank0.json.gz")
    kernels = trace.rows_of(Category.KERNEL)
    calls = trace.correlation[trace.rows_of(Category.RUNTIME)]
    orphans = ~np.isin(trace.correlation[kernels], calls)
    assert orphans.any()
    assert (_operators(trace, kernels)[orphans] == NONE).all()
    assert not len(_operators(trace, kernels[:0]))
