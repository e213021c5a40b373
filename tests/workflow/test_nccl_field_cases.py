"""Inputs of public reports: several kinds in one file, causes before consequences, broken lines, failed benchmarks."""

from __future__ import annotations

import gzip
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.core.documents.nccl import NcclReport
from stepscope.core.errors import DataError
from stepscope.workflow.nccl import read_nccl

_RAS = """\
NCCL version 2.26.2 compiled with CUDA 12.4
CUDA runtime version 12040, driver version 12040

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
     32          8            1        256      256

Communicators... (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1        32         8       256       256   RUNNING      OK

Errors
======

Warnings
========

"""

_SHM = """\
[2026-05-02 08:11:18] podx-wf:31016:202016 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0
podx-wf:31016:202016 [0] NCCL INFO Bootstrap: Using eth0:10.9.0.4<0>
podx-wf:31016:202016 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
podx-wf:31016:31235 [0] NCCL INFO Using network Socket
podx-wf:31016:31235 [0] NCCL INFO ncclCommInitRank comm 0x5a rank 0 nranks 2 cudaDev 0 busId 1b commId 0x9a - Init START
podx-wf:31017:31236 [1] NCCL INFO ncclCommInitRank comm 0x5b rank 1 nranks 2 cudaDev 1 busId 1c commId 0x9a - Init START
podx-wf:31016:31235 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct

[2026-05-02 08:11:20] podx-wf:31016:31235 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend \
/dev/shm/nccl-Ab12Cd to 9637892 bytes, error: No space left on device (28)

[2026-05-02 08:11:20] podx-wf:31016:31235 [0] misc/shmutils.cc:132 NCCL WARN Error while creating shared memory \
segment /dev/shm/nccl-Ab12Cd (size 9637888), error: No space left on device (28)
podx-wf:31016:31235 [0] NCCL INFO transport/shm.cc:551 -> 2

[2026-05-02 08:11:20] podx-wf:31017:31236 [1] proxy.cc:1326 NCCL WARN Socket recv failed while polling for opId=0x7f
[rank0]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, \
unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9
"""


def _timeout(rank: int, call: str, sizes: str, last: tuple[int, int], group: str) -> str:
    """The two lines of torch's watchdog on one rank."""
    operation, _, number = call.partition(" ")
    return (
        f"[rank{rank}]:[E603 17:48:01.005118823 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={number}, OpType={operation}, {sizes}, Timeout(ms)=1800000) ran for "
        f"1800068 milliseconds before timing out.\n"
        f"[rank{rank}]:[E603 17:48:01.005118823 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID {group} Rank {rank}]  "
        f"failure detected by watchdog at work sequence id: {number} PG status: last enqueued work: {last[0]}, last "
        f"completed work: {last[1]}\n"
    )


_ONE_RANK = _timeout(118, "ALLREDUCE 2398459", "NumelIn=8652160, NumelOut=8652160", (2398578, 2398458), "0(default_pg)")
_SIX_OF_EIGHT = "".join(
    _timeout(rank, "_ALLGATHER_BASE 5171", "NumelIn=8519680, NumelOut=68157440", (5173, 5170), "1")
    for rank in (0, 2, 3, 4, 5, 7)
) + "".join(
    f"[rank{rank}]:[E602 11:17:58.557891708 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
    "Received a dump signal due to a collective timeout from this local rank and we will try our best to dump the "
    "debug info. Last enqueued NCCL work: 6, last completed NCCL work: 6.\n"
    for rank in (1, 6)
)
_FOUR_OF_EIGHT = "".join(
    _timeout(rank, "_ALLGATHER_BASE 137429", "NumelIn=71552, NumelOut=572416", (137429, 137428), "1")
    for rank in (2, 0, 3, 1)
)


def _read(folder: Path, text: str) -> NcclReport:
    (folder / "job.log").write_text(text)
    return read_nccl([str(folder)])


def _codes(report: NcclReport) -> list[str]:
    return [finding.code for finding in report.findings]


@pytest.mark.parametrize("text", [_RAS + _ONE_RANK, _ONE_RANK + _RAS], ids=["ras first", "ras last"])
def test_ras_saw_nothing_and_a_rank_waited_until_the_timeout(text: str, tmp_path: Path) -> None:
    """nccl#1730."""
    report = _read(tmp_path, text)
    assert _codes(report) == ["timeout", "ras_ok"]
    assert report.findings[0].ranks == [118]
    assert report.findings[0].message == (
        "rank 118 waited in ALLREDUCE 2398459 of group 0(default_pg) until torch's timeout "
        "(at least 119 further calls were enqueued)"
    )
    (ras,) = report.ras
    assert (ras.version, ras.num_nodes, ras.num_gpus) == ("2.26.2", 32, 256)
    assert [(row.communicators, row.num_ranks, row.status, row.errors) for row in ras.communicators] == [
        (1, 256, "RUNNING", "OK")
    ]


