"""Jobs for the fuzzer: small whole ones with every kind of event, whose events are then made wrong.

The output is valid or almost valid JSON, so that it reaches the analysis behind the reader.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any

Event = dict[str, Any]


Document = dict[str, Any]


Job = list[Document]

_RAW = "@raw:"
"""A text that begins so stands without its quotes in the file."""

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 10**30, -0.0, 0.0005, 0.5,
    1e-300, 1e18, 1e308, float("nan"), float("inf"), float("-inf"), "", "x", "7", "-1", "1e3", "NaN", "\x00", "\ud800",
    "\u202e\U0001f525", "[1]", "[0, 1, ...]", "n" * 5000, [], [[]], [[-1]], [1, 2, 3], [0, 0, 0], [2**40] * 3, [None],
    [[2**40, 2**40], [2**40, 2**40]], {}, {"a": 1}, _RAW + "1e400", _RAW + "0,5", _RAW + "[" * 1100 + "]" * 1100,
    _RAW + "007", _RAW + "9" * 400,
)  # fmt: skip
ODD_TIMES: tuple[Any, ...] = (0, 0, 0.001, 0.0004, 1e3, 1e6, 4.9e12, 9.2e15, -5, *ODD_VALUES)
FIELDS = ("ts", "dur", "ts", "dur", "ph", "cat", "name", "pid", "tid", "args")
CATEGORIES = (
    "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "user_annotation", "cuda_sync",
    "gpu_user_annotation", "python_function", "overhead", "Trace", "Kernel", "Operator", "xpu_runtime",
)  # fmt: skip
NAMES = (
    "ProfilerStep#4", "ProfilerStep#-1", "ProfilerStep#99999999999999999999", "PP:0F0", "PP:7B99", "PP:1W0", "PP:0F",
    "ncclDevKernel_Generic", "ncclKernel_AllGather_RING_LL", "record_param_comms", "nccl:send 0->1", "gloo:barrier",
    "Memset (Device)", "Memcpy PtoP (Device -> Device)", "cudaDeviceSynchronize", "cudaEventSynchronize",
    "cudaGraphLaunch", "cudaMalloc", "cudaFree", "cudaStreamBeginCapture", "cudaStreamEndCapture", "Python GC",
    "hipModuleLaunchKernel", "cudaStreamSynchronize", "aten::_scaled_dot_product_flash_attention", "aten::convolution",
    "aten::native_layer_norm", "aten::embedding", "aten::bmm", "aten::_foreach_add_", "aten::cross_entropy_loss",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "Optimizer.step#x", "GC", "checkpoint", "",
    "void vllm::cross_device_reduce_1stage<__half, 8>", "flash_fwd_kernel", "cudnn::winograd_nonfused", "<b>&\"'",
)  # fmt: skip
HEADER_KEYS = (
    "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "host_name", "stepscope_whole_steps",
    "hip_runtime_version", "schemaVersion", "record_shapes", "with_stack", "nccl_version",
)  # fmt: skip
INFO_KEYS = ("rank", "world_size", "pg_config", "backend", "pg_count")
MOST_EVENTS = 1500
"""Changes that multiply events stop there, so that a time limit of one second means something."""


def make_job(random: Random) -> list[bytes]:
    """The files of one job; now and then gzip, cut short or with doubled keys."""
    return [_written(random, document) for document in _changed(random)]


def _changed(random: Random) -> Job:
    job: Job = json.loads(random.choice(base_jobs()))
    for _ in range(random.choice((0, 1, 1, 1, 2, 2, 3, 5, 8))):
        random.choice(CHANGES)(random, job)
    return job


def make_events(random: Random) -> bytes:
    """One file of such a job, mostly without three quarters of its events: the reader looks at each alone."""
    document = random.choice(_changed(random))
    events = document["traceEvents"]
    if random.random() < 0.8:
        document["traceEvents"] = random.sample(events, len(events) // 4)
    return _written(random, document)


def _written(random: Random, document: Document) -> bytes:
    form: Any = document["traceEvents"] if random.random() < 0.05 else document
    text = json.dumps(form, separators=random.choice(((",", ":"), (", ", ": ")))).encode()
    while (at := text.find(b'"' + _RAW.encode())) >= 0:
        end = text.index(b'"', at + 1)
        text = text[:at] + text[at + 1 + len(_RAW) : end] + text[end + 1 :]
    if random.random() < 0.05:
        key = random.choice((b'"dur"', b'"ts"', b'"External id"', b'"correlation"', b'"traceEvents"'))
        text = text.replace(key, key + b":" + random.choice((b"5", b"[]", b"null", b'"x"')) + b"," + key)
    if random.random() < 0.08:
        text = gzip.compress(text, 1, mtime=0)
    if random.random() < 0.04:
        text = text[: random.randrange(len(text) + 1)]
    return text


def _events(random: Random, job: Job) -> list[Event]:
    """One rank's events."""
    events: list[Event] = random.choice(job)["traceEvents"]
    return events


