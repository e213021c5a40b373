"""Damaged texts for the fuzzer: small traces, from a grammar or from seeds that are then damaged."""

from __future__ import annotations

import gzip
import json
from functools import cache
from random import Random
from typing import Any

CATEGORIES = (  # noqa: SIM905
    "cpu_op user_annotation cuda_runtime cuda_driver kernel gpu_memcpy gpu_memset gpu_user_annotation cuda_sync "
    "overhead python_function Trace Operator Runtime Kernel Memcpy Memset mtia_runtime hpu_op ac2g FEE"
).split()
NAMES = (  # noqa: SIM905
    "ProfilerStep#3 ProfilerStep#x Optimizer.step#Adam.step aten::mm aten::item cudaLaunchKernel cudaGraphLaunch "
    "hipLaunchKernel cudaMemcpyAsync cudaStreamSynchronize ncclDevKernel_AllReduce_Sum_f32_RING_LL "
    "ncclDevKernel_SendRecv record_param_comms gloo:all_reduce nccl:all_reduce PP:0F1 PP:1B0 "
    "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ sm90_xmma_gemm_f32f32 Memcpy_PtoP checkpoint"
).split()
COLLECTIVES = ("allreduce", "_allgather_base", "send", "recv", "barrier", "wait", "broadcast", "nonsense", "")
ODD_NUMBERS = (  # noqa: SIM905
    "NaN Infinity -Infinity nan inf -1 0 -0.0 1e308 1e400 -1e400 1E-400 9223372036854775807 9223372036854775808 "
    "18446744073709551615 -9223372036854775808 999999999999999999999999999999 0.1e1 1,5 01 .5 5. 0x1F 1e 1_000 true "
    'null "7" ""'
).split()
ODD_TOKENS = [
    *(token.encode() for token in ODD_NUMBERS),
    *b'{ } [ ] , : " \\ \\" \\u \\ud800 \\u0000 },{ }, }] ]} "}{" /* // \r\n'.split(b" "),
    b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x00", b"\x00" * 40, b"\x01", b"\x1f\x8b", b"\xef\xbb\xbf", b"\n",
    b'"ph": "X"', b'"ph": "M"', b'"dur":', b'"ts": ', b'"args": {', b'"traceEvents": [', b'"correlation": 1,',
    b'"distributedInfo": {"rank": 1}', b'"baseTimeNanoseconds": 9223372036854775807,', b'"Seq": 18446744073709551615',
]  # fmt: skip


def make_trace(random: Random) -> bytes:
    """One input for the reader."""
    text = _grown(random) if random.random() < 0.35 else random.choice(_trace_seeds())
    if random.random() < 0.85:
        text = damaged(random, text, _trace_seeds())
    if random.random() < 0.12:
        text = gzip.compress(text, 1, mtime=0)
        if random.random() < 0.6:
            text = damaged(random, text, _trace_seeds())
    return text


