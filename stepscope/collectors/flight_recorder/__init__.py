"""What do flight recorder dumps say? `files` finds them, `dump` reads one: pickle or JSON, of NCCL or gloo."""

from stepscope.collectors.flight_recorder.dump import read_dump
from stepscope.collectors.flight_recorder.files import DumpFile, find_dumps, read_dumps

__all__ = ["DumpFile", "find_dumps", "read_dump", "read_dumps"]
