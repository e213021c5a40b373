"""Written samples for the fuzzer of diagnostics: outputs of jobs that mix NCCL's lines, RAS answers and benchmarks."""

from __future__ import annotations


def jobs() -> list[dict[str, bytes]]:
    """Outputs of jobs that mix what NCCL, its tools and torch write, as no recorded file does."""
    ras, timeouts, topology = _ras_answer(), _timeouts(), _topology_dump()
    wrapped = "\n".join(line[begin : begin + 150] for line in timeouts.split("\n") for begin in range(0, 400, 150))
    return [
        {"job.log": one.encode()}
        for one in (
            f"{ras}{timeouts}{_WARNINGS}{ras.replace('6649', '6651')}",
            f"{topology}{_TOPOLOGY_FILE}{_BENCHMARK}",
            f"{_BENCHMARK}{_WARNINGS}{_RAS_JSON}{timeouts}",
            wrapped,
        )
    ]


_WARNINGS = """\
[2026-05-02 08:11:20] nodeA:31016:31235 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-Ab to \
9637892 bytes, error: No space left on device (28)
nodeA:31016:31235 [0] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route \
to host)
nodeB:7:7 [1] init.cc:497 NCCL WARN Duplicate GPU detected : rank 2 and rank 0 both on CUDA device 1000
nodeB:7:7 [1] init.cc:9 NCCL WARN Mismatched NCCL version detected : rank 0 version 21803 rank 1 version 22005
nodeB:7:7 [1] proxy.cc:1326 NCCL WARN Socket recv failed while polling for opId=0x7f, res=3, closed=1
nodeB:7:7 [1] NCCL INFO Init timings - ncclCommInitRank: rank 1 nranks 2 total 61.5 (kernels 0.5, bootstrap 60.2)
[rank0]: torch.distributed.DistBackendError: NCCL error in: a.cpp:94, unhandled system error, NCCL version 2.28.9
[rank0]: Last error:
[rank0]: Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory
The client socket has failed to connect to [nodeA]:29500 (errno: 110 - Connection timed out).
"""

_BENCHMARK = """\
# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1
#  Rank  0 Group  0 Pid   6899 on nodeA device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   6900 on nodeB device  0 [0000:05:00] NVIDIA H100 80GB HBM3
           8             2     float     sum      -1    135.8    0.00    0.00      0    123.5    0.00    0.00      0
        1024           256    double    none      -1    147.1    0.01    0.02      3    123.1    0.01    0.02    N/A
nodeB: Test NCCL failure common.cu:401 'remote process exited or there was a network error / '
# Out of bounds values : 3 FAILED
# Avg bus bandwidth    : 0.01
# Collective test concluded: all_reduce_perf
"""

_TOPOLOGY_FILE = """\
<system version="1"><cpu host_hash="0x1" numaid="0"><pci busid="0000:10:00.0" class="0x060400" link_speed="16 GT/s"
 link_width="16"><pci busid="0000:17:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:65:00.0" count="18" tclass="0x030200"/></gpu></pci>
<pci busid="0000:65:00.0" class="0x030200" link_speed="" link_width="0"><gpu dev="1" sm="90" rank="1" gdr="1">
<nvlink target="0000:17:00.0" count="17" tclass="0x030200"/></gpu></pci>
<pci busid="0000:4b:00.0" class="0x020700"><nic><net name="mlx5_0" speed="400000"/><net name="mlx5_1" speed="-1"/></nic>
</pci></pci></cpu></system>
"""

_RAS_JSON = """\
{
 "nccl_version": "2.29.1",
 "communicators": [
  {"hash": "0xa", "size": 2, "ranks": [{"rank": 0, "host": "a", "pid": 1, "status": {"init_state": 6},
   "collective_counts": {"AllReduce": 5}}, {"rank": 1, "host": "b", "pid": 2, "collective_counts": {"AllReduce": 4}}],
   "missing_ranks": [{"rank": 2, "host": "b", "status": {"considered_dead": true}}]}
 ]
}
"""


def _ras_answer() -> str:
    ranks = "".join(
        f"  Rank {rank} -- GPU {rank} managed by process {rank} on node 10.0.0.{rank}\n" for rank in range(3)
    )
    return (
        "NCCL version 2.26.2 compiled with CUDA 12.4\nJob summary\n===========\n      4          8            1"
        "         32       32\nCommunicators... (0.00s)\n=============\n    0         1         4       7-8        32"
        "        32   RUNNING  MISMATCH\nErrors\n======\nDEAD\n  Process 34 on node 10.0.0.213 managing GPU 5\n"
        "#0-0 (27a079b828ff1a75) MISMATCH\n  Communicator ranks have different AllGather operation counts\n"
        f"  29 ranks have launched up to operation 6650\n  3 ranks have launched up to operation 6649\n{ranks}"
        "#0-1 (cf264af53edbe986) INCOMPLETE\n  The missing ranks: 21, 23-24\n"
    )


def _timeouts() -> str:
    return "".join(
        f"[rank{rank}]:[E603 17:48:01.0 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={40 + rank}, OpType=_ALLGATHER_BASE, NumelIn=8, NumelOut=32, Timeout(ms)=18) ran "
        f"for 1800068 milliseconds before timing out.\n[rank{rank}]:[E603 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID "
        f"0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: {40 + rank} PG status: "
        f"last enqueued work: {45 + rank}, last completed work: {39 + rank}\n"
        for rank in range(3)
    )


def _topology_dump() -> str:
    tree = (
        "=== System : maxBw 240.0 totalBw 240.0 ===",
        "CPU/0-0 (1/1/2)",
        "+ PCI[24.0] - GPU/0-17000 (0)",
        "              + NVL[20.0] - GPU/0-65000",
        "              + NVL[240.0] - NVS/0-0",
        "+ PCI[24.0] - NIC/0-4b000",
        "              + NET[25.0] - NET/0-0 (0/0/25.0)",
        "+ PCI[24.0] - DEV/0-65000 (1)",
        "              + LOC[5000.0] - GPU/0-65000",
        "              + NVL[240.0] - GPU/0-17000",
    )
    return "".join(f"mew0:{rank}:{rank} [0] NCCL INFO {line}\n" for line in tree for rank in (4, 5))
