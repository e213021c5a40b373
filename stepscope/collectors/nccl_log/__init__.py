"""What do NCCL's logs say? `lines` finds NCCL's part of a line, `patterns` what it means, `reading` reads a log."""

from stepscope.collectors.nccl_log.reading import read_log

__all__ = ["read_log"]
