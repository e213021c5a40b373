"""How is a pickle loaded that must not run anything? Only plain data is built: no class, no function.

torch writes flight recorders and memory snapshots as pickles of dicts, lists, strings and numbers, and a pickle may
come from anybody. So `opcodes` reads it first, and `loading` builds it with an unpickler that finds no class;
`streaming` builds what is larger than memory, piece by piece.
"""

from stepscope.collectors.plain_pickle.loading import load_plain
from stepscope.collectors.plain_pickle.opcodes import UnsafePickleError
from stepscope.collectors.plain_pickle.streaming import stream_plain

__all__ = ["UnsafePickleError", "load_plain", "stream_plain"]
