"""Which jobs does the fuzzer try? Whole ones whose events are then made wrong, one kind of wrong after another.

What comes out is JSON that any parser takes, or nearly, so that it reaches the analysis behind the reader.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

from benchmarks.fuzz_base import Document, base_jobs

Event = dict[str, Any]
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
    "cudaGraphLaunch", "cudaMalloc", "cudaFree", "aten::_scaled_dot_product_flash_attention", "aten::convolution",
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
    """Every event elsewhere: what overlapped follows, what followed overlaps or nests."""
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
