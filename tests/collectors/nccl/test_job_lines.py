"""Lines of torch, nccl-tests and NCCL's dump are read as their versions write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.nccl.log import read_log
from stepscope.core.documents.nccl_facts import (
    BenchmarkBegun,
    BenchmarkFailed,
    BenchmarkRank,
    BenchmarkRow,
    CallFailed,
    GroupProgress,
    LogEvent,
    LogPlace,
    Measured,
    OutOfBounds,
    TimedOut,
    TopologyNode,
    Version,
    Warned,
    WatchdogStuck,
)

_PLACE = LogPlace("log", 1)


def _read(*lines: str) -> list[LogEvent]:
    return list(read_log(enumerate(lines, 1), file="log"))


def _row(size: int, kind: str, reduction: str, *numbers: float | None, wrong: int | None = 0) -> BenchmarkRow:
    us, bus, in_place_us, in_place_bus = numbers
    assert us is not None
    assert bus is not None
    return BenchmarkRow(_PLACE, size, kind, reduction, us, bus, in_place_us, in_place_bus, wrong)


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("  1073741824     268435456     float     sum      -1   6759.0  158.86  297.86  0  6737.4  159.37  298.82  0",
         _row(1073741824, "float", "sum", 6759.0, 297.86, 6737.4, 298.82)),
        # 2.10 and older have no root, others no operation, and the error of the values
        ("         512           128     float     sum    62.51    0.01    0.01  2e-06    62.17    0.01    0.01  2e-06",
         _row(512, "float", "sum", 62.51, 0.01, 62.17, 0.01, wrong=None)),
        ("  4294967296     134217728   float    29122  129.05  129.05  1e+00    29169  128.84  128.84  1e+00",
         _row(4294967296, "float", "", 29122.0, 129.05, 29169.0, 128.84, wrong=None)),
        ("    33554432       8388608     float    none      -1    19.56  1715.44  0.00   0   0.78  43046   0.00   N/A",
         _row(33554432, "float", "", 19.56, 0.0, 0.78, 0.0)),
        ("[1,0]<stdout>:        1024   256  bfloat16  none  0  3.0  1.00  1.00  2  3.5  1.00  1.25  1",
         _row(1024, "bfloat16", "", 3.0, 1.0, 3.5, 1.25, wrong=3)),
        ("2026-05-02T08:11:20.1Z stdout F         1024   256  f8e4m3  max  -1  3.0  1.00  1.00  0",
         _row(1024, "f8e4m3", "max", 3.0, 1.0, None, None)),
        ("     1024   256  half  sum  -1  3.0  1.0  2.0  0  2.9  3.1  3.0  0.1  4.0  1.0  2.5  0  3.9  4.1  4.0  0.1",
         _row(1024, "half", "sum", 3.0, 2.0, 4.0, 2.5)),
        ("#  Rank  8 Group  0 Pid   6733 on gq73 device  0 [0000:04:00] NVIDIA H100 80GB HBM3",
         BenchmarkRank(_PLACE, 8, "gq73", "NVIDIA H100 80GB HBM3")),
        ("   Rank  0 Pid   1320 on ip-172-31 device  0 [0x00] Tesla V100",
         BenchmarkRank(_PLACE, 0, "ip-172-31", "Tesla V100")),
        ("# Collective test starting: alltoall_perf", BenchmarkBegun(_PLACE, "alltoall_perf")),
        ("# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor)", BenchmarkBegun(_PLACE, "")),
        (" Out of bounds values : 2 FAILED", OutOfBounds(_PLACE, 2)),
        ("# Avg bus bandwidth    : 3.1 FAILED", Measured(_PLACE, 3.1, is_too_low=True)),
        ("node3: Test CUDA failure common.cu:401 'out of memory'",
         BenchmarkFailed(_PLACE, "node3", "out of memory (common.cu:401)")),
        ("node3: Test timeout (30s) common.cu:523", BenchmarkFailed(_PLACE, "node3", "no progress for 30 s")),
        ("# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22904", Version(_PLACE, "2.29.4")),
        ("NCCL version 2.21.5+cuda12.4", Version(_PLACE, "2.21.5+cuda12.4")),
        ("RuntimeError: NCCL error in: ../torch/a.cpp:891, internal error, NCCL version 2.7.8",
         CallFailed(_PLACE, "internal error", "2.7.8")),
        ("[rank7]:[E626 05:14:36.3 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 7] "
         "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",
         WatchdogStuck(_PLACE, 7, 480)),
        ("[80748] [rank0]:[E321 ProcessGroupNCCL.cpp:1664] [PG 1 Rank 0] Exception (either an error or timeout) "
         "detected by watchdog at work: 1580, last enqueued NCCL work: 1582, last completed NCCL work: 1579.",
         GroupProgress(_PLACE, 0, "1", 1580, 1582, 1579)),
        ("[Rank 3] Timeout at NCCL work: 5, last enqueued NCCL work: 6, last completed NCCL work: -1.",
         GroupProgress(_PLACE, 3, None, 5, 6, None)),
        ("[rank1]:[E602] [PG ID 0 PG GUID 0(default_pg) Rank 1] Observed flight recorder dump signal from another rank",
         GroupProgress(_PLACE, 1, "0(default_pg)", None)),
        ("[E ProcessGroupNCCL.cpp:828] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL("
         "OpType=BROADCAST, Timeout(ms)=1800000) ran for 1808499 milliseconds",
         TimedOut(_PLACE, 3, None, "BROADCAST", 1808499)),
        ("[rank0]: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7753, "
         "OpType=_REDUCE_SCATTER_BASE, NumelIn=80, NumelOut=10, Timeout(ms)=600000) ran for 600061 milliseconds",
         TimedOut(_PLACE, 0, 7753, "_REDUCE_SCATTER_BASE", 600061, None, 8)),
        ("+ NET[25.0] - NET/0 (0/0/25.000000)", TopologyNode(_PLACE, 1, "NET", 25.0, "NET", "0")),
        ("W The client socket has timed out after 900000ms while trying to connect to (10.0.0.1, 29500).",
         Warned(_PLACE, "The client socket has timed out after 900000ms while trying to connect to (10.0.0.1, 29500).")
         ),
    ],
)  # fmt: skip
def test_what_programs_write(line: str, event: LogEvent) -> None:
    assert _read(line) == [event]


@pytest.mark.parametrize("before", ["", "[rank3]: "])
def test_the_last_error_that_torch_repeats_is_nccl_s_warning(before: str) -> None:
    lines = ["ncclInvalidUsage: This usually reflects invalid usage.", "Last error:", "Duplicate GPU detected : rank 1"]
    assert _read(*(before + line for line in lines)) == [Warned(LogPlace("log", 3), "Duplicate GPU detected : rank 1")]


@pytest.mark.parametrize(
    ("line", "process"),
    [
        ("[3] include/shm.h:28 NCCL WARN odd", "[3]"),
        ("NCCL WARN odd", ""),
        ("[0604/1024][2025-02-16 22:31:34,422] [misc/socket.cc:586] [gn3064:pid=3942408] NCCL WARN odd", ""),
        ("host:1:2 [0] misc/socket.cc:9 (ncclCommInitRank) NCCL WARN odd", "host:1"),
        ("host:1:2 [0] include/socket.h:360 WARN odd", "host:1"),
    ],
)
def test_warnings_without_a_process_or_with_more_than_it(line: str, process: str) -> None:
    assert _read(line) == [Warned(LogPlace("log", 1, process), "odd")]


@pytest.mark.parametrize(
    "line",
    [
        "If you see `NCCL INFO Using network Socket`, your pods have fallen back",
        "look for NCCL WARN in the log",
        "  8   2   float  sum  -1  a  b  c  d",
        "  8   2   float  sum  -1  nan  0  0  0",
        "Watchdog caught collective operation timeout: WorkNCCL(OpType=A, Timeout(ms)=1) ran for 1 milliseconds",
    ],
)
def test_what_only_looks_like_it_is_passed_over(line: str) -> None:
    assert _read(line) == []


_PARTS = st.sampled_from(
    [
        *("[rank1]", "[Rank 3]", "Watchdog caught collective operation timeout: WorkNCCL(", "SeqNum=5, ", "OpType=A"),
        *("ran for", " 9 milliseconds", "dump signal", "Last enqueued NCCL work: 6, last completed NCCL work: 6"),
        *("  8  2  float  ", "1.0 ", "NCCL error in: ", ": Test NCCL failure a:1 '", "nccl-library=22807", "+ NVL["),
        *("] - GPU/", "# Avg bus bandwidth : "),
    ]
)


@given(st.lists(_PARTS, max_size=14).map("".join))
def test_any_order_of_their_parts_is_read(line: str) -> None:
    _read(line)