def test_without_timeouts_ras_alone_finds_nothing_wrong(tmp_path: Path) -> None:
    report = _read(tmp_path, _RAS)
    assert (report.findings, report.warnings) == ([], [])


def test_who_did_not_wait_is_named_by_the_group_s_size(tmp_path: Path) -> None:
    """An all-gather's output is as many times its input as the group has ranks; ranks 1 and 6 are alive."""
    report = _read(tmp_path, _SIX_OF_EIGHT + _RAS)
    assert [(finding.code, finding.ranks) for finding in report.findings] == [("silent_rank", [1, 6]), ("ras_ok", [])]
    assert "ranks 1, 6 did not: look there first" in report.findings[0].message


@pytest.mark.parametrize("text", [_SHM, _SHM + _RAS, _RAS + _SHM], ids=["alone", "ras last", "ras first"])
def test_the_cause_comes_first_and_what_follows_is_said_to_follow(text: str, tmp_path: Path) -> None:
    """pytorch/ci-infra#490, fixed by a larger /dev/shm."""
    report = _read(tmp_path, text)
    assert _codes(report) == ["shm_full", "wrong_transport", "consequence"]
    cause, _, following = report.findings
    assert cause.message.startswith(
        "/dev/shm is full or too small (NCCL asks for 9.2 MiB more, on podx-wf): enlarge it (docker run --shm-size=1g"
    )
    assert cause.line == 9 + (text.startswith(_RAS) and _RAS.count("\n"))
    assert following.message.startswith("2 further errors (podx-wf:31017: Socket recv failed")
    assert report.versions == ["2.28.9+cuda13.0"]
    assert [notice.code for notice in report.warnings] == (["foreign_ras"] if _RAS in text else [])


def _hard(line: str, width: int) -> list[str]:
    return [line[begin : begin + width] for begin in range(0, len(line), width)] or [""]


def _padded(line: str, width: int) -> list[str]:
    return [row.ljust(width) for row in _hard(line, width)]


def _words(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width) or [""]


@pytest.mark.parametrize("width", [80, 120, 167, 212])
@pytest.mark.parametrize(
    ("text", "wrap"),
    [
        (_FOUR_OF_EIGHT, _hard),
        (_FOUR_OF_EIGHT, _padded),
        (_FOUR_OF_EIGHT, _words),
        (_SHM, _hard),
        (_SHM, _padded),
    ],
)
def test_lines_that_a_terminal_broke_are_read_as_whole_ones(
    text: str, wrap: Callable[[str, int], list[str]], width: int, tmp_path: Path
) -> None:
    """ms-swift#5409."""
    whole = _read(tmp_path, text)
    broken = _read(tmp_path, "".join(f"{row}\n" for line in text.splitlines() for row in wrap(line, width)))
    assert [(one.code, one.ranks) for one in broken.findings] == [(one.code, one.ranks) for one in whole.findings]
    assert {notice.code for notice in broken.warnings} <= {"wrapped_lines"}
    assert whole.warnings == []


def test_ranks_of_a_group_that_have_no_line_here_are_counted(tmp_path: Path) -> None:
    (finding,) = _read(tmp_path, _FOUR_OF_EIGHT).findings
    assert (finding.code, finding.ranks) == ("timeout", [0, 1, 2, 3])
    assert finding.message.endswith("the other 4 of the group's 8 ranks have none in these files")


