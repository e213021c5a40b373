"""Frames have the columns and the values of `--json`."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.api.tables import table
from stepscope.core.documents import analysis
from stepscope.core.documents.comparison import CollectiveDifference, Difference
from stepscope.core.documents.run_directory import StepRow
from stepscope.core.documents.what_if import Fix
from stepscope.core.vocabulary import Evidence, Notice

ROWS = [
    analysis.Collective,
    analysis.CopyTime,
    analysis.KernelFinding,
    analysis.KernelTime,
    analysis.Pipeline,
    analysis.RankArrivals,
    analysis.RootCause,
    analysis.WhatIf,
    CollectiveDifference,
    Difference,
    Evidence,
    Fix,
    Notice,
    StepRow,
]
_INT64 = st.integers(-(2**63), 2**63 - 1)
_PLAIN = {float: st.floats(allow_nan=False, allow_infinity=False), int: _INT64, str: st.text(max_size=8)}
for _kind, _values in _PLAIN.items():
    st.register_type_strategy(_kind, _values)  # as JSON and a column can hold


@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_every_value_is_that_of_the_document(kind: type, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.from_type(kind), max_size=4))
    frame = table(kind, rows)
    assert len(frame) == len(rows)
    for place, row in enumerate(rows):
        for name, value in _flat("", asdict(row)):
            known = name in frame
            assert _plain(frame[name].iloc[place]) == value if known else value is None, name


@given(st.lists(st.from_type(analysis.RankArrivals), max_size=4))
def test_an_index_is_taken_from_the_fields(rows: list[analysis.RankArrivals]) -> None:
    frame = table(analysis.RankArrivals, rows, index="rank")
    assert frame.index.name == "rank"
    assert list(frame.index) == [row.rank for row in rows]
    assert list(frame.columns) == ["num_collectives", "times_last", "mean_late_ms"]


def test_unknown_is_no_number() -> None:
    collective = analysis.Collective("0", None, "all_reduce", None, 3, None, 2.5, None, 1.0, None, 0.5, None, None)
    frame = table(analysis.Collective, [collective])
    assert frame["bytes"].dtype == "Int64"
    assert frame["algbw_gbs"].dtype == "float64"
    assert frame["bytes"].isna().all()
    assert frame["algbw_gbs"].isna().all()
    assert frame["count"].sum() == 3


def test_no_rows_make_a_frame_with_all_columns() -> None:
    frame = table(analysis.Pipeline, [])
    assert frame.empty
    assert "schedule" in frame
    assert frame["period_ms"].dtype == "float64"


def _flat(prefix: str, value: Any) -> list[tuple[str, Any]]:
    """Names of columns and values of a row, by its JSON alone."""
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _flat(f"{prefix}.{_text(key)}".lstrip("."), inner)]
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(one, float) for one in value):
        return [(f"{prefix}.low", value[0]), (f"{prefix}.high", value[1])]
    return [(prefix, _text(value))]


def _text(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: _text(inner) for key, inner in value.items()}
    return [_text(one) for one in value] if isinstance(value, (list, tuple)) else value


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return value
    return None if pd.isna(value) else value
