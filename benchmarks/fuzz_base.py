"""Which whole jobs does the fuzzer start from? Small, but of every kind of event that the analysis looks at."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

Document = dict[str, Any]

NUM_STEPS = 3
STEP_US = 100.0
BASE_NS = 1_700_000_000_000_000_000


@cache
def base_jobs() -> list[bytes]:
    """Each job as JSON: a list of its ranks' documents."""
    jobs = [
        [eager_trace(0), eager_trace(1)],
        [eager_trace(0, world_size=1)],
        [pipelined_trace(stage) for stage in range(2)],
        [graph_trace(0), graph_trace(1)],
        [host_trace(rank) for rank in range(2)],
        [host_trace(rank, pipelined=True) for rank in range(2)],
        [eager_trace(rank, rocm=True) for rank in range(3)],
        [_labelled([eager_trace(0), eager_trace(1)])],
    ]
    return [json.dumps(job).encode() for job in jobs]


class _Events:
    """Collects one rank's events."""

    def __init__(self, rank: int) -> None:
        self.rank, self.all = rank, list[dict[str, Any]]()

    def host(self, kind: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> None:
        self._add(kind, name, 100 + self.rank, tid, ts, dur, args)

    def device(self, kind: str, name: str, ts: float, dur: float, stream: Any = 7, **args: Any) -> None:
        self._add(kind, name, self.rank, stream, ts, dur, {"device": self.rank, "stream": stream, **args})

    def _add(self, kind: str, name: str, pid: int, tid: int, ts: float, dur: float, args: dict[str, Any]) -> None:
        told = {key.replace("__", ".").replace("_", " "): value for key, value in args.items()}
        self.all.append(
            {"ph": "X", "cat": kind, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": told}
        )


def _document(events: _Events, world_size: int, *, gpu: str | None = "NVIDIA H100 80GB HBM3", **more: Any) -> Document:
    ranks = list(range(world_size))
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": ranks}, {"pg_name": "1", "pg_desc": "mesh_dp"}]
    info = {"backend": "nccl", "rank": events.rank, "world_size": world_size, "pg_config": groups}
    device = {
        "id": events.rank, "name": gpu, "numSms": 132, "totalGlobalMem": 85_000_000_000, "computeMajor": 9,
        "computeMinor": 0, "warpSize": 32, "maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536,
        "sharedMemPerMultiprocessor": 233472,
    }  # fmt: skip
    return {
        "schemaVersion": 1,
        "deviceProperties": [device] if gpu else [],
        "distributedInfo": info,
        "host_name": f"node{events.rank // 2}",
        "record_shapes": 1,
        **more,
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": events.all,
        "traceName": "trace.json",
    }


def _collective(kind: str, world_size: int, sequence: int, **more: Any) -> dict[str, Any]:
    return {
        "Collective_name": kind, "In_msg_nelems": 1 << 20, "Out_msg_nelems": 1 << 20, "Group_size": world_size,
        "dtype": "BFloat16", "Process_Group_Name": "0", "Process_Group_Description": "default_pg",
        "Process_Group_Ranks": str(list(range(world_size))), "Seq": sequence, **more,
    }  # fmt: skip


def eager_trace(rank: int, *, world_size: int = 2, rocm: bool = False) -> Document:
    """Loads, copies, multiplies, attends, all-reduces beside it, waits for events, blocks, optimizes."""
    events = _Events(rank)
    launch = "hipLaunchKernel" if rocm else "cudaLaunchKernel"
    for step in range(NUM_STEPS):
        at, link = step * STEP_US, 10 * step + 1
        ahead = at + 100
        events.host("user_annotation", f"ProfilerStep#{step + 4}", at, 98)
        events.host("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at + 1, 9)
        events.host("python_function", "nn.Module: Block_0", at + 12, 40, Python_module_id=0, Python_id=step)
        shapes = [[512, 1024], [1024, 1024]]
        events.host("cpu_op", "aten::mm", at + 12, 9, External_id=link, Input_Dims=shapes, Input_type=["float"] * 2)
        events.host("cuda_runtime", launch, at + 14, 3, correlation=link, External_id=link)
        events.host("cpu_op", "aten::add_", at + 22, 6, 2, External_id=link + 1, Input_Dims=[[512, 1024]] * 2)
        events.host("cuda_runtime", launch, at + 23, 2, 2, correlation=link + 1, External_id=link + 1)
        events.host("cuda_runtime", "cudaMemcpyAsync", at + 30, 4, correlation=link + 2)
        told = _collective("allreduce", world_size, step + 1)
        events.host("cpu_op", "record_param_comms", at + 36, 6, 2, External_id=link + 3, **told)
        events.host("cuda_runtime", "cudaLaunchKernelExC", at + 37, 2, 2, correlation=link + 3, External_id=link + 3)
        events.host("cuda_runtime", "cudaStreamWaitEvent", at + 40, 1, correlation=link + 4)
        events.host("user_annotation", "Optimizer.step#AdamW.step", at + 44, 20)
        events.host("cpu_op", "aten::_fused_adamw_", at + 45, 12, External_id=link + 5, Input_Dims=[[], []])
        events.host("cuda_runtime", launch, at + 47, 2, correlation=link + 5, External_id=link + 5)
        events.host("cpu_op", "aten::item", at + 66, 30)
        events.host("cuda_runtime", "cudaStreamSynchronize", at + 67, 28, correlation=link + 6)
        shape = {"grid": [64, 8, 1], "block": [256, 1, 1], "registers_per_thread": 128, "shared_memory": 49152}
        full = {"est__achieved_occupancy_%": 40, "warps_per_SM": 31.0, "blocks_per_SM": 3.9, **shape}
        gemm = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
        events.device("kernel", gemm, ahead + 5, 30, correlation=link, External_id=link, **full)
        name = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>(int)"
        events.device("kernel", name, ahead + 36, 8, correlation=link + 1, External_id=link + 1, **shape)
        copy = "Memcpy HtoD (Pageable -> Device)"
        events.device("gpu_memcpy", copy, ahead + 46, 6, 13, correlation=link + 2, bytes=1 << 22)
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"
        length = 20 + 3 * (step == rank)
        events.device("kernel", name, ahead + 46, length, 20, correlation=link + 3, External_id=link + 3, **told)
        events.device("cuda_sync", "Stream Wait Event", ahead + 60, 1, correlation=link + 4, wait_on_stream=20)
        events.device("kernel", "fused_adamw_kernel", ahead + 72, 12, correlation=link + 5, External_id=link + 5)
        events.device("gpu_user_annotation", f"ProfilerStep#{step + 4}", ahead + 5, 80)
    versions = {"hip_runtime_version": 60_000_000} if rocm else {"cuda_runtime_version": 12080}
    return _document(events, world_size, gpu="AMD Instinct MI300X" if rocm else "NVIDIA H100 80GB HBM3", **versions)


def pipelined_trace(stage: int) -> Document:
    """Two stages, two micro-batches, marked as torch marks them, with sends and receives."""
    events = _Events(stage)
    for step in range(NUM_STEPS):
        at, link = step * STEP_US, 20 * step + 1
        events.host("user_annotation", f"ProfilerStep#{step}", at, 99)
        for place, (what, batch) in enumerate((("F", 0), ("F", 1), ("B", 0), ("B", 1))):
            begin, number = at + 4 + 22 * place, link + 3 * place
            events.host("user_annotation", f"PP:{stage}{what}{batch}", begin, 18)
            events.host("cuda_runtime", "cudaLaunchKernel", begin + 1, 2, correlation=number, External_id=number)
            events.host("cuda_runtime", "cudaLaunchKernelExC", begin + 5, 2, correlation=number + 1)
            events.device("kernel", "ampere_sgemm_128x64_tn", begin + 6 + stage, 9, correlation=number, grid=[64, 1, 1])
            sends = (what == "F") == (stage == 0)
            peer = {"Dst_Rank": 1 - stage} if sends else {"Src_Rank": 1 - stage}
            told = _collective("send" if sends else "recv", 2, 4 * step + place, **peer)
            events.device("kernel", "ncclDevKernel_SendRecv(a)", begin + 16, 4, 21, correlation=number + 1, **told)
    return _document(events, 2)


def graph_trace(rank: int) -> Document:
    """One graph a step: three kernels and an all-reduce under one correlation."""
    events = _Events(rank)
    for step in range(NUM_STEPS):
        at, link = step * STEP_US, step + 1
        events.host("user_annotation", f"ProfilerStep#{step}", at, 95)
        events.host("cuda_runtime", "cudaGraphLaunch", at + 2, 6, correlation=link)
        for node in range(3):
            told = {"correlation": link, "graph_id": 4, "graph_node_id": node, "grid": [132, 1, 1]}
            events.device("kernel", f"triton_poi_fused_{node}", at + 12 + 20 * node, 18, **told)
        events.device("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(a)", at + 72, 16, correlation=link)
    return _document(events, 2)


def host_trace(rank: int, *, pipelined: bool = False) -> Document:
    """A rank without a device: operators, gloo on its second thread, layers that sleep."""
    events = _Events(rank)
    for step in range(NUM_STEPS):
        at = step * STEP_US
        events.host("user_annotation", f"ProfilerStep#{step}", at, 97)
        events.host("user_annotation", "PP:0F0" if pipelined else "checkpoint", at + 1, 12)
        events.host("cpu_op", "aten::linear", at + 3, 30, External_id=step, Input_Dims=[[8, 64], [64, 64]])
        events.host("cpu_op", "aten::addmm", at + 4, 28, External_id=step + 9, Input_Dims=[[64], [8, 64], [64, 64]])
        events.host("user_annotation", "gloo:send" if pipelined else "gloo:all_reduce", at + 36, 25 + 5 * rank, 2)
        events.host("user_annotation", "Optimizer.step#SGD.step", at + 70, 10)
    return _document(events, 2, gpu=None)


def _labelled(documents: list[Document]) -> Document:
    """One file of two ranks, as SGLang merges them."""
    events = [
        event | {"pid": f"[TP0{rank}] {event['pid']}"}
        for rank, document in enumerate(documents)
        for event in document["traceEvents"]
    ]
    return documents[0] | {"traceEvents": events}
