"""Answers from rows of lower resolution are those of the samples, for steps of whole minutes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.history.servers import RecordedPage, sample_blocks
from stepscope.store.history.catalog import read_catalog
from stepscope.store.history.embedded import history_at
from stepscope.store.history.places import place_of
from stepscope.store.history.plans import Retention
from stepscope.store.history.questions import Question, TimeRange
from stepscope.store.history.writer import HistoryWriter
from tests.store.history.recordings import ENERGY, POWER, labels, questions, recorded_pages
from tests.store.history.reference import expected_range

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

_NS = 10**6
_BASE_MS = 1_795_813_200_000
"""A full hour."""
_YEAR = 365 * 86400.0


@pytest.mark.parametrize(("kept", "minutes"), [({"one_minute_seconds": _YEAR}, (1, 2, 10)), ({}, (10, 20))])
@given(data=st.data())
@settings(max_examples=8, deadline=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck])
def test_answers_are_those_of_the_samples(
    tmp_path_factory: pytest.TempPathFactory, kept: dict[str, Any], minutes: tuple[int, ...], data: st.DataObject
) -> None:
    begin_ms = _BASE_MS + data.draw(st.sampled_from([600_000, 3_480_000]))
    pages = [
        RecordedPage(labels(cluster="known", instance="known"), begin_ms, {(POWER, ()): 1.0, (ENERGY, ()): 1.0}),
        *data.draw(recorded_pages("c", begin_ms)),
    ]
    folder = tmp_path_factory.mktemp("history")
    retention = replace(Retention(raw_seconds=3600.0, one_minute_seconds=7200.0, ten_minutes_seconds=_YEAR), **kept)
    later = replace(pages[0], time_ms=begin_ms + 86_400_000)
    with HistoryWriter(folder, retention=retention, clock=lambda: (begin_ms + 2 * 86_400_000) * _NS) as writer:
        for part in (pages, [later]):
            for block in sample_blocks(part):
                writer.append(block)
            writer.flush()
            while writer.maintain():
                pass
    history = history_at(folder)
    old = [file for file in read_catalog(place_of(folder)).files if file.first_ms < begin_ms + 3_600_000]
    assert {file.tier for file in old} <= {"1m", "10m"}
    step_ms = data.draw(st.sampled_from(minutes)) * 60_000
    time = TimeRange(_BASE_MS * _NS, (_BASE_MS + 7_200_000) * _NS, step_ms * _NS)
    for question in data.draw(st.lists(questions, min_size=4, max_size=4)):
        asked = Question(question.metric, question.by, question.statistic, {**question.where, "cluster": "c"})
        expected = expected_range(pages, asked, time)
        answer = history.range(asked, time)
        assert list(answer.groups) == sorted(expected), asked
        for group, row in zip(answer.groups, answer.values, strict=True):
            wanted = [expected[group].get(at, np.nan) for at in (answer.times_ns // _NS).tolist()]
            np.testing.assert_allclose(row, wanted, rtol=1e-9, atol=1e-9, err_msg=f"{asked} {group}")
