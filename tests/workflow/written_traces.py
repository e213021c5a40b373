"""Small trace files: a rank that computes and all-reduces, as torch.profiler would export it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]

STEPS = 3
STEP_US = 100
HOST_STEP_US = 20
"""The host runs ahead of the device."""


def trace_document(rank: int | None = 0, *, world_size: int = 2, compute_us: int = 30) -> dict[str, Any]:
    """A trace of three steps. With `rank` None it does not say which rank it is."""
    document: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132, "totalGlobalMem": 85_000_000_000}
        ],
        "host_name": "node0",
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": _events(world_size, compute_us),
        "traceName": "trace.json",
    }
    if rank is not None:
        groups = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(world_size))}]
        document["distributedInfo"] = {"rank": rank, "world_size": world_size, "backend": "nccl", "pg_config": groups}
    return document


def write_trace(
    path: Path, rank: int | None = 0, *, world_size: int = 2, compute_us: int = 30, later_us: float = 0.0
) -> Path:
    """Write such a trace, compressed if the name ends in .gz; recorded `later_us` after the others."""
    document = trace_document(rank, world_size=world_size, compute_us=compute_us)
    document["baseTimeNanoseconds"] += round(later_us * 1e3)
    text = json.dumps(document).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def write_straggling_job(folder: Path) -> Path:
    """Two ranks; rank 1 computes 45 us longer in each step."""
    write_trace(folder / "rank0.json.gz", 0)
    write_trace(folder / "rank1.json.gz", 1, compute_us=75)
    return folder


def _events(world_size: int, compute_us: int) -> list[Event]:
    events: list[Event] = []
    for step in range(STEPS):
        ahead, begin, correlation = step * HOST_STEP_US, (step + 1) * STEP_US, 2 * step + 1
        events.append(_host(f"ProfilerStep#{step}", "user_annotation", ahead, HOST_STEP_US))
        events.append(_host("cudaLaunchKernel", "cuda_runtime", ahead + 1, 2, correlation))
        events.append(_host("cudaLaunchKernelExC", "cuda_runtime", ahead + 4, 2, correlation + 1))
        events.append(_device("sm90_xmma_gemm_f32f32", begin + 10, compute_us, 7, {"correlation": correlation}))
        told = {
            "correlation": correlation + 1,
            "Collective name": "allreduce",
            "In msg nelems": 1024,
            "Out msg nelems": 1024,
            "Group size": world_size,
            "dtype": "Float",
            "Process Group Name": "0",
            "Process Group Ranks": str(list(range(world_size))),
        }
        start = begin + 10 + compute_us
        events.append(_device("ncclDevKernel_AllReduce_Sum_f32_RING_LL(a)", start, begin + 90 - start, 20, told))
    return events


def _host(name: str, category: str, start: int, duration: int, correlation: int | None = None) -> Event:
    arguments = {} if correlation is None else {"correlation": correlation}
    return {
        "ph": "X", "cat": category, "name": name, "pid": 100, "tid": 1, "ts": start, "dur": duration, "args": arguments
    }  # fmt: skip


def _device(name: str, start: int, duration: int, stream: int, arguments: Event) -> Event:
    told = {"device": 0, "stream": stream, **arguments}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": start,
        "dur": duration,
        "args": told,
    }
