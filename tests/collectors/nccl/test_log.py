"""Each kind of line is read, whatever a launcher puts before it; all others are skipped."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.nccl.log import read_log
from stepscope.core.documents.nccl_facts import (
    Benchmarked,
    CardEvent,
    Cards,
    Channels,
    DirectMemory,
    FailedTransfer,
    Join,
    JoinSeconds,
    LogEvent,
    LogPlace,
    Measured,
    Network,
    NoInfiniBand,
    NoPlugin,
    RingPath,
    Rings,
    Setting,
    Shape,
    TimedOut,
    TopologyNode,
    TrainerTimes,
    Version,
    Warned,
)

_PLACE = LogPlace("log", 1, "nodeA:1234")


def _read(*lines: str) -> Sequence[LogEvent]:
    return list(read_log(((number, line + "\n") for number, line in enumerate(lines, 1)), file="log"))


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("NCCL version 2.28.9+cuda13.0", Version(_PLACE, "2.28.9+cuda13.0")),
        ("NCCL_IB_DISABLE set by environment to 1.", Setting(_PLACE, "NCCL_IB_DISABLE", "1")),
        ("NCCL_NET_GDR_LEVEL set by environment to PIX", Setting(_PLACE, "NCCL_NET_GDR_LEVEL", "PIX")),
        ("NET/IB : No device found.", NoInfiniBand(_PLACE)),
        ("NET/IB: No device found.", NoInfiniBand(_PLACE)),
        ("NET/Plugin: Could not find: libnccl-net-ofi.so", NoPlugin(_PLACE, "libnccl-net-ofi.so")),
        ("NET/Plugin : No plugin found (libnccl-net.so), using internal", NoPlugin(_PLACE, "libnccl-net.so")),
        ("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
         Cards(_PLACE, "IB", ("mlx5_0:1/IB", "mlx5_1:1/RoCE"))),
        ("NET/Socket : Using [0]bond0:10.0.0.1<0>", Cards(_PLACE, "Socket", ("bond0:10.0.0.1",))),
        ("Using network AWS Libfabric", Network(_PLACE, "AWS Libfabric")),
        ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", DirectMemory(_PLACE, "mlx5_0", is_enabled=False)),
        ("[Rank 3] ncclCommInitRank comm 0x1 rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId 18000 commId 0xab - Init START",
         Join(_PLACE, "0xab", 3, 8, 3, is_complete=False)),
        ("ncclCommInitRankConfig comm 0x1 rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId 1e0 commId 0xab - Init COMPLETE",
         Join(_PLACE, "0xab", 3, 8, 3, is_complete=True)),
        ("comm 0x1 rank 1 nranks 2 cudaDev 1 busId 7 - Init COMPLETE", Join(_PLACE, "", 1, 2, 1, is_complete=True)),
        ("Init timings - ncclCommInitRank: rank 0 nranks 16 total 1.51 (", JoinSeconds(_PLACE, 0, 16, 1.51)),
        ("Init timings: rank 0 nranks 16 total 1.51 (", JoinSeconds(_PLACE, 0, 16, 1.51)),
        ("comm 0x1 rank 8 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0", Shape(_PLACE, 8, 16, 2, 8)),
        ("Channel 00/0 : 12[4] -> 11[3] via P2P/IPC", RingPath(_PLACE, 12, 11, "P2P/IPC")),
        ("Channel 00 : 0[1a000] -> 1[1b000] via P2P/direct pointer", RingPath(_PLACE, 0, 1, "P2P/direct pointer")),
        ("Channel 00/0 : 9[1] -> 0[0] [send] via NET/IB/0(8)/GDRDMA", RingPath(_PLACE, 9, 0, "NET/IB/0(8)/GDRDMA")),
        ("Channel 00/0 : 9[1] -> 0[0] [receive] via NET/Socket/0", RingPath(_PLACE, 9, 0, "NET/Socket/0")),
        ("Ring 00 : 0[0] -> 1[1] via SHM/direct", RingPath(_PLACE, 0, 1, "SHM/direct")),
        ("Connected all rings, use ring PXN 1 GDR 1", Rings(_PLACE, uses_direct_memory=True)),
        ("Connected all rings, use ring PXN 0 GDR 0", Rings(_PLACE, uses_direct_memory=False)),
        ("24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels", Channels(_PLACE, 24, 16)),
        ("2 coll channels, 2 p2p channels, 2 p2p channels per peer", Channels(_PLACE, 2, 0)),
        ("NET/IB: Got completion from peer 10.0.0.2<36473> with status=12 opcode=0 len=0 vendor err 129 (Send) "
         "localGid ::ffff:10.0.0.1 remoteGids::ffff:10.0.0.2 hca mlx5_0",
         FailedTransfer(_PLACE, "10.0.0.2<36473>", 12, 129, "mlx5_0")),
        ("NET/IB : Got completion with error 12, opcode 1, len 32478, vendor err 129",
         FailedTransfer(_PLACE, "", 12, 129, "")),
        # 2.28 and newer spell status and operation out
        ("NET/IB: Got completion from peer 10.0.0.2<36473> with status=IBV_WC_RETRY_EXC_ERR(12) "
         "opcode=IBV_WC_SEND(0) vendor_err=129  localGid fe80::1 remoteGids fe80::2 hca mlx5_0",
         FailedTransfer(_PLACE, "10.0.0.2<36473>", 12, 129, "mlx5_0")),
        ("NET/IB : mlx5_0:1 Got async event : port error", CardEvent(_PLACE, "port error")),
        ("NET/IB : Using [0]mlx5_0:1/IB [1]={[0] mlx5_1:1/RoCE, [1] mlx5_2:1/RoCE} [RO]; OOB eth0:10.0.0.1<0>",
         Cards(_PLACE, "IB", ("mlx5_0:1/IB", "mlx5_1:1/RoCE", "mlx5_2:1/RoCE"))),
        # 2.4 to 2.7
        ("Ring 00 : 0[0] -> 1[1] via direct shared memory", RingPath(_PLACE, 0, 1, "SHM")),
        ("Ring 01 : 0 -> 1 [send] via NET/IB/0", RingPath(_PLACE, 0, 1, "NET/IB/0")),
        ("Channel 02 : 7[a01d0] -> 14[a01c0] [receive] via NET/AWS Libfabric/3/GDRDMA",
         RingPath(_PLACE, 7, 14, "NET/AWS Libfabric/3/GDRDMA")),
        ("ncclCommSplit comm 0x7f rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 1000 parent 0x55 splitCount 2 color 77 "
         "key 1- Init START", Join(_PLACE, "split 2 color 77", 1, 4, 1, is_complete=False)),
        ("ncclCommSplit comm 0x7f rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 1000 parent 0x55 splitCount 2 color 77 "
         "key 1 - Init COMPLETE", Join(_PLACE, "split 2 color 77", 1, 4, 1, is_complete=True)),
        ("NET/IB : mlx5_0 speed change detected", CardEvent(_PLACE, "speed change detected")),
    ],
)  # fmt: skip
def test_what_nccl_says(text: str, event: LogEvent) -> None:
    assert _read(f"nodeA:1234:1300 [0] NCCL INFO {text}") == [event]


@pytest.mark.parametrize(
    "before",
    [
        "",
        "[0] ",
        "rank0: ",
        "[rank0]: ",
        "(RayTrainWorker pid=99, ip=10.0.0.3) ",
        "[2026-03-03 12:35:26] ",
        "2026-03-03T12:35:26.123Z stderr F ",
        "worker-0 | ",
        "\x1b[36m(pid=4)\x1b[0m ",
        "[1,0]<stderr>:",
        "0: ",
    ],
)
def test_launchers_put_what_they_like_before_a_line(before: str) -> None:
    assert _read(f"{before}nodeA:1234:1300 [0] NCCL INFO Using network IB") == [Network(_PLACE, "IB")]


def test_a_line_without_a_host_and_one_with_its_source() -> None:
    assert _read("1234:1300 [0] NCCL INFO Using network IB") == [Network(LogPlace("log", 1, ":1234"), "IB")]
    assert _read("[2026-03-03 12:35:26] nodeA:1234:1300 [0] transport/net.cc:12 NCCL WARN NET/IB : something new") == [
        Warned(_PLACE, "NET/IB : something new")
    ]


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("[rank2]:[E513 13:25:57.7 ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective operation timeout: "
         "WorkNCCL(SeqNum=532339, OpType=BROADCAST, NumelIn=5164000, NumelOut=5164000, Timeout(ms)=1800000) "
         "ran for 1800042 milliseconds before timing out.",
         TimedOut(LogPlace("log", 1), 2, 532339, "BROADCAST", 1800042)),
        ("# Avg bus bandwidth    : 21.9636 ", Measured(LogPlace("log", 1), 21.9636)),
        ("# Collective test concluded: all_gather_perf", Benchmarked(LogPlace("log", 1), "all_gather_perf")),
        ("time (ms) | forward: 376.60 | step: 22.87",
         TrainerTimes(LogPlace("log", 1), {"forward": 376.6, "step": 22.87})),
        ("        + PCI[24.0] - GPU/4000 (0)", TopologyNode(LogPlace("log", 1), 9, "PCI", 24.0, "GPU", "4000")),
    ],
)  # fmt: skip
def test_what_others_say(line: str, event: LogEvent) -> None:
    assert _read(line) == [event]


@pytest.mark.parametrize(
    "line",
    ["", "loss 2.3", "an NCCL error", "nodeA:1:2 [0] NCCL INFO P2P Chunksize set to 524288", "time (ms) | a: b | c: 1"],
)
def test_what_means_nothing_is_passed_over(line: str) -> None:
    assert _read(line) == []


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=200), max_size=5))
def test_any_text_is_read(lines: list[str]) -> None:
    _read(*lines)


_WORDS = [
    "NCCL",
    "INFO",
    "nodeA:1:2",
    "[0]",
    "Channel",
    "00/0",
    ":",
    "0[0]",
    "->",
    "1[1]",
    "via",
    "NET/IB",
    "rank",
    "9",
    "status=12",
]


@given(st.lists(st.sampled_from(_WORDS), max_size=12).map(" ".join))
def test_lines_that_nearly_mean_something_are_read(line: str) -> None:
    _read(line)


@pytest.mark.parametrize(
    ("prefix", "rank", "group"),
    [
        ("[Rank 3] ", 3, None),
        ("[rank7]:[E513 ProcessGroupNCCL.cpp:616] [Rank 3] ", 7, None),
        ("[rank7]:[E628 ProcessGroupNCCL.cpp:2197] [PG ID 4 PG GUID 35(tensor) Rank 3] thread ended: [Rank 3] ", 7,
         "35(tensor)"),
        ("[PG 0 Rank 3] ", 3, "0"),
    ],
)  # fmt: skip
def test_timeouts_name_the_job_s_rank_and_the_group(prefix: str, rank: int, group: str | None) -> None:
    """In brackets of its own torch writes the rank within the group."""
    told = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=19, OpType=ALLREDUCE, NumelIn=1) ran for 600 "
    (event,) = _read(f"worker-1: {prefix}{told}milliseconds before timing out.")
    assert event == TimedOut(LogPlace("log", 1), rank, 19, "ALLREDUCE", 600, group)


@pytest.mark.parametrize(
    "text",
    [
        "NET/Plugin: Failed to find ncclNetPlugin_v10 symbol.",  # an older one is loaded next
        "NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eth0'",
    ],
)
def test_what_is_usual_says_nothing(text: str) -> None:
    assert _read(f"nodeA:1234:1 [0] NCCL INFO {text}") == []
