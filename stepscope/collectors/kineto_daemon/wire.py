"""How do libkineto's questions and a daemon's answers look in bytes? Any bytes may come in, from any local process.

A datagram is a header, the payload's size in bytes (uint64) and its type (32 bytes, zero-padded), and the payload. All
numbers are little-endian, as libkineto copies its own structures (pytorch/kineto, third_party dynolog_headers,
ipcfabric/FabricManager.h and Utils.h).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from stepscope.core.counting import counted

_HEADER = struct.Struct("<Q32s")
_POLL = struct.Struct("<iiq")
_REGISTRATION = struct.Struct("<iiq")
_COUNT = struct.Struct("<i")
_POLL_TYPE, _REGISTRATION_TYPE = b"req", b"ctxt"
_ACTIVITIES = 2
"""Bit of a poll's `type`: the process would take a request for a trace. Absent while a profiler is at work in it."""
_MOST_PIDS = 1024
MAX_DATAGRAM_BYTES = _HEADER.size + _POLL.size + 4 * _MOST_PIDS


class WireError(ValueError):
    """Bytes that are none of libkineto's questions."""


@dataclass(frozen=True, slots=True)
class Poll:
    """A process asks whether there is a trace to take.

    Attributes:
        accepts: it would take a request; False while a profiler is at work in it.
        job_id: its SLURM_JOB_ID, 0 without.
        pids: its own and its ancestors', each in its own namespace, its own first.
    """

    accepts: bool
    job_id: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Registration:
    """A process says that it uses a GPU; it wants to know how many of its job do.

    Attributes:
        gpu: its number in the process.
        pid: in the process's own namespace.
        job_id: its SLURM_JOB_ID, 0 without.
    """

    gpu: int
    pid: int
    job_id: int


def decode(datagram: bytes) -> Poll | Registration:
    """The question in a datagram.

    Raises:
        WireError: it is none.
    """
    if len(datagram) < _HEADER.size:
        raise WireError(f"{len(datagram)} bytes, a header has {_HEADER.size}")
    size, kind = _HEADER.unpack_from(datagram)
    payload = datagram[_HEADER.size :]
    if size != len(payload):
        raise WireError(f"a payload of {len(payload)} bytes where the header says {size}")
    kind = kind.partition(b"\0")[0]
    if kind == _POLL_TYPE:
        return _poll(payload)
    if kind == _REGISTRATION_TYPE and len(payload) == _REGISTRATION.size:
        return Registration(*_REGISTRATION.unpack(payload))
    raise WireError(f"{len(payload)} bytes of type {kind!r}")


def encode_config(text: str) -> bytes:
    """The answer to a poll; an empty text says that there is nothing to do."""
    content = text.encode()
    return _HEADER.pack(len(content), _POLL_TYPE) + content


def encode_count(num_processes: int) -> bytes:
    """The answer to a registration."""
    return _HEADER.pack(_COUNT.size, _REGISTRATION_TYPE) + _COUNT.pack(num_processes)


def _poll(payload: bytes) -> Poll:
    if len(payload) < _POLL.size:
        raise WireError(f"a poll of {len(payload)} bytes")
    kinds, num_pids, job_id = _POLL.unpack_from(payload)
    if not 1 <= num_pids <= _MOST_PIDS or len(payload) != _POLL.size + 4 * num_pids:
        raise WireError(f"a poll of {len(payload)} bytes with {counted(num_pids, 'process id')}")
    return Poll(bool(kinds & _ACTIVITIES), job_id, struct.unpack_from(f"<{num_pids}i", payload, _POLL.size))
