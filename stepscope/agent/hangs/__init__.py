"""Does training on this node hang? `run_watch` doubts, `question` asks a process that reads dumps, `source` tells."""

from __future__ import annotations

from stepscope.agent.hangs.nccl import NcclSource, ras_address
from stepscope.agent.hangs.source import HangSource

__all__ = ["HangSource", "NcclSource", "ras_address"]
