"""How do files appear in a run directory only when they are whole?"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from stepscope.core.run_layout import (
    FLIGHT_FOLDER,
    LIVE_FOLDER,
    MEMORY_FOLDER,
    RUN_FILE,
    TRACES_FOLDER,
    Attempt,
    RunManifest,
)

_COPY_BYTES = 1 << 20
_GZIP_LEVEL = 1  # a trace shrinks 15-fold at level 1 already; level 9 stops training five times as long
_GZIP_FORMAT = 31  # zlib's number for a window of 32 kB with a gzip header
_FOLDERS_OF_RANKS = (
    f"{TRACES_FOLDER}/step*",
    FLIGHT_FOLDER,
    f"{FLIGHT_FOLDER}/{LIVE_FOLDER}",
    MEMORY_FOLDER,
    f"{MEMORY_FOLDER}/step*",
)
_LEFTOVER = re.compile(r"\..+?\.(\d+)(?:\.plain|\.probe)?\.part")


@contextmanager
def appearing_whole(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it when the block ends well and removed when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = partial_path(path)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def partial_path(path: Path, kind: str = "") -> Path:
    """Where this process prepares `path`: hidden, and with an ending that no reader takes for a trace."""
    return path.with_name(f".{path.name}.{os.getpid()}{kind}.part")


def remove_leftovers(run_directory: Path, rank: int) -> None:
    """Remove what an earlier process of this rank left half written when it was killed.

    Only this rank's own files are looked at: a process of another rank may run on another host, where its number
    says nothing here.
    """
    own = [f"{folder}/.rank{rank}[.-]*.part" for folder in _FOLDERS_OF_RANKS]
    own += [f".{RUN_FILE}.*.part"] if rank == 0 else []
    for path in (path for pattern in own for path in run_directory.glob(pattern)):
        match = _LEFTOVER.fullmatch(path.name)
        if match and not _is_alive(int(match.group(1))):
            with suppress(OSError):
                path.unlink()


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is there, but another user's
        return True
    return True


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