def damaged(random: Random, text: bytes, others: list[bytes]) -> bytes:
    """The text with some of its bytes, tokens, numbers or keys wrong."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 5, 9))):
        at = random.randrange(len(text) + 1)
        length = random.choice((0, 1, 1, 2, 5, 20, 200))
        kind = random.randrange(10)
        if kind == 0:
            text = text[:at] + bytes(random.choices(range(256), k=random.randint(1, 4))) + text[at + length :]
        elif kind == 1:
            text = text[:at] if random.random() < 0.5 else text[at:]
        elif kind == 2:
            text = text[:at] + text[at + length :]
        elif kind == 3:
            text = text[: at + length] + text[at:]  # doubled
        elif kind == 4:
            other = random.choice(others)
            start = random.randrange(len(other) + 1)
            text = text[:at] + other[start : start + random.choice((30, 300, 3000))] + text[at + length :]
        elif kind in (5, 6):
            text = text[:at] + random.choice(ODD_TOKENS) + text[at + length :]
        elif kind == 7:
            text = _with_odd_number(random, text)
        elif kind == 8:
            text = _with_doubled_key(random, text)
        else:
            text = text[:at] + _nested(random) + text[at:]
    return text


def _with_odd_number(random: Random, text: bytes) -> bytes:
    """One number replaced by something that numbers have been seen to become."""
    colon = text.find(b":", random.randrange(len(text) + 1))
    start = colon + 1
    while start < len(text) and text[start : start + 1] in (b" ", b"["):
        start += 1
    end = start
    while end < len(text) and text[end] in b"+-.eE0123456789":
        end += 1
    return text if colon < 0 or end == start else text[:start] + random.choice(ODD_NUMBERS).encode() + text[end:]


def _with_doubled_key(random: Random, text: bytes) -> bytes:
    comma = text.find(b",", random.randrange(len(text) + 1))
    following = text.find(b",", comma + 1)
    return text if comma < 0 or following < 0 else text[:following] + text[comma:following] + text[following:]


def _nested(random: Random) -> bytes:
    depth = random.choice((3, 3, 50, 50, 1500))
    opening = random.choice((b"[", b'{"a":', b'[{"args":'))
    return opening * depth + random.choice((b"", b"1"))


def _grown(random: Random) -> bytes:
    """A document by the grammar of traces, in which any value may be of any kind."""
    events = [_event(random) for _ in range(random.choice((0, 1, 3, 8, 14)))]
    document: dict[str, Any] = {"traceEvents": events} if random.random() < 0.95 else {"traceEvents": _anything(random)}
    for key, value in (
        ("schemaVersion", 1),
        ("baseTimeNanoseconds", 1_700_000_000_000_000_000),
        ("distributedInfo", _distributed(random)),
        ("deviceProperties", [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132, "totalGlobalMem": 85 * 10**9}]),
        ("hip_runtime_version", 60_000_000),
        ("stepscope_whole_steps", [3]),
        ("host_name", "node0"),
    ):
        if random.random() < 0.4:
            document[key] = value if random.random() < 0.85 else _anything(random)
    keys = list(document)
    random.shuffle(keys)
    form: Any = {key: document[key] for key in keys} if random.random() < 0.85 else events
    indent = random.choice((None, None, 0, 2))
    return json.dumps(form, indent=indent, separators=(",", ":") if indent is None else None).encode()


def _distributed(random: Random) -> Any:
    groups = [
        {"pg_name": "0", "pg_desc": "dp", "ranks": [0, 1]},
        {"pg_name": random.choice((1, "1")), "ranks": "[0, 1]"},
    ]
    info = {"backend": "nccl", "rank": random.randrange(3), "world_size": 2, "pg_config": groups}
    return [info, info | {"rank": 1}] if random.random() < 0.1 else info


def _event(random: Random) -> Any:
    if random.random() < 0.02:
        return _anything(random)
    category = random.choice(CATEGORIES)
    on_device = "ernel" in category or "mem" in category.lower() or category == "cuda_sync"
    event: dict[str, Any] = {
        "ph": random.choice("XXXXXXXXMsfiCBE"),
        "cat": category,
        "name": random.choice(NAMES),
        "pid": random.choice((0, 1, "[TP00] 0", "rank 1"))
        if on_device
        else random.choice((7, 7, 7, 8, "[TP00] 7", -1)),
        "tid": random.choice((7, 20, "stream 7", 1000007, -5)) if on_device else random.choice((1, 2)),
        "ts": random.choice((0, 0.5, 100)) + random.randrange(300) + random.choice((0, 0, 4.9e12, 1.7e15)),
        "dur": random.choice((0, 0.001, 1, 25, 300, 1e6)),
        "args": _arguments(random),
    }
    for key in list(event):
        chance = random.random()
        if chance < 0.01:
            del event[key]
        elif chance < 0.02:
            event[key] = _anything(random)
    return event


def _arguments(random: Random) -> Any:
    known: dict[str, Any] = {
        "correlation": random.randrange(12),
        "External id": random.randrange(12),
        "external id": 3,
        "grid": [random.randrange(200), 2, 1],
        "block": [128, 1, 1],
        "registers per thread": 64,
        "shared memory": 1024,
        "est. achieved occupancy %": 50,
        "graph id": 1,
        "graph node id": 5,
        "bytes": 4096,
        "stream": 7,
        "device": 0,
        "rank": random.randrange(3),
        "Input Dims": random.choice(([[64, 32], [32, 16]], [[2**40, 2**40], [2**40, 7]], [[-1], []], "[[1]]")),
        "Input type": ["float", random.choice(("c10::BFloat16", "", "Scalar"))],
        "Concrete Inputs": ["", "1.0"],
        "Collective name": random.choice(COLLECTIVES),
        "In msg nelems": random.choice((0, 1024, 2**62)),
        "Out msg nelems": 1024,
        "Group size": 2,
        "dtype": random.choice(("Float", "BFloat16", "Odd")),
        "Process Group Name": random.choice(("0", "1", 0)),
        "Process Group Description": "dp",
        "Process Group Ranks": random.choice(("[0, 1]", "[0, 1, ...]", [1, 0], "[]", "x")),
        "Src Rank": random.randrange(-1, 3),
        "Dst Rank": random.randrange(-1, 3),
        "Root rank": 0,
        "Seq": random.choice((1, 2, 2**64 - 1)),
        "Comms Id": random.choice((5, 2**64 - 1)),
    }
    chosen = random.sample(sorted(known), random.choice((0, 1, 3, 8, 20)))
    return {key: known[key] if random.random() < 0.97 else _anything(random) for key in chosen}


def _anything(random: Random, depth: int = 3) -> Any:
    kind = random.randrange(10 if depth else 7)
    if kind >= 7:
        values = [_anything(random, depth - 1) for _ in range(random.randrange(4))]
        return values if kind == 7 else {random.choice(("a", "rank", "name", "args", "")): value for value in values}
    return random.choice(
        (None, True, -1, 2**63, 2**64 - 1, -(2**63), 10**30, 1e308, -0.0, 0.1, "", "x", "7", "\x00", "\ud800", "[1]")
    )


@cache
def _trace_seeds() -> list[bytes]:
    """Small whole traces of each layout and kind, whose analysis goes deep."""
    documents = [
        _job_trace(rank, gloo=gloo, rocm=rocm, graph=graph)
        for rank, gloo, rocm, graph in (
            (0, False, False, False),
            (1, False, True, False),
            (0, False, False, True),
            (0, True, False, False),
        )
    ]
    two = [_job_trace(0), _job_trace(1)]
    labelled = [event | {"pid": f"[TP0{rank}] {event['pid']}"} for rank in (0, 1) for event in two[rank]["traceEvents"]]
    legacy = json.dumps(documents[0])
    for new, old in (
        ("cpu_op", "Operator"),
        ("cuda_runtime", "Runtime"),
        ("gpu_memcpy", "Memcpy"),
        ("kernel", "Kernel"),
    ):
        legacy = legacy.replace(f'"cat": "{new}"', f'"cat": "{old}"')
    return [
        *(json.dumps(document, indent=1).encode() for document in documents),
        *(json.dumps(document, separators=(",", ":")).encode() for document in documents),
        json.dumps(documents[0]["traceEvents"]).encode(),
        json.dumps(dict(reversed(documents[0].items()))).encode(),
        json.dumps(two[0] | {"traceEvents": labelled}).encode(),
        json.dumps(two[0] | {"traceEvents": two[0]["traceEvents"] + two[1]["traceEvents"]}).encode(),
        "\n".join(map(json.dumps, two)).encode(),
        legacy.encode(),
    ]


def _job_trace(rank: int, *, gloo: bool = False, rocm: bool = False, graph: bool = False) -> dict[str, Any]:
    events: list[dict[str, Any]] = []

    def add(category: str, name: str, pid: int, tid: int, ts: float, dur: float, **args: Any) -> None:
        told = {key.replace("_", " "): value for key, value in args.items()}
        events.append(
            {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": told}
        )

    collective = {
        "Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 2,
        "dtype": "Float",        "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Seq": 1,
    }  # fmt: skip
    host = 100 + rank
    for step in (5, 6):
        at = (step - 5) * 100.0
        add("user_annotation", f"ProfilerStep#{step}", host, 1, at, 90)
        add("cpu_op", "aten::mm", host, 1, at + 5, 20, External_id=step, Input_Dims=[[64, 32], [32, 16]])
        if gloo:
            add("user_annotation", "gloo:all_reduce", host, 2, at + 30, 20)
            continue
        launch = "hipLaunchKernel" if rocm else "cudaGraphLaunch" if graph else "cudaLaunchKernel"
        add("cuda_runtime", launch, host, 1, at + 6, 3, correlation=2 * step, External_id=step)
        add("cuda_runtime", "cudaLaunchKernelExC", host, 1, at + 30, 3, correlation=2 * step + 1)
        add("cuda_runtime", "cudaDeviceSynchronize", host, 1, at + 40, 45, correlation=0)
        for part in range(3 if graph else 1):
            add(
                "kernel",
                "sm90_xmma_gemm_f32f32",
                rank,
                7,
                at + 20 + 8 * part,
                7.125,
                correlation=2 * step,
                grid=[4, 2, 1],
            )
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(a)"
        add("kernel", name, rank, 20, at + 50, 30, correlation=2 * step + 1, stream=20)
        events[-1]["args"] |= collective
    document: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": 0, "name": "AMD Instinct MI300X" if rocm else "NVIDIA H100 80GB HBM3", "numSms": 132}
        ],
        "distributedInfo": {"rank": rank, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]},
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": events,
        "traceName": "trace.json",
    }
    return document
