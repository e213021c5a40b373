"""NCCL diagnosis: the transport of each pair of GPUs, whether it is the expected one, and failures."""

from stepscope.analyzer.nccl.report import explain_nccl

__all__ = ["explain_nccl"]
