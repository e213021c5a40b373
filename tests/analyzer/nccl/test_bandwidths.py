"""Runs of nccl-tests are told with their table, peak and end; a run that failed is no result."""

from __future__ import annotations

import pytest

from stepscope.analyzer.nccl import explain_nccl
from stepscope.collectors.nccl.log import read_log
from stepscope.core.documents.nccl import BenchmarkSize, NcclReport

_HEAD = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 graph: 0
# Using devices
#  Rank  0 Group  0 Pid   6899 on b device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   6900 on a device  0 [0000:05:00] NVIDIA H100 80GB HBM3
"""
_TABLE = """\
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
        1024           256     float     sum      -1    147.1    0.01    0.01      0    123.1    0.01    0.02      0
a:1:1 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
     1048576        262144     float     sum      -1    203.2    5.16    9.68      0    207.2    5.06    9.49      0
"""
_END = """\
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 4.8
# Collective test concluded: all_reduce_perf_mpi
"""


def _explain(text: str) -> NcclReport:
    return explain_nccl(list(read_log(enumerate(text.splitlines(), 1), file="log")))


def test_a_run_with_its_table() -> None:
    report = _explain(_HEAD + _TABLE + _END)
    (run,) = report.benchmarks
    assert (run.test, run.num_ranks, run.machines, run.gpu) == ("all_reduce", 2, ["a", "b"], "NVIDIA H100 80GB HBM3")
    assert (run.peak_bus_gbs, run.peak_bytes, run.mean_bus_gbs, run.ok, run.why) == (9.68, 1048576, 4.8, True, "")
    assert run.sizes[0] == BenchmarkSize(1024, "float", "sum", 147.1, 0.01, 123.1, 0.02, 0)
    assert report.findings == []
    assert [(one.collective, one.num_ranks, one.bus_bandwidth_gbs) for one in report.bandwidths] == [
        ("all_reduce", 2, 4.8)
    ]


_NCCL = "a:1:1 [0] NCCL INFO AllReduce: opCount 0"


@pytest.mark.parametrize(
    "table",
    [
        # NCCL's lines between the parts and behind them
        f"     1048576        262144     float     sum      -1{_NCCL}\n{_NCCL}\n"
        f"    203.2    5.16    9.68      0{_NCCL}\n{_NCCL}\n    207.2    5.06    9.49      0\n",
        f"     1048576        262144     float     sum      -1    203.2    5.16    9.68      0{_NCCL}\n"
        f"   1.0   2.00   3.00      0\n{_NCCL}\n    207.2    5.06    9.49      0{_NCCL}\n",
        # a launcher's tags
        "[0]     1048576        262144     float     sum      -1[0]    203.2    5.16    9.68      0[0]    207.2    5.06"
        "    9.49      0\n",
    ],
)
def test_rows_that_other_lines_break_up_are_joined(table: str) -> None:
    """Numbers between the parts that are no part of the row are passed over."""
    report = _explain(_HEAD + table + "# Avg bus bandwidth    : 9.58\n")
    (run,) = report.benchmarks
    assert run.sizes == [BenchmarkSize(1048576, "float", "sum", 203.2, 9.68, 207.2, 9.49, 0)]
    assert (report.findings, report.machines) == ([], ["a", "b"])


def test_a_table_with_one_part_a_row() -> None:
    heading = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    row = f"     1048576        262144     float     sum      -1{_NCCL}\n    203.2    5.16    9.68      0\n"
    (run,) = _explain(_HEAD + heading + row + "# Avg bus bandwidth    : 9.68\n").benchmarks
    assert [(one.bus_gbs, one.in_place_bus_gbs) for one in run.sizes] == [(9.68, None)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [("", "only the mean is known, 12.50 GB/s"), (_TABLE, "which is above the best row read, 9.68 GB/s")],
)
def test_a_mean_above_every_row_proves_that_rows_are_missing(rows: str, said: str) -> None:
    (finding,) = _explain(_HEAD + rows + "# Avg bus bandwidth    : 12.5\n").findings
    assert finding.code == "benchmark_rows_missing"
    assert finding.message.endswith(said)


def test_the_number_of_ranks_is_that_of_the_highest_one() -> None:
    (run,) = _explain("#  Rank 71 Group  0 Pid   6899 on b device  3 [0x01] NVIDIA H100\n" + _TABLE + _END).benchmarks
    assert run.num_ranks == 72


def test_runs_of_one_log_are_told_apart() -> None:
    later = _TABLE.replace("9.68", "19.68")
    named = "# Collective test starting: all_gather_perf\n"
    runs = _explain(f"{_HEAD}{_TABLE}{_END}{named}{_HEAD}{later}# Avg bus bandwidth    : 9\n{_HEAD}{_TABLE}").benchmarks
    assert [(one.test, one.peak_bus_gbs, one.ok) for one in runs] == [
        ("all_reduce", 9.68, True),
        ("all_gather", 19.68, True),
        ("", 9.68, None),
    ]


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (_HEAD + _TABLE + "a: Test NCCL failure all_reduce.cu:44 'unhandled cuda error / Call to a failed'\n",
         "benchmark_failed", "failed: a: unhandled cuda error / Call to a failed (all_reduce.cu:44)"),
        (_HEAD + _TABLE + "a: Test timeout (30s) common.cu:523\n", "benchmark_failed", "a: no progress for 30 s"),
        (_HEAD + _TABLE + "# Out of bounds values : 248 FAILED\n", "benchmark_failed", "248 wrong values; data is"),
        (_HEAD + _TABLE.replace("9.49      0", "9.49      7"), "benchmark_failed", "7 wrong values"),
        (_HEAD + _TABLE + "# Avg bus bandwidth    : 1.2 FAILED\n", "benchmark_failed", "below the limit"),
        (_HEAD + _TABLE, "benchmark_unfinished", "has no end in this file after 1.0 MiB"),
    ],
)  # fmt: skip
def test_a_run_that_failed_or_has_no_end(text: str, code: str, said: str) -> None:
    report = _explain(text)
    (finding,) = report.findings
    assert finding.code == code
    assert said in finding.message
    assert report.benchmarks[0].ok is (None if code == "benchmark_unfinished" else False)
    assert report.benchmarks[0].peak_bus_gbs == 9.68


def test_processes_that_each_ran_alone() -> None:
    """nccl-tests#107: built without MPI=1."""
    alone = "\n".join(line for line in _HEAD.splitlines() if "Rank  1" not in line) + "\n"
    findings = _explain(alone + alone + _TABLE + _END).findings
    assert [one.code for one in findings] == ["benchmark_without_mpi"]
    assert "2 processes are each rank 0" in findings[0].message
