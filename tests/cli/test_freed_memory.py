"""The verbs that read traces keep what they free: the next array finds its pages there."""

import subprocess
import sys

import pytest

_FREES_AND_TAKES_AGAIN = """
import ctypes, resource, sys
from stepscope.cli.options import keep_freed_memory

if sys.argv[1] == "keeps":
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
size = 24 << 20
first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    block = libc.malloc(size)
    ctypes.memset(block, 1, size)
    libc.malloc(64)
    libc.free(block)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - first) * resource.getpagesize() / size)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_large_blocks_are_cleared_once_instead_of_each_time() -> None:
    command = [sys.executable, "-c", _FREES_AND_TAKES_AGAIN]
    kept, given_back = (
        float(subprocess.run([*command, word], capture_output=True, check=True, text=True).stdout)
        for word in ("keeps", "gives back")
    )
    assert kept < 1.5
    assert given_back >= kept