def test_a_line_that_cannot_be_joined_is_said_to_be_broken(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="parts of torch's lines only"):
        _read(tmp_path, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALL\n")


_DUMP = """\
=== System : maxBw 240.0 totalBw 240.0 ===
CPU/0-0 (1/1/2)
+ PCI[24.0] - GPU/0-17000 (0)
              + NVL[20.0] - GPU/0-65000
+ PCI[24.0] - NIC/0-4b000
+ PCI[24.0] - GPU/0-65000 (1)
              + NVL[240.0] - GPU/0-17000
=========================================="""


@pytest.mark.parametrize("ranks", [[1], [0, 1]])
def test_dumps_of_several_ranks_are_one_machine(ranks: list[int], tmp_path: Path) -> None:
    """Their lines come mixed."""
    text = "".join(f"mew0:{rank}:{rank} [{rank}] NCCL INFO {line}\n" for line in _DUMP.splitlines() for rank in ranks)
    report = _read(tmp_path, text)
    (machine,) = report.devices
    assert (machine.machine, machine.num_gpus, machine.num_network_cards, machine.nvlink_gbs) == ("mew0", 2, 1, 20.0)
    (finding,) = report.findings
    assert finding.code == "slow_nvlink"
    assert finding.message.startswith("mew0: NVLink from GPU 17000 to GPU 65000: 20 GB/s, but 240 GB/s back")


_FAILED = """\
# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807
# Collective test starting: alltoall_perf
node3: Test NCCL failure common.cu:401 'remote process exited or there was a network error / '
 .. node3 pid 397337: Test failure common.cu:519
# Avg bus bandwidth    : 6.6
"""


def test_a_benchmark_that_failed_is_no_result(tmp_path: Path) -> None:
    report = _read(tmp_path, _FAILED)
    (run,) = report.benchmarks
    assert (run.test, run.ok, run.mean_bus_gbs, run.peak_bus_gbs, run.sizes) == ("alltoall", False, 6.6, None, [])
    assert run.why == "node3: remote process exited or there was a network error (common.cu:401)"
    (finding,) = report.findings
    assert (finding.code, finding.line) == ("benchmark_failed", 3)
    assert (report.versions, report.machines) == (["2.28.7"], ["node3"])


_FILE_OF_THE_MACHINE = """\
<system version="1">
  <cpu numaid="0">
    <pci busid="0000:17:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"><gpu dev="0"/></pci>
  </cpu>
</system>
"""
_INSPECTED = (
    '{"header":{"id":"0xa","rank":0,"n_ranks":2},"coll_perf":{"coll":"AllReduce","coll_sn":1,"coll_msg_size_bytes":4096,'
    '"coll_exec_time_us":10.0,"coll_busbw_gbs":0.4}}\n'
)
_RAS_JSON = """\
{
 "nccl_version": "2.28.9",
 "communicators": [
  {"hash": "0xa", "size": 2, "ranks": [{"rank": 0, "host": "a", "pid": 1}], "missing_ranks": [{"rank": 1}]}
 ]
}
"""


def test_one_file_may_hold_everything(tmp_path: Path) -> None:
    page = 'XPU_TIMER_COMMON_HANG{ip="a",rank="0"} 1\n'
    report = _read(tmp_path, f"{_INSPECTED}{_SHM}{_FILE_OF_THE_MACHINE}{_RAS_JSON}{page}{_FAILED}{_FOUR_OF_EIGHT}")
    assert set(_codes(report)) == {
        "shm_full", "benchmark_failed", "timeout", "ras_missing", "hang", "wrong_transport", "consequence",
    }  # fmt: skip
    assert [one.num_gpus for one in report.devices] == [1]
    assert [one.bus_bandwidth_gbs for one in report.bandwidths] == [0.4, 6.6]
    assert report.warnings == []


def test_a_document_that_is_cut_off_does_not_swallow_the_log(tmp_path: Path) -> None:
    cut_json, cut_xml = _RAS_JSON[: len(_RAS_JSON) // 2] + "\n", _FILE_OF_THE_MACHINE[:80] + "\n"
    report = _read(tmp_path, cut_json + _ONE_RANK + cut_xml + _SHM)
    assert _codes(report)[:2] == ["shm_full", "timeout"]
    assert [notice.code for notice in report.warnings] == ["unusable_file", "unusable_file"]


def test_a_packed_file_that_breaks_off_keeps_what_was_before(tmp_path: Path) -> None:
    packed = gzip.compress((_ONE_RANK + "".join(f"{number} text\n" for number in range(100_000))).encode())
    (tmp_path / "job.log.gz").write_bytes(packed[: len(packed) // 2])
    report = read_nccl([str(tmp_path)])
    assert _codes(report) == ["timeout"]
    assert [notice.code for notice in report.warnings] == ["unusable_file"]


def test_facts_are_told_where_nothing_is_wrong(shared_traces: Path) -> None:
    report = read_nccl([str(shared_traces / "diag/nccl_logs/h100x2_nvlink_ok.log")])
    assert (report.machines, report.num_processes, report.cuda_drivers) == (["vm"], 2, ["13.0"])
    (network,) = report.networks
    assert (network.name, network.cards, network.why) == ("Socket", ["eth0"], "no InfiniBand device")
    (communicator,) = report.communicators
    assert communicator.init_seconds == 0.79
    assert communicator.init_parts["kernels"] == 0.53


def test_reasons_are_not_taken_from_another_job_s_log(shared_traces: Path) -> None:
    """Of the seven logs only one found no card, and it is not the one with sockets."""
    report = read_nccl([str(shared_traces / "diag/nccl_logs")])
    sockets = [one.why for one in report.transports if one.via == "NET/Socket"]
    assert [why.partition(";")[0] for why in sockets] == ["the log does not say"] * 2
