"""What does a CUDA memory snapshot of torch's say? `reading` turns the pickle into columns, whatever its size;
`notes` reads what the training side wrote down beside it."""

from stepscope.collectors.memory_snapshot.notes import read_note
from stepscope.collectors.memory_snapshot.reading import read_snapshot

__all__ = ["read_note", "read_snapshot"]
