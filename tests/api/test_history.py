"""The metric history in the Python API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import stepscope
from stepscope.api.history import History, _duration_ns, _time_ns
from stepscope.core.errors import DataError, UsageError
from stepscope.store.history.questions import HistoryEvent, HistoryEventKind, Labels
from stepscope.store.history.samples import SampleBlock
from stepscope.store.history.writer import HistoryWriter

_START = pd.Timestamp("2026-11-01T00:00Z")


def _gpu(node: int, gpu: int) -> Labels:
    return (("gpu", str(gpu)), ("instance", f"n{node}:9455"), ("rack", f"r{node // 2}"), ("uuid", f"GPU-{node}-{gpu}"))


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Four nodes of two GPUs for an hour; a GPU's power is 100 W times its node plus 10 W times its number."""
    folder = tmp_path_factory.mktemp("api") / "history"
    times = _START.as_unit("ns").value + np.arange(15, 3601, 15, dtype=np.int64) * 10**9
    entities = tuple(_gpu(node, gpu) for node in range(4) for gpu in range(2))
    power = np.repeat([100.0 * node + 10.0 * gpu for node in range(4) for gpu in range(2)], len(times))
    entity = np.repeat(np.arange(8, dtype=np.int32), len(times))
    with HistoryWriter(folder) as writer:
        writer.append(SampleBlock(entities, entity, np.tile(times, 8), {"stepscope_gpu_power_watts": power}))
        start = int(times[10])
        event = HistoryEvent(HistoryEventKind.GAP, start, None, (("instance", "n1:9455"),), "timeout", "no answer")
        writer.append_events([event])
        writer.flush()
    loaded: History = stepscope.history(str(folder))
    return loaded


def test_range_has_a_row_a_step_and_a_column_a_group(history: History) -> None:
    frame = history.range("gpu_power_watts", start=_START, end="2026-11-01T01:00Z", step="10m")
    assert list(frame.index) == [_START + pd.Timedelta(minutes=10 * (step + 1)) for step in range(6)]
    assert frame.columns.names == ["instance", "gpu", "uuid"]
    assert frame[("n3:9455", "1", "GPU-3-1")].tolist() == [310.0] * 6
    by_node = history.range("stepscope_gpu_power_watts", by="node", start=_START, end="2026-11-01T01:00Z", step="1h")
    assert by_node.iloc[0].to_dict() == {f"n{node}:9455": 100.0 * node + 5.0 for node in range(4)}


@pytest.mark.parametrize(("hours", "step"), [(1, "4s"), (24, "2min"), (720, "44min")])
def test_a_range_without_a_step_has_some_thousand_in_whole_units(history: History, hours: int, step: str) -> None:
    end = _START + pd.Timedelta(hours=1, microseconds=7)
    frame = history.range("gpu_power_watts", by="node", start=end - pd.Timedelta(hours=hours), end=end)
    assert set(np.diff(frame.index)) == {pd.Timedelta(step)}
    assert 720 <= len(frame) <= 1000
    assert set(frame["n1:9455"].dropna()) == {105.0}


def test_groups_statistics_and_labels(history: History) -> None:
    asked: dict[str, Any] = {"start": _START, "end": "2026-11-01T01:00Z", "step": 3600}
    racks = history.range("gpu_power_watts", by="rack", statistic="sum", **asked)
    assert racks.iloc[0].to_dict() == {"r0": 220.0, "r1": 1020.0}
    one = history.range("gpu_power_watts", by=[], statistic="count", where={"rack": ["r1"]}, **asked)
    assert one.iloc[0].to_dict() == {"all": 4.0}


def test_latest_values(history: History) -> None:
    frame = history.latest("gpu_power_watts", by="node", at="2026-11-01T01:00:05Z")
    assert frame["value"].to_dict() == {f"n{node}:9455": 100.0 * node + 5.0 for node in range(4)}
    assert set(frame["time"]) == {_START + pd.Timedelta(hours=1)}
    assert history.latest("gpu_power_watts", at="2026-11-02T00:00Z").empty


