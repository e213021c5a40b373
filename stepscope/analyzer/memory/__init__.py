"""GPU memory: what held it and why it ran out, from a snapshot of PyTorch's allocator."""

from stepscope.analyzer.memory.report import explain_memory

__all__ = ["explain_memory"]
