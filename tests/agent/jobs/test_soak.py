"""Hours of jobs that start and end: nothing grows. Row 22 of the bug log."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from pathlib import Path

import stepscope
from stepscope.core.metrics.readings import Collection
from tests.agent.jobs.node import SLURM_V2, Node, pod_cgroup

_PACKAGE = Path(stepscope.__file__).parent
_ROUNDS = 600
_STEP_SECONDS = 50.0
_GROWN_BYTES = 30_000


def _bytes_of_ours() -> int:
    gc.collect()
    ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, f"{_PACKAGE}/*")])
    return sum(one.size for one in ours.statistics("filename"))


def test_hours_leave_nothing_behind(tmp_path: Path) -> None:
    node = Node(tmp_path)
    watch = node.watch()
    threads = threading.active_count()
    told = Collection()
    sizes: list[int] = []
    series: list[int] = []
    tracemalloc.start()
    try:
        for number in range(_ROUNDS):
            pid = 1000 + number
            cgroup = SLURM_V2.format(job=pid, step=0)
            if number % 3 == 0:
                cgroup = pod_cgroup(f"0f3b7c1e-1111-4222-8333-{number:012x}")
            node.hold(number % 2, node.process(pid, cgroup, {"SLURM_JOB_NAME": f"job-{number}", "TEAM": "core"}))
            node.utilization = {0: 0.5}
            node.now += _STEP_SECONDS
            told = watch.collect()
            if number >= 4:
                old = pid - 4
                node.end(old)
                node.release((number - 4) % 2, old)
            if number % 150 == 149:
                sizes.append(_bytes_of_ours())
                series.append(len(told.readings))
    finally:
        tracemalloc.stop()
    assert max(sizes) - sizes[0] < _GROWN_BYTES, sizes
    assert max(series) < 150, series
    assert threading.active_count() == threads
    assert sum(one.value for one in told.readings if one.metric == "stepscope_gpu_use_seconds_total") > 0
