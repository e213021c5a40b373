"""Hang flags of each rank from xpu_timer's Prometheus page."""

from __future__ import annotations

import re

from stepscope.core.documents.nccl_logs import HangFlags

_FLAG = re.compile(r'XPU_TIMER_COMMON_HANG\{[^}]*\brank="(\d+)"[^}]*\} (\S+)')


def looks_like_xpu_timer(text: str) -> bool:
    """Whether a page is xpu_timer's."""
    return "XPU_TIMER_" in text


def read_xpu_timer(text: str, *, file: str) -> HangFlags:
    """The flag of each rank that has one."""
    flags = {int(rank): value not in ("0", "0.0") for rank, value in _FLAG.findall(text)}
    ranks = sorted(flags)
    return HangFlags(
        file, tuple(rank for rank in ranks if flags[rank]), tuple(rank for rank in ranks if not flags[rank])
    )