def test_events_and_metrics(history: History) -> None:
    (row,) = history.events(start=_START, end="2026-11-02").to_dict("records")
    assert (row["kind"], row["code"], row["text"]) == ("gap", "timeout", "no answer")
    assert row["end"] is pd.NaT
    assert row["labels"] == {"instance": "n1:9455"}
    assert history.metrics().loc["stepscope_gpu_power_watts"].to_dict() == {"kind": "gauge", "unit": "watts"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": "gpu_power"}, "unknown metric"),
        ({"by": "gpus"}, "unknown group"),
        ({"statistic": "median"}, "unknown statistic"),
        ({"start": "yesterday-ish"}, "is not a time"),
        ({"step": "soon"}, "is not a duration"),
        ({"start": "now", "end": "-1h"}, "the time is empty"),
        ({"step": 0}, "the step is empty"),
        ({"start": None}, "is not a time"),
        ({"start": ""}, "is not a time"),
        ({"start": True}, "is not a time"),
        ({"start": "-"}, "is not a time"),
        ({"start": "-2"}, "has no unit"),
        ({"start": "--2h"}, "is negative"),
        ({"step": "90"}, "has no unit"),
        ({"step": pd.NaT}, "is not a duration"),
        ({"step": "-5m"}, "is negative"),
    ],
)
def test_questions_that_make_no_sense_are_one_line(history: History, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        history.range(**{"metric": "gpu_power_watts", **arguments})
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_history_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a metric history"):
        stepscope.history(str(tmp_path))


_SECONDS = 1_793_000_000


@pytest.mark.parametrize(
    "time",
    [
        _SECONDS,
        float(_SECONDS),
        np.int64(_SECONDS),
        np.float64(_SECONDS),
        np.datetime64(_SECONDS, "s"),
        pd.Timestamp(_SECONDS, unit="s", tz="Europe/Berlin"),
        datetime.fromtimestamp(_SECONDS, UTC),
        "2026-10-26T07:33:20Z",
        "2026-10-26 07:33:20",
        "2026-10-26T08:33:20+01:00",
    ],
    ids=repr,
)
def test_one_time_in_all_its_forms(time: Any) -> None:
    assert _time_ns(time) == _SECONDS * 10**9


def test_the_hour_that_a_clock_has_twice_is_two_hours() -> None:
    first, second = ("2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00")
    assert _time_ns(second) - _time_ns(first) == 3600 * 10**9
    assert _time_ns("2026-10-25T02:30") == _time_ns("2026-10-25T02:30Z")


@pytest.mark.parametrize(
    "duration", [90, 90.0, np.int64(90), "90s", "1m30s", timedelta(seconds=90), np.timedelta64(90, "s")]
)
def test_one_duration_in_all_its_forms(duration: Any) -> None:
    assert _duration_ns(duration) == 90 * 10**9


def test_cost_by_something_else_names_the_groups(history: History) -> None:
    with pytest.raises(UsageError, match="job, user, team, node"):
        history.cost(by="rack", start=_START, end="2026-11-01T01:00Z")


@pytest.mark.parametrize(("step", "rows"), [(None, 420), ("1m", 7), (0.5, 840), (1 / 3, 1257)])
def test_times_until_now_can_be_asked_for(history: History, step: Any, rows: int) -> None:
    frame = history.range("gpu_power_watts", start="-7m", step=step)
    assert rows <= len(frame) <= rows + 2
    start, end = (_START.timestamp() + seconds for seconds in (0.0004, 3599.9991))
    assert history.range("gpu_power_watts", start=start, end=end, step="1m", by="node").shape == (60, 4)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("duration", "hours"), [("7d", 168), ("1d2h", 26), ("2 d", 48), ("1 day", 24), ("1D", 24)])
def test_days_are_taken_without_a_warning(duration: str, hours: int) -> None:
    assert _duration_ns(duration) == hours * 3600 * 10**9


def test_groups_that_no_series_has_are_unknown_not_all(history: History) -> None:
    frame = history.range("gpu_power_watts", by="mig_profile", start=_START, end="2026-11-01T01:00Z", step="1h")
    assert (frame.columns.name, list(frame.columns)) == ("mig_profile", [""])


@pytest.mark.parametrize("call", ["events", "jobs", "cost"])
def test_a_time_that_ends_before_it_begins_is_one_line(history: History, call: str) -> None:
    with pytest.raises(UsageError, match="the time is empty"):
        getattr(history, call)(start="now", end="-1h")
