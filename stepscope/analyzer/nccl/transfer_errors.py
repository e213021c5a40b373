"""What does a network card's error mean? InfiniBand's status of a work completion, and Mellanox's vendor syndrome.

Statuses are libibverbs' ibv_wc_status. Which cause is usual is from reports: pytorch#81628, nccl#426, nccl#1405.
"""

from __future__ import annotations

_STATUS = {
    1: "local length error",
    2: "local queue pair error",
    4: "local protection error: memory that is not registered, or no longer",
    5: "work flushed: the queue pair had failed before; look for the first error",
    6: "memory window bind error",
    8: "bad response",
    9: "local access error",
    10: "remote access error: the peer's memory is not registered, or no longer",
    11: "remote operation error: the peer's card or process is gone",
    12: "retries exceeded: the peer does not answer",
    13: "the peer was never ready to receive",
}

_ADVICE = {
    4: "look at the GPU's memory registration: nvidia_peermem or DMA-BUF, NCCL_NET_GDR_LEVEL, IOMMU; try GDR off once",
    5: "look for an earlier error of this peer, and at its host",
    10: "look at the peer's log: it freed memory or failed first",
    11: "look at the peer's host and log",
    12: "look at cable, switch port and routing to the peer; if it fails at once, NCCL_IB_GID_INDEX (often 3)",
    13: "look at the peer: it hangs or is gone",
}


def transfer_error_words(status: int, vendor_error: int) -> str:
    """What happened, in words: "retries exceeded: the peer does not answer (status 12, vendor error 129)"."""
    return f"{_STATUS.get(status, 'unknown error')} (status {status}, vendor error {vendor_error})"


def transfer_error_advice(status: int) -> str:
    """What to look at."""
    return _ADVICE.get(status, "look at both hosts' kernel logs and the card's counters")