def _some(random: Random, job: Job) -> list[Event]:
    """One event, those of one category, or all, of one rank or of all."""
    documents = job if random.random() < 0.4 else [random.choice(job)]
    found: list[Event] = [event for document in documents for event in document["traceEvents"]]
    kind = random.random()
    if kind < 0.4 and found:
        return [random.choice(found)]
    category = random.choice(CATEGORIES[:9])
    return [event for event in found if kind > 0.85 or event.get("cat") == category]


def odd(random: Random, choices: Sequence[Any]) -> Any:
    """One of them, that may be changed without changing the choices."""
    return deepcopy(random.choice(choices))


def _set_field(random: Random, job: Job) -> None:
    field = random.choice(FIELDS)
    choices = {"ts": ODD_TIMES, "dur": ODD_TIMES, "cat": CATEGORIES, "name": NAMES}.get(field, ODD_VALUES)
    value = odd(random, choices if random.random() < 0.8 else ODD_VALUES)
    for event in _some(random, job):
        event[field] = deepcopy(value)


def _set_argument(random: Random, job: Job) -> None:
    chosen = [event["args"] for event in _some(random, job) if isinstance(event.get("args"), dict) and event["args"]]
    if chosen:
        key, value = random.choice(sorted(random.choice(chosen))), odd(random, ODD_VALUES)
        for args in chosen:
            if key in args:
                args[key] = deepcopy(value)


def _lose(random: Random, job: Job) -> None:
    """A field or an argument, of one event or of all."""
    chosen = _some(random, job)
    args = [event["args"] for event in chosen if isinstance(event.get("args"), dict)]
    if random.random() < 0.3 or not any(args):
        field = random.choice(FIELDS)
        for event in chosen:
            event.pop(field, None)
        return
    key = random.choice(("External id", "correlation", "Seq", random.choice(sorted({k for a in args for k in a}))))
    for arguments in args:
        arguments.pop(key, None)


def _spread_or_squeeze(random: Random, job: Job) -> None:
    factor, shift = random.choice((0, 1e-3, 0.5, 3, 1e5, -1)), random.choice((0, 0, 50, 1e6, 1e12, -1e3))
    for event in _some(random, job):
        for key in ("ts", "dur") if random.random() < 0.7 else ("ts",):
            if isinstance(event.get(key), (int, float)):
                event[key] = event[key] * factor + (shift if key == "ts" else 0)


def _jitter(random: Random, job: Job) -> None:
    """Move every event: overlapping events become sequential, sequential ones overlap or nest."""
    width = random.choice((0.001, 1, 30, 300))
    for event in _some(random, job):
        if isinstance(event.get("ts"), (int, float)):
            event["ts"] = round(event["ts"] + random.uniform(-width, width), 3)


