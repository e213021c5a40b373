"""GPU memory: what held it, why it ran out, and what changed, from snapshots of PyTorch's allocator."""

from stepscope.analyzer.memory.comparison import NamedSnapshot, compare_memory
from stepscope.analyzer.memory.report import explain_memory

__all__ = ["NamedSnapshot", "compare_memory", "explain_memory"]
