"""Process whose files are on a tiny file system, to test code on a really full disk."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_MOUNTED = 'mount -t tmpfs -o size="$1" none "$2" && shift 2 && exec "$@"'


def run_on_small_disk(folder: Path, num_bytes: int, code: str, *arguments: str) -> str:
    """What Python prints when it runs `code` with `folder`, a disk of its own of so many bytes, as sys.argv[1].

    The disk is gone with the process; skips where a user may not mount one.
    """
    if shutil.which("unshare") is None:
        pytest.skip("no unshare on this machine")
    within = ["unshare", "-rm", "sh", "-c", _MOUNTED, "sh", str(num_bytes), str(folder)]
    if subprocess.run([*within, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    command = [*within, sys.executable, "-c", code, str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_with_file_limit(num_bytes: int, code: str, *arguments: str) -> str:
    """What Python prints when it runs `code` and no file of the process may grow beyond so many bytes."""
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({num_bytes}, {num_bytes}))\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", limited, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
