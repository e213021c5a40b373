"""The embedded metric history: what was appended is what is answered."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.core.errors import DataError, UsageError
from stepscope.store.history.embedded import history_at
from stepscope.store.history.questions import (
    GroupBy,
    HistoryEvent,
    HistoryEventKind,
    Labels,
    Question,
    SeriesAnswer,
    Statistic,
    TimeRange,
)
from stepscope.store.history.writer import HistoryWriter
from tests.store.history.blocks import ENERGY, HOUR, MINUTE, POWER, SECOND, START, as_dict, block, gpu, labels, maintain

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

Sample = tuple[int, int, float, float]
"""Entity, second, gauge, counter."""


def expected(samples: Iterable[Sample], step: int, count: int, of: Statistic) -> dict[int, dict[int, float]]:
    """Gauge by step and entity, computed the plain way."""
    found: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for entity, second, gauge, _ in samples:
        place = -(-second // step)
        if 1 <= place <= count and not np.isnan(gauge):
            found[entity][place - 1].append(gauge)
    function = {Statistic.MIN: min, Statistic.MAX: max}.get(of, lambda values: sum(values) / len(values))
    return {one: {place: function(some) for place, some in steps.items()} for one, steps in found.items()}


def rates(samples: Iterable[Sample], step: int, count: int) -> dict[int, dict[int, float]]:
    """Rate of the counter by step and entity, computed the plain way."""
    found: dict[int, dict[int, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for entity, second, _, counter in samples:
        place = -(-second // step)
        if 1 <= place <= count and not np.isnan(counter):
            found[entity][place - 1].append((second, counter))
    answer: dict[int, dict[int, float]] = defaultdict(dict)
    for entity, steps in found.items():
        for place, some in steps.items():
            some.sort()
            if len(some) > 1:
                rise = sum(b - a if b >= a else b for (_, a), (_, b) in pairwise(some))
                answer[entity][place] = rise / (some[-1][0] - some[0][0])
    return answer


values = st.one_of(st.floats(0, 1000, width=16), st.just(float("nan")))
samples_of_run = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 3 * 3600 + 50), values, values),
    min_size=1,
    max_size=60,
    unique_by=lambda sample: sample[:2],
)
actions = st.lists(st.sampled_from(["flush", "maintain", "compact", "restart", ""]), min_size=60, max_size=60)


def same(answer: SeriesAnswer, truth: Mapping[int, Mapping[int, float]], count: int) -> None:
    """Check an answer by GPU against values by entity and step."""
    want = {}
    for entity, steps in truth.items():
        if steps:
            want[gpu(entity)] = [steps.get(place, float("nan")) for place in range(count)]
    got = as_dict(answer)
    assert got.keys() == want.keys()
    for group, series in want.items():
        np.testing.assert_allclose(np.array(got[group], np.float64), series, rtol=1e-9, atol=1e-9)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(samples_of_run, actions, st.sampled_from([60, 600, 1800, 45]))
def test_what_was_appended_is_answered_whatever_the_order(samples: list[Sample], actions: list[str], step: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        now = [START + 4 * HOUR]
        writer = HistoryWriter(folder, clock=lambda: now[0])
        for (entity, second, gauge, counter), action in zip(samples, actions, strict=False):
            writer.append(block([gpu(entity)], START + second * SECOND, **{POWER: [gauge], ENERGY: [counter]}))
            if action == "restart":
                writer.close()
                writer = HistoryWriter(folder, clock=lambda: now[0])
            elif action:
                writer.flush()
            if action == "maintain":
                maintain(writer)
            elif action == "compact":
                writer.compact()
        writer.close()
        count = 3 * 3600 // step
        time = TimeRange(START, START + 3 * HOUR, step * SECOND)
        history = history_at(folder)
        for statistic in (Statistic.MEAN, Statistic.MIN, Statistic.MAX):
            same(
                history.range(Question(POWER, statistic=statistic), time),
                expected(samples, step, count, statistic),
                count,
            )
        same(history.range(Question(ENERGY), time), rates(samples, step, count), count)


def test_a_place_without_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a metric history"):
        history_at(tmp_path)


@pytest.mark.parametrize("package", ["pyarrow", "duckdb"])
def test_a_missing_package_is_one_line(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    HistoryWriter(tmp_path).close()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf'needs {package}; run: pip install "stepscope\[history\]"'):
        history_at(tmp_path)
    if package == "pyarrow":
        with pytest.raises(UsageError, match=r"needs pyarrow; run: pip install"):
            HistoryWriter(tmp_path)


def test_imports_are_light() -> None:
    script = """
