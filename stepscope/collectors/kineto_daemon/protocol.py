"""Daemon protocol of libkineto: datagrams, the request for a trace of N steps, and verification of what was written.

A datagram is a header, the payload's size in bytes (uint64) and its type (32 bytes, zero-padded), and the payload. All
numbers are little-endian, as libkineto copies its own structures (pytorch/kineto, third_party dynolog_headers,
ipcfabric/FabricManager.h and Utils.h). Input is not trusted: any local process can send any bytes.

Pitfalls of the request text (pytorch/kineto, Config.cpp and AsyncActivityProfilerHandler.cpp):

- A request by iterations that comes before the first optimizer step, so also during `import torch`, becomes one by
  time, and its trace is empty or holds imports alone: but only where the duration, 500 ms unless given, is above 0.
  With ACTIVITIES_DURATION_MSECS=0 the process refuses it, leaves no file, and can be asked again.
- PROFILE_START_ITERATION_ROUNDUP starts at the next multiple of it, which is the same step on all ranks that get the
  request between the same two multiples.
- Lines end at '#' and are split at '=', and the process's id is put before the first ".json" anywhere in the path.

A trace can be empty, hold only imports, or another number of steps; only reading it shows that. It is read as a stream,
without building its events.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePosixPath

from stepscope.core.text.numbers import counted

_HEADER = struct.Struct("<Q32s")
_POLL = struct.Struct("<iiq")
_REGISTRATION = struct.Struct("<iiq")
_COUNT = struct.Struct("<i")
_POLL_TYPE, _REGISTRATION_TYPE = b"req", b"ctxt"
_ACTIVITIES = 2
"""Bit of a poll's `type`: the process accepts a request for a trace. Not set while a profiler runs in it."""
_MAX_PIDS = 1024
MAX_DATAGRAM_BYTES = _HEADER.size + _POLL.size + 4 * _MAX_PIDS


class KinetoDatagramError(ValueError):
    """Bytes that are not a datagram of libkineto."""


@dataclass(frozen=True, slots=True)
class KinetoPoll:
    """A poll of libkineto: question of a process whether it should take a trace.

    Attributes:
        accepts: it would take a request; False while a profiler runs in it.
        job_id: its SLURM_JOB_ID, 0 without.
        pids: its own and its ancestors', each in its own namespace, its own first.
    """

    accepts: bool
    job_id: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KinetoRegistration:
    """Message of libkineto that a process uses a GPU; it expects the number of processes of its job that do.

    Attributes:
        gpu: index of the GPU in the process.
        job_id: its SLURM_JOB_ID, 0 without.
    """

    gpu: int
    pid: int
    job_id: int


def decode_kineto_datagram(datagram: bytes) -> KinetoPoll | KinetoRegistration:
    """The message in a datagram of libkineto.

    Raises:
        KinetoDatagramError: it is not one of libkineto's.
    """
    if len(datagram) < _HEADER.size:
        raise KinetoDatagramError(f"{len(datagram)} bytes, a header has {_HEADER.size}")
    size, kind = _HEADER.unpack_from(datagram)
    payload = datagram[_HEADER.size :]
    if size != len(payload):
        raise KinetoDatagramError(f"a payload of {len(payload)} bytes where the header says {size}")
    kind = kind.partition(b"\0")[0]
    if kind == _POLL_TYPE:
        if len(payload) < _POLL.size:
            raise KinetoDatagramError(f"a poll of {len(payload)} bytes")
        kinds, num_pids, job_id = _POLL.unpack_from(payload)
        if not 1 <= num_pids <= _MAX_PIDS or len(payload) != _POLL.size + 4 * num_pids:
            raise KinetoDatagramError(f"a poll of {len(payload)} bytes with {counted(num_pids, 'process id')}")
        return KinetoPoll(bool(kinds & _ACTIVITIES), job_id, struct.unpack_from(f"<{num_pids}i", payload, _POLL.size))
    if kind == _REGISTRATION_TYPE and len(payload) == _REGISTRATION.size:
        return KinetoRegistration(*_REGISTRATION.unpack(payload))
    raise KinetoDatagramError(f"{len(payload)} bytes of type {kind!r}")


def encode_kineto_request(text: str) -> bytes:
    """The reply to a poll of libkineto; an empty text requests nothing."""
    content = text.encode()
    return _HEADER.pack(len(content), _POLL_TYPE) + content


def encode_kineto_count(num_processes: int) -> bytes:
    """The reply to a registration of libkineto."""
    return _HEADER.pack(_COUNT.size, _REGISTRATION_TYPE) + _COUNT.pack(num_processes)


_TRACE_PATH = re.compile(r"/[A-Za-z0-9_+@%,:./-]+\.json")
_WARM_UP_ITERATIONS = 1
"""The step in which CUPTI starts is not in the trace."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Request to libkineto for a trace of optimizer steps.

    Attributes:
        path: of the trace, in the process's own file system.
        num_steps: calls of a torch.optim optimizer's step().
        start_multiple: it begins after a step whose number, counted by the process from 0, is a multiple of this.

    Raises:
        ValueError: libkineto would misread the path, or a number is not positive.
    """

    path: PurePosixPath
    num_steps: int
    start_multiple: int = 1

    def __post_init__(self) -> None:
        text = str(self.path)
        if not _TRACE_PATH.fullmatch(text) or ".." in text or text.count(".json") != 1:
            raise ValueError(f"libkineto would misread the path {text!r}")
        if self.num_steps < 1 or self.start_multiple < 1:
            raise ValueError("num_steps and start_multiple are at least 1")

    def text(self) -> str:
        return "".join(
            f"{key}={value}\n"
            for key, value in (
                ("ACTIVITIES_LOG_FILE", self.path),
                ("PROFILE_START_ITERATION", 0),
                ("PROFILE_START_ITERATION_ROUNDUP", self.start_multiple),
                ("ACTIVITIES_WARMUP_ITERATIONS", _WARM_UP_ITERATIONS),
                ("ACTIVITIES_ITERATIONS", self.num_steps),
                ("ACTIVITIES_DURATION_MSECS", 0),
                ("PROFILE_REPORT_INPUT_SHAPES", "true"),  # the roofline needs them
                ("PROFILE_WITH_STACK", "false"),  # Python's frames make steps several times as long
            )
        )

    def written_path(self, pid: int) -> PurePosixPath:
        """Path at which the trace of a process appears once it is whole; `pid` is in its own namespace."""
        return self.path.with_name(f"{self.path.name.removesuffix('.json')}_{pid}.json")


