"""State of a cluster by its history: nodes, GPUs, figures, deviations."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stepscope.core.errors import UsageError
from stepscope.workflow.history.cluster import ClusterReader, ClusterState, map_metric, natural

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")
from benchmarks.history.agreement import keep, parsed
from benchmarks.history.live_hour import RawPage
from benchmarks.history.servers import prometheus_server, write_pages
from stepscope.workflow.history.opening import open_history
from tests.dashboard import example_history as example

NODES, DOWN = 12, (4,)
STALE_NS = 60 * 10**9


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A history and the time of its end."""
    end_ns = time.time_ns()
    return example.write_history(
        tmp_path_factory.mktemp("h") / "history", nodes=NODES, down=DOWN, end_ns=end_ns
    ), end_ns


@pytest.fixture(scope="module")
def state(written: tuple[Path, int]) -> ClusterState:
    """The cluster at the end of the history."""
    return ClusterReader(open_history(str(written[0])), stale_after_ns=STALE_NS).read(None, written[1])


def test_nodes_are_in_order_and_one_does_not_answer(state: ClusterState) -> None:
    assert [node.name for node in state.nodes] == [example.node_name(node) for node in range(NODES)]
    assert [node.rack for node in state.nodes] == ["rack-001"] * 8 + ["rack-002"] * 4
    assert [number for number, node in enumerate(state.nodes) if not node.is_up] == [4]
    assert state.num_up == NODES - 1
    assert not state.is_stale


def test_a_node_that_does_not_answer_keeps_its_place_and_has_no_values(state: ClusterState) -> None:
    assert len(state.gpus) == NODES * 8
    assert [cell for cell, value in enumerate(state.values) if math.isnan(value)] == list(range(32, 40))
    assert state.node_of(32).name == example.node_name(4)
    assert dict(state.gpus[29]) == {"instance": example.node_name(3), "gpu": "5", "uuid": "GPU-0003-5"}


def test_figures_count_what_the_history_says_now(state: ClusterState) -> None:
    held = (NODES - 2) * 8  # the last node has no job, one does not answer
    assert (state.allocated, state.busy) == (held, held)
    assert state.watts is not None
    assert state.watts == pytest.approx(90.0 * 88 + 600.0 * (0.86 * (held - 1) + 0.31), rel=0.01)
    assert [event.code for event in state.open_events] == ["xid_79", "timed_out"]


def test_gpus_are_compared_with_the_median_of_their_job(state: ClusterState) -> None:
    slow = state.deviations[3 * 8 + 5]
    assert slow is not None
    assert slow.value == pytest.approx(0.31, abs=0.02)
    assert slow.median == pytest.approx(0.86, abs=0.02)
    assert state.jobs[0] == ("slurm", "1000")
    assert state.jobs[-1] is None
    assert state.deviations[-1] is None
    assert state.values[-1] == pytest.approx(0.0, abs=0.02)


def test_the_most_abnormal_gpus_say_why_the_faulty_one_first(state: ClusterState) -> None:
    assert [one.cell for one in state.abnormal] == [6 * 8 + 2, 3 * 8 + 5]
    assert state.abnormal[0].why == (example.XID_TEXT,)
    (why,) = state.abnormal[1].why
    assert re.fullmatch(r"SM activity 3\d\.\d%, median of its job 8\d\.\d% \(−5\d\.\d points\)", why)


def test_another_metric_has_its_own_words(written: tuple[Path, int]) -> None:
    reader = ClusterReader(open_history(str(written[0])), stale_after_ns=STALE_NS)
    power = reader.read("power", written[1])

    assert [metric.key for metric in power.metrics] == ["sm-active", "power", "temperature"]
    assert power.metric is not None
    assert power.metric.key == "power"
    assert " W, median of its job 60" in power.abnormal[1].why[0]
    unknown = reader.read("tensor-active", written[1], reuse_ns=10**9)
    assert unknown.metric is not None
    assert unknown.metric.key == "sm-active"


def test_old_data_are_stale_and_a_day_without_any_is_empty(written: tuple[Path, int]) -> None:
    reader = ClusterReader(open_history(str(written[0])), stale_after_ns=STALE_NS)
    later = reader.read(None, written[1] + 3600 * 10**9)

    assert later.is_stale
    assert len(later.nodes) == NODES
    assert reader.read(None, written[1] + 2 * 86400 * 10**9).at_ns is None


def test_names_are_sorted_by_their_numbers() -> None:
    assert sorted(["n10", "n9", "m", "n9b", "n"], key=natural) == ["m", "n", "n9", "n9b", "n10"]


def test_an_unknown_metric_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="no metric 'watts'") as refused:
        map_metric("watts")
    assert "sm-active" in (refused.value.what_next or "")


def _pages(end_ms: int) -> Iterator[RawPage]:
    """Four minutes of three nodes with two GPUs; the last one does not answer in the last minute."""
    for number, node in itertools.product(range(16), range(3)):
        target = (("instance", f"n{node}:9455"), ("rack", f"r{node // 2}"))
        lines = []
        for gpu in range(2):
            labels = f'gpu="{gpu}",uuid="GPU-{node}-{gpu}"'
            job = 'job_id="7",job_kind="slurm",share="exclusive"'
            share = 0.2 if (node, gpu) == (1, 0) else 0.9
            lines += [f"stepscope_gpu_up{{{labels}}} 1", f"stepscope_gpu_sm_active_ratio{{{labels}}} {share}"]
            lines += [f'stepscope_gpu_job_info{{{labels},source="process",{job}}} 1']
            lines += [
                f"stepscope_gpu_power_watts{{{labels}}} 500",
                f'stepscope_gpu_use_state{{{labels},state="busy"}} 1',
            ]
        text = "\n".join([*lines, ""]).encode()
        yield RawPage(target, end_ms - (15 - number) * 15_000, None if node == 2 and number >= 12 else text)


def test_prometheus_and_our_own_store_show_the_same_cluster(tmp_path: Path) -> None:
    end_ms = int(time.time()) * 1000
    pages = list(_pages(end_ms))
    with ExitStack() as stack:
        try:
            url = stack.enter_context(prometheus_server(tmp_path))
        except FileNotFoundError as error:
            pytest.skip(str(error))
        write_pages(url, parsed(pages))
        states = [
            ClusterReader(history, stale_after_ns=STALE_NS).read("sm-active", end_ms * 10**6 + 10**9)
            for history in (keep(tmp_path / "history", pages), open_history(url))
        ]
    for state in states:
        assert [(node.name, node.rack, node.is_up, node.num_gpus) for node in state.nodes] == [
            ("n0:9455", "r0", True, 2),
            ("n1:9455", "r0", True, 2),
            ("n2:9455", "r1", False, 2),
        ]
        assert state.values[:4].tolist() == pytest.approx([0.9, 0.9, 0.2, 0.9])
        assert (state.allocated, state.busy, state.watts) == (4, 4, 2000.0)
        assert state.jobs[:4] == (("slurm", "7"),) * 4
        assert [one.cell for one in state.abnormal] == [2]
        assert state.abnormal[0].why == ("SM activity 20.0%, median of its job 90.0% (−70.0 points)",)
        assert not state.is_stale
