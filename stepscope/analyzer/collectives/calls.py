"""Communication calls: the type that collectives, blame and pipeline share, and its kinds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_NAMES_OF_KIND = {
    "all_reduce": "allreduce all_reduce allreduce_coalesced all_reduce_coalesced multimem_all_reduce",
    "all_gather": "allgather all_gather _allgather_base _all_gather_base _allgather_base_coalesced "
    "all_gather_into_tensor all_gather_into_tensor_coalesced allgather_into_tensor_coalesced",
    "reduce_scatter": "reduce_scatter _reduce_scatter_base reduce_scatter_tensor reduce_scatter_tensor_coalesced "
    "_reduce_scatter_base_coalesced",
    "all_to_all": "all_to_all all_to_allv all_to_all_single alltoall alltoall_base",
    "barrier": "barrier all_reduce_barrier",
    "broadcast": "broadcast _broadcast_oop",
    "scatter": "scatter",
    "reduce": "reduce _reduce_oop",
    "gather": "gather",
    "send": "send",
    "recv": "recv",
}
_KIND_OF_NAME = {name: kind for kind, names in _NAMES_OF_KIND.items() for name in names.split()}
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
"""Prefixes of the spans of communication operators and backends."""

NO_TRANSFER = frozenset({"wait", "init", "init_ranks", "comms_init"})
"""Recorded like collectives, but without a transfer."""
P2P_KINDS = frozenset({"send", "recv", "p2p"})
SYNCHRONIZING_KINDS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""No member leaves before all have arrived."""
FROM_ROOT_KINDS = frozenset({"broadcast", "scatter"})
"""All members wait for the root, the root for nobody."""
TO_ROOT_KINDS = frozenset({"reduce", "gather"})
"""The root waits for all members, the others for nobody."""


def kind_of_word(word: str) -> str:
    """Kind of a `Collective name`; unknown names stay as they are."""
    return _KIND_OF_NAME.get(word.lower(), word.lower())


def kind_in_name(kernel_name: str) -> str:
    """Kind by a kernel's name, or `unknown` (RCCL calls all of them Generic)."""
    return next((kind for pattern, kind in _KIND_IN_NAME if pattern.search(kernel_name)), "unknown")


@lru_cache(maxsize=4096)
def kind_of_span(name: str) -> str | None:
    """The kind of a communication operator's or backend's span (`nccl:all_to_all`, `c10d::allreduce_`), else None."""
    namespace = _NAMESPACE.match(name)
    if namespace is None:
        return None
    word = name[namespace.end() :].split(" ")[0]
    return _KIND_OF_NAME.get(word) or _KIND_OF_NAME.get(word.rstrip("_"))


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
    """One communication call of one rank, as it ran on the device (without a device, on the host).

    Attributes:
        start_ns, end_ns: on the rank's clock.
        step: the step number it was launched in, or BEFORE_STEPS, or AFTER_STEPS.
        group: member ranks, or None where unknown.
        kind: all_reduce, all_gather, ..., send, recv, p2p (several directions at once), unknown.
        num_bytes: the larger of input and output on this rank, summed over a coalesced group; or None.
        peers: the directions of a point-to-point call; empty for the others.
        described: whether the trace records the call's arguments.
        sequence: the group's sequence number (torch >= 2.12), or None.
        communicator: id of its communicator among those with these members (torch >= 2.12), or None.
        root: the root of a rooted kind, or None.
        stream: device stream, or None without a device.
        graph_launch: index of its CUDA or HIP graph launch in the step, or None.
        dimension: parallel dimension: tp, pp, dp, ep, cp, or None.
        awaited_ns: without a device, from when the thread waits for nothing but this call; None: from the start.
        asked_ns: without a device, when the thread asked for its completion; None: when it ended.
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
        """Start of the exposed part; before, the thread had issued the call and went on with something else."""
        return self.start_ns if self.awaited_ns is None else min(max(self.start_ns, self.awaited_ns), self.end_ns)