_EVENT = b'"ph"'
_CATEGORY = re.compile(rb'"cat"\s*:\s*"([A-Za-z_]+)"')
_TIME = rb'\s*,\s*"pid"\s*:\s*[^,]+,\s*"tid"\s*:\s*[^,]+,\s*"ts"\s*:\s*(\d{1,18})(?:\.(\d{1,3}))?'
_OPTIMIZER_STEP = re.compile(rb'"cat"\s*:\s*"user_annotation"\s*,\s*"name"\s*:\s*"Optimizer\.step#[^"]*"' + _TIME)
_ITERATION_START = re.compile(rb'"name"\s*:\s*"Iteration Start: [^"]*"' + _TIME)
_BASE_TIME = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*"rank"\s*:\s*(\d{1,9})')
_MAX_EVENT_BYTES = 1 << 20
_MAX_HEAD_BYTES = 1 << 16
_TAIL_BYTES = 1 << 10
_WORK_CATEGORIES = ("cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime")


@dataclass(frozen=True, slots=True)
class KinetoTraceSummary:
    """Content of a trace that libkineto wrote.

    Attributes:
        is_whole: it begins and ends as a JSON object does.
        num_events: by category ("cpu_op", "python_function").
        begin_ns: start of the recording, in a step's last instant; ns since the epoch, None if unknown.
        step_ends_ns: starts of the optimizer's calls, which end the steps, ns since the epoch, ascending.
        rank: of distributedInfo, None without.
    """

    num_bytes: int
    is_whole: bool
    num_events: dict[str, int]
    begin_ns: int | None
    step_ends_ns: tuple[int, ...]
    rank: int | None

    @property
    def step_seconds(self) -> float | None:
        """Median duration of a step; None if unknown."""
        ends = self.step_ends_ns if self.begin_ns is None else (self.begin_ns, *self.step_ends_ns)
        between = sorted(b - a for a, b in pairwise(ends))
        return between[len(between) // 2] / 1e9 if between else None


def kineto_trace_fault(summary: KinetoTraceSummary, num_steps: int) -> str | None:
    """Kineto daemon: why libkineto's trace is not what was requested, one line; None when it is."""
    if not summary.is_whole:
        return f"the trace is cut short at {summary.num_bytes} bytes"
    if not any(summary.num_events.get(category) for category in _WORK_CATEGORIES):
        held = ", ".join(f"{count} {name}" for name, count in sorted(summary.num_events.items()))
        return f"the trace holds no operators ({held or 'no events at all'})"
    if len(summary.step_ends_ns) != num_steps:
        return f"the trace holds {counted(len(summary.step_ends_ns), 'optimizer step')} of {num_steps}"
    return None


@dataclass(slots=True)
class KinetoTraceReader:
    """Reads a trace of libkineto block by block, with memory for one event, not for the file."""

    _rest: bytes = b""
    _head: bytes = b""
    _tail: bytes = b""
    _num_bytes: int = 0
    _num_events: Counter[bytes] = field(default_factory=Counter)
    _begins: list[int] = field(default_factory=list)
    _steps: list[int] = field(default_factory=list)

    def feed(self, block: bytes) -> None:
        """The next bytes of the file."""
        self._num_bytes += len(block)
        if len(self._head) < _MAX_HEAD_BYTES:
            self._head += block[: _MAX_HEAD_BYTES - len(self._head)]
        self._tail = (self._tail + block[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        text = self._rest + block
        end = text.rfind(_EVENT)
        if end <= 0 and len(text) > _MAX_EVENT_BYTES:
            end = len(text)
        end = max(end, 0)
        self._take(text[:end])
        self._rest = text[end:]

    def summary(self) -> KinetoTraceSummary:
        """Summary of the blocks; the last call."""
        self._take(self._rest)
        ends = self._head + self._tail  # older libkineto writes both behind the events
        base, rank = _BASE_TIME.search(ends), _RANK.search(ends)
        base_ns = int(base[1]) if base else 0
        return KinetoTraceSummary(
            num_bytes=self._num_bytes,
            is_whole=self._head.lstrip().startswith(b"{") and self._tail.rstrip().endswith(b"}"),
            num_events={name.decode(): count for name, count in self._num_events.items()},
            begin_ns=base_ns + min(self._begins) if self._begins else None,
            step_ends_ns=tuple(sorted(base_ns + time for time in self._steps)),
            rank=int(rank[1]) if rank else None,
        )

    def _take(self, text: bytes) -> None:
        self._num_events.update(_CATEGORY.findall(text))
        self._steps += map(_nanoseconds, _OPTIMIZER_STEP.finditer(text))
        self._begins += map(_nanoseconds, _ITERATION_START.finditer(text))


def _nanoseconds(event: re.Match[bytes]) -> int:
    """Nanoseconds of an event's microseconds."""
    return int(event[1]) * 1000 + int((event[2] or b"0").ljust(3, b"0"))
