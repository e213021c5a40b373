"""Communication calls: the type that alignment, blame and pipeline share, and the words for their kinds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_KIND_OF_WORD = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "multimem_all_reduce": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "_all_gather_base": "all_gather",
    "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_allgather_base_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_reduce_scatter_base_coalesced": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all",
    "all_to_all_single": "all_to_all",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "barrier": "barrier",
    "all_reduce_barrier": "barrier",
    "broadcast": "broadcast",
    "_broadcast_oop": "broadcast",
    "scatter": "scatter",
    "reduce": "reduce",
    "_reduce_oop": "reduce",
    "gather": "gather",
    "send": "send",
    "recv": "recv",
}
_KIND_IN_NAME = (
    (re.compile(r"send_?recv|sendrecv", re.IGNORECASE), "p2p"),
    (re.compile(r"reduce_?scatter", re.IGNORECASE), "reduce_scatter"),
    (re.compile(r"all_?gather", re.IGNORECASE), "all_gather"),
    (re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE), "all_reduce"),
    (re.compile(r"all_?to_?all", re.IGNORECASE), "all_to_all"),
    (re.compile(r"broadcast", re.IGNORECASE), "broadcast"),
    (re.compile(r"reduce", re.IGNORECASE), "reduce"),
)
_NAMESPACE = re.compile(r"^(?:nccl|rccl|gloo|c10d|_c10d_functional|vllm|sglang|symm_mem):{1,2}")
"""Where the spans of communication operators and backends come from."""

NO_TRANSFER = frozenset({"wait", "init", "init_ranks", "comms_init"})
"""Described like collectives, but nothing is sent."""
P2P_KINDS = frozenset({"send", "recv", "p2p"})
SYNCHRONIZING_KINDS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Nobody leaves before everybody has come."""
FROM_ROOT_KINDS = frozenset({"broadcast", "scatter"})
"""Everybody needs the root; the root needs nobody."""
TO_ROOT_KINDS = frozenset({"reduce", "gather"})
"""The root needs everybody; the others need nobody."""


def kind_of_word(word: str) -> str:
    """The kind behind a `Collective name`; a word that nobody knows stays as it is."""
    return _KIND_OF_WORD.get(word.lower(), word.lower())


def kind_in_name(kernel_name: str) -> str:
    """The kind that a kernel's name suggests; `unknown` where it does not (RCCL calls all of them Generic)."""
    return next((kind for pattern, kind in _KIND_IN_NAME if pattern.search(kernel_name)), "unknown")


@lru_cache(maxsize=4096)
def kind_of_span(name: str) -> str | None:
    """The kind of a communication operator's or backend's span (`nccl:all_to_all`, `c10d::allreduce_`), else None."""
    room = _NAMESPACE.match(name)
    if room is None:
        return None
    word = name[room.end() :].split(" ")[0]
    return _KIND_OF_WORD.get(word) or _KIND_OF_WORD.get(word.rstrip("_"))


BEFORE_STEPS = -1
"""Step of a call that was launched before the first profiled step."""

AFTER_STEPS = -2
"""Step of a call that was launched after the last one, or in a trace without steps."""


@dataclass(frozen=True, slots=True)
class PeerCall:
    """One direction of a point-to-point call; `ordinal` counts the calls from source to destination in the step."""

    source: int
    destination: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class Call:
    """One communication call of one rank, as it ran on the device (or, without a device, on the host).

    Attributes:
        rank: who made it.
        start_ns, end_ns: on the rank's clock.
        step: the step number it was launched in, or BEFORE_STEPS, or AFTER_STEPS.
        group: members, or None where the trace does not tell.
        kind: all_reduce, all_gather, ..., send, recv, p2p (several directions at once), unknown.
        num_bytes: the larger of input and output on this rank, all calls of a coalesced group together; or None.
        peers: the directions of a point-to-point call; empty for the others.
        described: whether the trace itself says what the call is.
        sequence: the group's own count of its calls (torch >= 2.12), or None.
        communicator: which of the communicators with these members it ran on (torch >= 2.12), or None.
        root: the root of a rooted kind, or None.
        stream: the device stream it ran on, or None without a device.
        graph_launch: which CUDA or HIP graph launch of the step it belongs to, or None.
        dimension: tp, pp, dp, ep or cp: whom it serves, or None.
        awaited_ns: without a device, since when the thread waits for nothing but this call; None: from the start.
        asked_ns: without a device, when the thread had asked for it and gone on; None: when it ended.
    """

    rank: int
    start_ns: int
    end_ns: int
    step: int
    group: tuple[int, ...] | None
    kind: str
    num_bytes: int | None
    peers: tuple[PeerCall, ...]
    described: bool
    sequence: int | None = None
    communicator: int | None = None
    root: int | None = None
    stream: int | None = None
    graph_launch: int | None = None
    dimension: str | None = None
    awaited_ns: int | None = None
    asked_ns: int | None = None

    @property
    def exposed_from_ns(self) -> int:
        """From when on its time is its own: before, the thread had asked for it and went on with something else."""
        return self.start_ns if self.awaited_ns is None else min(max(self.start_ns, self.awaited_ns), self.end_ns)
