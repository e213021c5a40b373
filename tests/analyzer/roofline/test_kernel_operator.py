"""Each kernel is linked to the operator that launched it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.roofline.kernel_operator import innermost_on_thread, launching_operators, stand_ins
from stepscope.trace.columns import NONE, Category, Rows, TraceColumns
from stepscope.trace.rows import launch_rows
from tests.analyzer.build import TraceBuilder
from tests.trace.one_rank import read_trace


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


def queue(names: str, durations: list[int] | None = None) -> tuple[TraceColumns, npt.NDArray[np.intp]]:
    """One kernel a letter, one after the other on one stream."""
    builder, time = TraceBuilder(), 0
    for place, name in enumerate(names):
        lasts = durations[place] if durations else 10
        builder.kernel(time, time + lasts, name=name)
        time += lasts
    trace = builder.build()
    return trace, trace.rows_of(Category.KERNEL)


def borrowed(names: str, *, orphans: int, durations: list[int] | None = None) -> list[int]:
    trace, kernels = queue(names, durations)
    operator = np.arange(len(kernels))
    operator[:orphans] = NONE
    return [int(donor) for donor in stand_ins(trace, kernels, operator)[:orphans]]


def test_neighbours_tell_kernels_of_one_name_apart() -> None:
    # p runs for two products of other sizes: after a and after b
    assert borrowed("apbpc" + "apbpc", orphans=5) == [5, 6, 7, 8, 9]


def test_the_nearest_duration_decides_where_neighbours_do_not() -> None:
    assert borrowed("xpp", orphans=0) == []
    assert borrowed("p" + "qpqprp", orphans=1, durations=[40, 5, 10, 5, 90, 5, 41]) == [6]


def test_what_is_never_seen_again_borrows_nothing() -> None:
    assert borrowed("zab", orphans=1) == [NONE]
    assert borrowed("ab", orphans=2) == [NONE, NONE]


@given(names=st.text("abc", min_size=1, max_size=30), orphans=st.integers(0, 30))
def test_a_stand_in_has_the_same_name_and_an_operator(names: str, orphans: int) -> None:
    orphans = min(orphans, len(names))
    known = names[orphans:]
    for name, donor in zip(names, borrowed(names, orphans=orphans), strict=False):
        assert (donor == NONE) == (name not in known)
        assert donor == NONE or (donor >= orphans and names[donor] == name)


@pytest.mark.shared
@pytest.mark.parametrize("case", ["fsdp_p2poff", "pp_many"])
def test_hidden_operators_are_found_again(shared_traces: Path, case: str) -> None:
    trace = read_trace(shared_traces / "h100x2" / case / f"{case}.rank0.json.gz")
    kernels = trace.rows_of(Category.KERNEL)
    operator = launching_operators(trace, kernels, launch_rows(trace, kernels))
    hidden = operator.copy()
    by_time = np.argsort(trace.start_ns[kernels])
    hidden[by_time[: len(kernels) // 4]] = NONE
    donor = stand_ins(trace, kernels, hidden)
    asked = np.flatnonzero((hidden == NONE) & (operator != NONE) & (donor != NONE))
    assert len(asked) > 0.15 * len(kernels)
    same = (trace.name[operator[asked]] == trace.name[operator[donor[asked]]]) & (
        trace.shapes[operator[asked]] == trace.shapes[operator[donor[asked]]]
    )
    duration = trace.end_ns[kernels] - trace.start_ns[kernels]
    assert duration[asked][same].sum() > 0.99 * duration[asked].sum()
