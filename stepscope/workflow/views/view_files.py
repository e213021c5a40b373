"""Files of views on disk: in the run directory beside the traces, else in the user's cache directory.

The cache is bounded in size; the least recently used views are removed first. Only regular files of the trace's owner,
of this user or of root are read.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from stepscope.core.documents.run_directory import LIGHT_FOLDER, RUN_FILE, STEPS_FOLDER, TRACES_FOLDER, view_path
from stepscope.core.errors import DataError
from stepscope.store.files import write_whole
from stepscope.workflow.inputs.archives import absolute, split_address
from stepscope.workflow.views.view_format import MAX_FILE_BYTES, UnusableViewError

VIEWS_VARIABLE = "STEPSCOPE_VIEWS"
"""`off`: views are neither read nor kept."""
CACHE_BYTES = 2 << 30
"""Views in the user's cache directory, which a run of 1,024 ranks fills to a tenth."""
_ROOM_RATIO = 0.9
"""What is left of it when the least recently used are removed, so that this is rare."""
_SUFFIX = ".view"

_log = logging.getLogger(__name__)


def is_on() -> bool:
    """Whether views are read and kept."""
    return os.environ.get(VIEWS_VARIABLE, "").lower() not in ("off", "0", "no")


def view_places(address: str, variant: str = "") -> list[Path]:
    """Paths of a trace's view, the preferred one first: in its run directory, where it is in one, and in the cache.

    Args:
        address: of the trace: a file, a URL or an address in an archive.
        variant: tells the views of a trace from each other; part of the file name.
    """
    places = [] if "://" in address else run_view_path(Path(address), variant)
    cache = cache_directory()
    if cache is not None:
        known = address if "://" in address else os.path.realpath(absolute(address))
        key = hashlib.sha256(f"{variant}\0{known}".encode(errors="surrogateescape")).hexdigest()[:40]
        places = [*places, cache / f"{key}{_SUFFIX}"]
    return places


def run_view_path(trace: Path, variant: str = "") -> list[Path]:
    """Path of the view of a trace in its run directory; empty for a trace outside of one."""
    if len(trace.parts) < 3 or trace.parts[-3] not in (TRACES_FOLDER, LIGHT_FOLDER):
        return []
    run = trace.parent.parent.parent
    if not (run / RUN_FILE).is_file() and not (run / STEPS_FOLDER).is_dir():  # another tool's folder
        return []
    return [run / view_path(trace, variant)]


def owners_of(address: str | Path) -> frozenset[int]:
    """Users whose views of a trace are read beside this user's and root's: the trace's owner, of one that is gone the
    owner of its run directory; nobody else's of a URL."""
    source, _ = split_address(str(address))
    if "://" in source:
        return frozenset()
    path = Path(source)
    for place in (path, *list(path.parents)[2:3]):
        with suppress(OSError):
            return frozenset({place.stat().st_uid})
    return frozenset()


def read_file(path: Path, owners: frozenset[int]) -> bytes | None:
    """Content of a view's file; None where there is none.

    Args:
        owners: users whose files are read beside this user's and root's.

    Raises:
        UnusableViewError: it cannot be read, is not a regular file, is too large, or is another user's.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnusableViewError(f"cannot be read ({error.strerror})", where=str(path)) from error
    try:
        _check_state(os.fstat(number), path, owners)
        with open(number, "rb", closefd=False) as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UnusableViewError(f"cannot be read ({error.strerror})", where=str(path)) from error
    finally:
        os.close(number)
    _mark_used(path)
    return content


def _check_state(state: os.stat_result, path: Path, owners: frozenset[int]) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise UnusableViewError("is not a regular file", where=str(path))
    if state.st_uid not in owners | {os.geteuid(), 0}:
        raise UnusableViewError("belongs to another user than the trace or its run", where=str(path))
    if state.st_size > MAX_FILE_BYTES:
        raise UnusableViewError(f"is larger than any view ({state.st_size:,} bytes)", where=str(path))


def write_file(places: list[Path], content: bytes) -> Path | None:
    """Write a view's file to the first place that can be written; None where none can."""
    if len(content) > MAX_FILE_BYTES:
        return None
    for path in places:
        try:
            _make_folder(path.parent)
            if not path.is_file() or path.is_symlink():  # a pipe would take the content, and wait for its reader
                path.unlink(missing_ok=True)
            write_whole(path, content)
        except (OSError, DataError) as error:
            _log.debug("no view is kept at %s: %s", path, error)
            continue
        if path.parent == cache_directory():
            _remove_least_used(path.parent, keep=path)
        return path
    return None


def cache_directory() -> Path | None:
    """Directory of views in the user's cache; None without a home."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root, "stepscope", "views") if os.path.isabs(root) else None


def _make_folder(folder: Path) -> None:
    """Make the folder of a view, readable for its user alone in the cache.

    Raises:
        OSError: it cannot be made, or others can write the cache.
    """
    if folder != cache_directory():
        folder.mkdir(parents=True, exist_ok=True)
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.geteuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError("the cache of views belongs to others")


def _mark_used(path: Path) -> None:
    if path.parent == cache_directory():
        with suppress(OSError):
            os.utime(path)


def _remove_least_used(folder: Path, *, keep: Path) -> None:
    files = sorted(_files(folder), key=lambda file: file[0])
    total = sum(size for _, size, _ in files)
    if total <= CACHE_BYTES:
        return
    for _, size, path in files:
        if total <= _ROOM_RATIO * CACHE_BYTES:
            break
        if path != keep:
            with suppress(OSError):
                path.unlink()
            total -= size


def _files(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """Last use, size and path of each file of the cache, also of what a killed process left."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                state = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(state.st_mode):
                    yield state.st_mtime_ns, state.st_size, Path(entry.path)
