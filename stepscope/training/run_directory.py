"""How do files appear in a run directory only when they are whole?"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from stepscope.core.run_layout import RUN_FILE, Attempt, RunManifest

_COPY_BYTES = 1 << 20
_GZIP_LEVEL = 1  # a trace shrinks 15-fold at level 1 already; level 9 stops training five times as long
_GZIP_FORMAT = 31  # zlib's number for a window of 32 kB with a gzip header


@contextmanager
def appearing_whole(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it when the block ends well and removed when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_manifest(run_directory: Path, manifest: RunManifest) -> None:
    """Write run.json.

    Raises:
        OSError: the directory cannot be written.
    """
    with appearing_whole(run_directory / RUN_FILE) as temporary:
        temporary.write_text(json.dumps(asdict(manifest), indent=1) + "\n", encoding="utf-8")


def read_attempts(run_directory: Path) -> list[Attempt]:
    """The attempts that an earlier start of the same run left in run.json; empty when unreadable."""
    try:
        document: Any = json.loads((run_directory / RUN_FILE).read_text(encoding="utf-8"))
        names = {field.name for field in fields(Attempt)}
        return [Attempt(**{name: entry[name] for name in names}) for entry in document["attempts"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def compress_trace(plain: Path, target: Path) -> int:
    """Gzip a finished JSON trace to `target`, which appears only when whole; returns the plain size in bytes.

    Raises:
        OSError: the plain file does not end as JSON does (the disk was full), or `target` cannot be written.
    """
    num_bytes, tail = 0, b""
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_FORMAT)
    with appearing_whole(target) as temporary:
        with plain.open("rb") as source, temporary.open("wb") as out:
            while block := source.read(_COPY_BYTES):
                num_bytes += len(block)
                tail = (tail + block)[-16:]
                out.write(packer.compress(block))
            out.write(packer.flush())
        if not tail.rstrip().endswith(b"}"):
            raise OSError(f"the trace is cut short after {num_bytes} bytes: {plain}")
    return num_bytes
