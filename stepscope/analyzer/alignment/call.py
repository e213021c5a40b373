"""What is one communication call of one rank, as all of alignment, blame and pipeline speak of it?"""

from __future__ import annotations

from dataclasses import dataclass

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
