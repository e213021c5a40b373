"""NCCL diagnosis: how GPUs reach each other, whether it is the right way, and what went wrong."""

from stepscope.analyzer.nccl.report import explain_nccl

__all__ = ["explain_nccl"]
