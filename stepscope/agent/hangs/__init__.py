"""Hangs of training runs and stalled NCCL communicators on this node."""