def _many_streams(random: Random, job: Job) -> None:
    """Hundreds of streams or threads, each with a little work."""
    events = _events(random, job)
    kind = random.choice(("kernel", "cpu_op", "cuda_runtime", "gpu_memcpy"))
    like = [event for event in events if event.get("cat") == kind][:4]
    for number in range(random.choice((20, 20, 40, 300)) if len(events) < MOST_EVENTS and like else 0):
        event = json.loads(json.dumps(random.choice(like)))
        event["tid"] = number
        if random.random() < 0.5 and isinstance(event.get("args"), dict):
            event["args"]["correlation"] = 1000 + number
        events.append(event)


def _more_ranks(random: Random, job: Job) -> None:
    """Copies under other ranks: more ranks, or several that claim the same."""
    for _ in range(random.choice((1, 1, 6)) if len(job) < 3 else 0):
        other: Document = json.loads(json.dumps(random.choice(job)))
        info = other.get("distributedInfo")
        if isinstance(info, dict):
            info["rank"] = random.choice((len(job), len(job), 0, 4000))
        job.append(other)


def _double(random: Random, job: Job) -> None:
    events = _events(random, job)
    times = random.choice((1, 1, 1, 1, 1, 1, 8))
    events.extend(json.loads(json.dumps(events * times)) if len(events) * times < MOST_EVENTS else [])


def _reorder(random: Random, job: Job) -> None:
    events = _events(random, job)
    if random.random() < 0.5:
        random.shuffle(events)
    else:
        events.reverse()


def _leave_out(random: Random, job: Job) -> None:
    """Some of the events of a rank, or one category of all ranks."""
    if random.random() < 0.5:
        events = _events(random, job)
        kept = random.random()
        events[:] = [event for event in events if random.random() < kept]
        return
    category = random.choice(CATEGORIES[:9])
    for document in job:
        document["traceEvents"] = [event for event in document["traceEvents"] if event.get("cat") != category]


def _same_correlation(random: Random, job: Job) -> None:
    value = random.choice((0, 1, 5, -1))
    for event in _some(random, job):
        if isinstance(event.get("args"), dict):
            event["args"]["correlation"] = value


def _odd_steps(random: Random, job: Job) -> None:
    """Marks that repeat, fall back, nest, are empty or are hundreds."""
    events = _events(random, job)
    count = random.choice((1, 2, 5, 20, 300)) if len(events) < MOST_EVENTS else 1
    width, length = random.choice((0, 1, 100)), random.choice((0, 0.001, 90, 1000))
    for place in range(count):
        number = random.choice((place, 3, -place, 10**12))
        events.append(
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 100, "tid": 1,
             "ts": place * width, "dur": length}
        )  # fmt: skip


def _odd_header(random: Random, job: Job) -> None:
    for document in job if random.random() < 0.5 else [random.choice(job)]:
        key, value = random.choice(HEADER_KEYS), odd(random, ODD_VALUES)
        info, devices = document.get("distributedInfo"), document.get("deviceProperties")
        chance = random.random()
        if chance < 0.4 and isinstance(info, dict):
            odd_ranks = (value, -1, 5, 4096, 2**18, 2**18 + 1, 2**40)
            info[random.choice(INFO_KEYS)] = odd(random, odd_ranks)
        elif chance < 0.55 and isinstance(info, dict):
            ranks = random.choice(([], [0], [5, 6], [0, 0], list(range(1000)), "[0, 1]", value))
            info["pg_config"] = [{"pg_name": random.choice(("0", 0, value)), "pg_desc": value, "ranks": ranks}]
        elif chance < 0.7 and isinstance(devices, list) and devices and isinstance(devices[0], dict):
            devices[0][random.choice(sorted(devices[0]))] = value
        elif chance < 0.85:
            document[key] = value
        else:
            document.pop(key, None)


CHANGES: tuple[Callable[[Random, Job], None], ...] = (
    _set_field, _set_field, _set_field, _set_argument, _set_argument, _set_argument, _lose, _lose, _spread_or_squeeze,
    _spread_or_squeeze, _jitter, _jitter, _many_streams, _more_ranks, _double, _reorder, _leave_out, _leave_out,
    _same_correlation, _odd_steps, _odd_header, _odd_header,
)  # fmt: skip


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