import sys
import stepscope.store.history.embedded, stepscope.store.history.writer
print(*{"pyarrow", "duckdb", "pandas", "fsspec"} & set(sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "\n"


def test_too_many_values_are_refused(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path) as writer:
        writer.append(block([gpu(index) for index in range(30)], START + SECOND, **{POWER: [1.0] * 30}))
    history = history_at(tmp_path)
    with pytest.raises(UsageError, match=r"30 series x 864,000 steps are more than 20,000,000; ask for longer steps"):
        history.range(Question(POWER), TimeRange(START, START + 10 * 24 * HOUR, SECOND))
    with pytest.raises(UsageError, match="whole milliseconds"):
        history.range(Question(POWER), TimeRange(START, START + SECOND, 1500))


def test_an_unknown_metric_is_refused_with_close_names(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path) as writer:
        writer.append(block([gpu(0)], START, **{POWER: [1.0]}))
    with pytest.raises(UsageError, match=f"no metric stepscope_gpu_power; did you mean {POWER}"):
        history_at(tmp_path).latest(Question("stepscope_gpu_power"), at_ns=START)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path), pytest.raises(DataError, match=r"another writer has this history \(process \d+"):
        HistoryWriter(tmp_path)
    HistoryWriter(tmp_path).close()


def test_groups_by_job_user_and_rack(tmp_path: Path) -> None:
    jobs = [gpu(0, job_kind="slurm", job_id="1"), gpu(1, job_kind="slurm", job_id="2")]
    shared = gpu(1, job_kind="slurm", job_id="1")
    facts = [
        labels(instance="n0:9400", job_kind="slurm", job_id=job, user=user) for job, user in (("1", "a"), ("2", "b"))
    ]
    with HistoryWriter(tmp_path) as writer:
        for minute in range(1, 7):
            time = START + minute * MINUTE
            writer.append(block([gpu(0, rack="r1"), gpu(1, rack="r1")], time, **{POWER: [100.0, 300.0]}))
            writer.append(block([labels(instance="n0:9400", rack="r1")], time, up=[1.0]))
            writer.append(block(facts, time, stepscope_job_info=[1.0, 1.0]))
            if minute <= 2:
                writer.append(block(jobs, time, stepscope_gpu_job_info=[1.0, 1.0]))
            elif minute <= 4:  # two jobs share GPU 1: it belongs to none
                writer.append(block([*jobs, shared], time, stepscope_gpu_job_info=[1.0, 1.0, 1.0]))
    history = history_at(tmp_path)
    span = TimeRange(START, START + 6 * MINUTE, 2 * MINUTE)
    one, two = (labels(job_kind="slurm", job_id=job) for job in "12")

    def ask(question: Question) -> dict[Labels, list[float | None]]:
        return as_dict(history.range(question, span))

    assert ask(Question(POWER, (GroupBy.JOB,))) == {one: [100.0, 100.0, None], two: [300.0, None, None]}
    assert ask(Question(POWER, (GroupBy.USER,))).keys() == {labels(user="a"), labels(user="b")}
    assert ask(Question(POWER, (GroupBy.RACK,))) == {labels(rack="r1"): [200.0, 200.0, 200.0]}
    assert ask(Question(POWER, (), Statistic.COUNT, {"job_id": "2"})) == {(): [1.0, None, None]}
    assert ask(Question(POWER, (GroupBy.GPU,), where={"user": "b"})).keys() == {gpu(1)}
    assert ask(Question(POWER, (), Statistic.SUM, {"rack": "r1"})) == {(): [400.0, 400.0, 400.0]}
    assert ask(Question(POWER, (), where={"rack": "r2"})) == {}
    both = ask(Question(POWER, (GroupBy.GPU, GroupBy.JOB)))
    assert both.keys() == {gpu(0, job_kind="slurm", job_id="1"), gpu(1, job_kind="slurm", job_id="2")}


def test_latest_values_go_when_the_page_lacks_them(tmp_path: Path) -> None:
    target = labels(instance="n0:9400")
    with HistoryWriter(tmp_path) as writer:
        writer.append(block([gpu(0), gpu(1)], START, **{POWER: [1.0, 2.0], ENERGY: [10.0, 20.0]}))
        writer.append(block([target], START, up=[1.0]))
        writer.append(block([gpu(0)], START + 15 * SECOND, **{POWER: [3.0], ENERGY: [float("nan")]}))
        writer.append(block([target], START + 15 * SECOND, up=[1.0]))
        writer.flush()
        history = history_at(tmp_path)
        at = START + 20 * SECOND
        assert as_dict(history.latest(Question(POWER), at_ns=at)) == {gpu(0): [3.0]}
        assert as_dict(history.latest(Question(ENERGY), at_ns=at)) == {}
        assert as_dict(history.latest(Question(POWER), at_ns=START + SECOND)) == {gpu(0): [1.0], gpu(1): [2.0]}
        writer.append(block([target], START + 30 * SECOND, up=[0.0]))
        writer.flush()
        assert as_dict(history.latest(Question(POWER), at_ns=START + 31 * SECOND)) == {}
        assert as_dict(history.latest(Question("up", (GroupBy.NODE,)), at_ns=START + 31 * SECOND)) == {target: [0.0]}


def test_events_are_kept_and_told_again(tmp_path: Path) -> None:
    gap = HistoryEvent(HistoryEventKind.GAP, START, None, labels(instance="n0:9400"), "refused", "connection refused")
    ended = HistoryEvent(gap.kind, gap.start_ns, START + MINUTE, gap.labels, gap.code, gap.text)
    other = HistoryEvent(HistoryEventKind.HEALTH, START + HOUR, None, gpu(0), "XID_79", "fell off the bus")
    with HistoryWriter(tmp_path, clock=lambda: START + 5 * HOUR) as writer:
        writer.append_events([gap, other])
        writer.flush()
        history = history_at(tmp_path)
        assert history.events(START, START + 2 * HOUR) == [gap, other]
        writer.compact()
        writer.append_events([ended])
        writer.flush()
        assert history.events(START, START + 2 * HOUR) == [ended, other]
        writer.compact()
        assert history.events(START, START + 2 * HOUR) == [ended, other]
        assert history.events(START + 2 * MINUTE, START + 2 * HOUR) == [other]
        assert history.events(START, START + 2 * HOUR, where={"uuid": "GPU-n0:9400-0"}) == [other]


def test_a_range_may_end_with_the_first_row_of_a_file(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path, clock=lambda: START + 2 * HOUR) as writer:
        for second in (1, 2):
            writer.append(block([gpu(0)], START + second * SECOND, **{POWER: [float(second)]}))
        writer.compact()
        history = history_at(tmp_path)
        for second in (1, 2):
            time = TimeRange(START, START + second * SECOND, SECOND)
            assert as_dict(history.range(Question(POWER), time)) == {gpu(0): [1.0, 2.0][:second]}
        assert as_dict(history.latest(Question(POWER), at_ns=START + SECOND)) == {gpu(0): [1.0]}
