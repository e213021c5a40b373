"""Files for the fuzzer: damaged archives of traces, files and traces of other tools, and names of trace files."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from random import Random

from benchmarks.fuzz.traces import damaged, make_trace

_WORDS = (  # noqa: SIM905
    "rank rank- rank[ rank_ worker TP- tp DP- dp PP- pp EP- ep dcp local_rank node_rank iteration_ step step- DECODE "
    "EXTEND host_ r t01 .pt .trace / :: .json .json.gz .tar - _ . ] 1694128201545000000 1694128201545 "
    "1758513624.4085546 0 3 12 007 99999999999999999999 analysis run"
).split(" ")
_BEGINNINGS = (
    b"\x80\x04\x95", b"SQLite format 3\0", b"PAR1", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"NVR\0", b"\x1f\x8b\x08", b"",
    b"\x0a\x9d\xb2\x08\x12\x0e", b"<system version=", b"<?xml", b"# HELP x", b'{"schema": "stepscope.run/1"',
    b'{"$schema": "speedscope"', b"[[1, 2", b'"Kind","Agent_Id"', b"a;b;c 12\n",
)  # fmt: skip
_CONTENTS = (
    b"device_traces segments", b"pg_status entries", b"rocpd_api", b"CUPTI_ACTIVITY_KIND_KERNEL", b"/host:metadata",
    b"NCCL INFO Bootstrap\n", b"brain.Event:2", b'"nodes": [{"id": 1}]', b'"rocprofiler-sdk-tool": [', b"\0" * 600,
)  # fmt: skip
_FOREIGN_EVENTS = (
    {"ph": "B", "cat": "x", "name": "NEGOTIATE_ALLREDUCE"},
    {"ph": "X", "name": "fusion", "args": {"BeginNs": "1"}},
    {"ph": "X", "cat": "OperatorInner", "name": "mm[1 ms]"},
    {"ph": "X", "cat": "gpu_op", "name": "gemm"},
    {"ph": "X", "cat": "cpu_op", "name": "npu::npu_rms_norm"},
    {"ph": "X", "cat": "cpu_op", "name": "ProfilerStep#3"},
    {"ph": "X", "cat": "xpu_runtime", "name": "urEnqueueKernelLaunch"},
    {"ph": "X", "cat": "privateuse1_runtime", "name": "aiuLaunchControlBlocks"},
    {"ph": "X", "cat": "Trace", "name": "span", "pid": "Spans", "tid": "__xpu_profiler__"},
    {"ph": "M", "name": "process_name", "args": {"name": "Ascend Hardware"}},
    {"ph": "M", "name": "process_name", "args": {"name": "/device:TPU:0"}},
    {"ph": "s", "cat": "async_npu", "name": "torch_to_npu", "id": 1},
)


def make_name(random: Random) -> str:
    """The name of a trace file, such as many writers give it or as none does."""
    return "".join(random.choices(_WORDS, k=random.randrange(9)))


def make_names(random: Random) -> list[str]:
    """Names of the files of a job."""
    name = make_name(random)
    others = [name.replace("3", str(number)) for number in range(random.randrange(12))]
    return [*others, *(make_name(random) for _ in range(random.randrange(4)))]


def make_archive(random: Random) -> bytes:
    """A tar, tar.gz or zip archive of a few traces, mostly damaged."""
    files = [(make_name(random) or "a", make_trace(random)) for _ in range(random.randrange(4))]
    content = _zip_of(files, random) if random.random() < 0.4 else _tar_of(files, random)
    if random.random() < 0.7:
        content = damaged(random, content, [content])
    if random.random() < 0.3:
        content = gzip.compress(content, 1, mtime=0)
        if random.random() < 0.5:
            content = damaged(random, content, [content])
    return content


def _tar_of(files: list[tuple[str, bytes]], random: Random) -> bytes:
    stream = io.BytesIO()
    form = random.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for name, content in files:
            member = tarfile.TarInfo(name + random.choice(("", "", "x" * 120)))
            member.size = len(content)
            member.type = random.choice(
                (tarfile.REGTYPE,) * 5 + (tarfile.SYMTYPE, tarfile.GNUTYPE_SPARSE, tarfile.DIRTYPE)
            )
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def _zip_of(files: list[tuple[str, bytes]], random: Random) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for place, (name, content) in enumerate(files):
            method = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
            archive.writestr(f"{place}{name}", content, method)
    return stream.getvalue()


def make_foreign(random: Random) -> bytes:
    """A file of another tool, a trace of another tool or device, or something between them and a trace."""
    if random.random() < 0.5:
        parts = [random.choice(_BEGINNINGS), *random.choices(_CONTENTS, k=random.randrange(4))]
        content = b"".join(parts)
    else:
        events = [
            {"pid": 1, "tid": 1, "ts": random.randrange(99), "dur": 5} | event
            for event in random.choices(_FOREIGN_EVENTS, k=random.randrange(1, 9))
        ]
        content = json.dumps(events if random.random() < 0.5 else {"traceEvents": events}).encode()
    if random.random() < 0.4:
        content = damaged(random, content or b" ", [content, make_trace(random)])
    return gzip.compress(content, 1, mtime=0) if random.random() < 0.2 else content
