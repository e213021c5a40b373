"""Places that a metric history lies in: a local directory, or any fsspec URL; files there appear whole."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from stepscope.core.errors import DataError, UnreachableError, from_os_error
from stepscope.store.files import write_whole

LEASE_SECONDS = 120.0
"""A writer of a URL that has not renewed its lease for so long is gone."""
_AT_ONCE = 64
MAX_RECENT_BYTES = 128 << 20
_LOCK, _LEASE = "writer.lock", "writer.lease"


class Place(Protocol):
    """Where the files of a history lie. All methods raise OSError; names are relative, with slashes."""

    location: str

    def path(self, name: str) -> str:
        """What a reader opens a file by: a path, or a URL."""
        ...

    def read(self, name: str) -> memoryview:
        """Content of a whole file."""
        ...

    def read_many(self, names: Sequence[str]) -> Iterator[memoryview | None]:
        """Contents of whole files, None of one that is not there."""
        ...

    def write(self, name: str, content: bytes | memoryview) -> None:
        """Write a whole file: nobody sees a part of it, and it is on the disk before this returns."""
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """Size in bytes of each file in a folder by its name; empty if there is none."""
        ...

    def folders(self, folder: str) -> list[str]:
        """Names of the folders in a folder."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; it may be gone already."""
        ...

    def remove_many(self, names: Sequence[str]) -> None:
        """Remove files, the last one before the others."""
        ...

    def remove_unfinished(self, folder: str) -> None:
        """Remove temporary files that a killed writer left in a folder."""
        ...

    def set_aside(self, name: str) -> str:
        """Move a damaged file to `damaged/`; its new name."""
        ...

    def lock(self) -> Lock:
        """Become the one writer.

        Raises:
            DataError: there is another one, or the place cannot be written.
        """
        ...


class Lock(Protocol):
    """The right to write in a place."""

    def renew(self) -> None:
        """Keep it. Raises DataError where another writer has it."""
        ...

    def release(self) -> None:
        """Give it back."""
        ...


def place_of(location: str | Path) -> Place:
    """Place of a directory or URL.

    Raises:
        DataError: no driver for such a URL is installed.
    """
    text = str(location)
    if "://" not in text:
        return LocalPlace(Path(text))
    if text.startswith(("file://", "local://")):
        return LocalPlace(Path(text.partition("://")[2]))
    return UrlPlace(text)


class LocalPlace:
    """A directory."""

    def __init__(self, folder: Path) -> None:
        self.location = str(folder)
        self._folder = folder.absolute()

    def path(self, name: str) -> str:
        """See Place."""
        return str(self._folder / name)

    def read(self, name: str) -> memoryview:
        """See Place."""
        with (self._folder / name).open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def read_many(self, names: Sequence[str]) -> Iterator[memoryview | None]:
        """See Place."""
        for name in names:
            try:
                yield self.read(name)
            except FileNotFoundError:
                yield None

    def write(self, name: str, content: bytes | memoryview) -> None:
        """See Place."""
        path = self._folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)  # type: ignore[arg-type]  # it takes any buffer
            _sync_folder(path.parent)
        except DataError as error:
            raise error.__cause__ if isinstance(error.__cause__, OSError) else OSError(error.what) from error

    def sizes(self, folder: str) -> dict[str, int]:
        """See Place."""
        found = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder / folder) as entries:
            for entry in entries:
                if entry.is_file() and not entry.name.startswith("."):
                    found[entry.name] = entry.stat().st_size
        return found

    def folders(self, folder: str) -> list[str]:
        """See Place."""
        try:
            return sorted(entry.name for entry in os.scandir(self._folder / folder) if entry.is_dir())
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        """See Place."""
        (self._folder / name).unlink(missing_ok=True)

    def remove_many(self, names: Sequence[str]) -> None:
        """See Place."""
        for name in reversed(names):
            self.remove(name)

    def remove_unfinished(self, folder: str) -> None:
        """See Place."""
        for path in (self._folder / folder).glob(".*.partial"):
            path.unlink(missing_ok=True)

    def set_aside(self, name: str) -> str:
        """See Place."""
        aside = f"damaged/{name.replace('/', '.')}"
        target = self._folder / aside
        target.parent.mkdir(parents=True, exist_ok=True)
        (self._folder / name).replace(target)
        return aside

    def lock(self) -> Lock:
        """See Place."""
        return _FileLock(self._folder)


def _sync_folder(folder: Path) -> None:
    """The names in a folder survive a loss of power too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _FileLock:
    """flock of one file: the kernel releases it when the writer ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        import fcntl

        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise from_os_error(error, "cannot be written", where=str(folder)) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._descriptor, 200, 0).decode("utf-8", "replace").strip()
            os.close(self._descriptor)
            raise _has_writer(str(folder), owner) from error
        with contextlib.suppress(OSError):  # a full disk: the lock holds, its text is for people
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, _owner().encode(), 0)

    def renew(self) -> None:
        """See Lock."""

    def release(self) -> None:
        """See Lock."""
        os.close(self._descriptor)


def _owner() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _has_writer(where: str, owner: str, free_after: float = 0.0) -> DataError:
    what_next = "give each a place of its own"
    if free_after > 0.0:
        what_next += f"; if that one was killed, the place is free in {free_after:.0f} s"
    return DataError(f"another writer has this history ({owner or 'unknown'})", where=where, what_next=what_next)


class UrlPlace:
    """A folder of an object store or another fsspec file system.

    It remembers small files that it has written, MAX_RECENT_BYTES at most: they are read again soon.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        self.location = url
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url.rstrip("/"))
        except (ImportError, ValueError) as error:
            raise DataError(
                f"cannot be opened ({error})", where=url, what_next='check the URL, or run: pip install "stepscope[s3]"'
            ) from error
        self._recent: dict[str, bytes] = {}
        self._recent_guard = threading.Lock()

    def path(self, name: str) -> str:
        """See Place."""
        return str(self._fs.unstrip_protocol(self._full(name)))

    def read(self, name: str) -> memoryview:
        """See Place."""
        with _as_os_errors():
            return memoryview(self._fs.cat_file(self._full(name)))

    def read_many(self, names: Sequence[str]) -> Iterator[memoryview | None]:
        """See Place. Some at once: each waits for its answer most of the time."""
        for place in range(0, len(names), _AT_ONCE):
            some = names[place : place + _AT_ONCE]
            with self._recent_guard:
                found: dict[str, Any] = {self._full(name): self._recent[name] for name in some if name in self._recent}
            far = [full for name in some if (full := self._full(name)) not in found]
            with _as_os_errors():
                found |= self._fs.cat(far, on_error="return") if len(far) > 1 else self._cat_one(*far)
            for name in some:
                content = found[self._full(name)]
                if isinstance(content, Exception) and not isinstance(content, FileNotFoundError):
                    raise StoreError(f"{type(content).__name__}: {content}") from content
                yield None if isinstance(content, Exception) else memoryview(content)

    def _cat_one(self, full: str = "") -> dict[str, Any]:
        try:
            return {full: self._fs.cat_file(full)} if full else {}
        except FileNotFoundError as error:
            return {full: error}

    def write(self, name: str, content: bytes | memoryview) -> None:
        """See Place."""
        with _as_os_errors():
            full = self._full(name)
            if not _is_object_store(self._fs):
                self._fs.makedirs(full.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(full, bytes(content))
        if len(content) <= MAX_RECENT_BYTES // 64 and name not in (_LEASE, "history.json"):
            with self._recent_guard:
                self._recent[name] = bytes(content)
                while sum(map(len, self._recent.values())) > MAX_RECENT_BYTES:
                    del self._recent[next(iter(self._recent))]

    def sizes(self, folder: str) -> dict[str, int]:
        """See Place."""
        return {
            one["name"].rpartition("/")[2]: int(one["size"] or 0)
            for one in self._entries(folder)
            if one["type"] == "file"
        }

    def _entries(self, folder: str) -> list[dict[str, Any]]:
        with _as_os_errors():
            self._fs.invalidate_cache()
            try:
                return list(self._fs.ls(self._full(folder), detail=True))
            except FileNotFoundError:
                return []

    def folders(self, folder: str) -> list[str]:
        """See Place."""
        return [one["name"].rpartition("/")[2] for one in self._entries(folder) if one["type"] == "directory"]

    def remove(self, name: str) -> None:
        """See Place."""
        self._forget([name])
        with _as_os_errors(), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._full(name))

    def remove_many(self, names: Sequence[str]) -> None:
        """See Place. One request for many, where the store has such."""
        if not names:
            return
        self.remove(names[-1])
        self._forget(names)
        try:
            with _as_os_errors():
                self._fs.rm([self._full(name) for name in names[:-1]])
        except FileNotFoundError:  # one of them
            for name in names[:-1]:
                self.remove(name)

    def _forget(self, names: Sequence[str]) -> None:
        with self._recent_guard:
            for name in names:
                self._recent.pop(name, None)

    def remove_unfinished(self, folder: str) -> None:
        """See Place. An object is there whole or not at all."""

    def set_aside(self, name: str) -> str:
        """See Place."""
        aside = f"damaged/{name.replace('/', '.')}"
        self.write(aside, self.read(name))
        self.remove(name)
        return aside

    def lock(self) -> Lock:
        """See Place."""
        return _Lease(self)

    def _full(self, name: str) -> str:
        return f"{self._root}/{name}" if name else str(self._root)


def _is_object_store(file_system: Any) -> bool:
    return any(protocol in ("s3", "s3a", "gs", "gcs", "abfs", "az") for protocol in _protocols(file_system))


def _protocols(file_system: Any) -> tuple[str, ...]:
    protocol = file_system.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


class StoreError(OSError):
    """An object store refused; its client's own error is the cause."""


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # each store's client has errors of its own, and some share no root
        raise StoreError(f"{type(error).__name__}: {error}") from error


class _Lease:
    """An object with the writer's name, written again and again. Two that start within one round trip may both get it;
    the next renewal finds out, and one of them stops. So does one that finds another's, however old: it was frozen, or
    cut off from the store, for so long that another one has written meanwhile."""

    def __init__(self, place: UrlPlace) -> None:
        self._place = place
        self._owner = f"{_owner()}, {os.urandom(4).hex()}"
        try:
            held = self._held()
            free_after = 0.0 if held is None else held[1] + LEASE_SECONDS - time.time()
            if held is not None and free_after > 0.0:
                raise _has_writer(place.location, held[0], min(free_after, LEASE_SECONDS))
            self._write()
        except OSError as error:
            raise UnreachableError(
                f"cannot be written ({error})", where=place.location, what_next="check the URL and its credentials"
            ) from error
        self._renewed = time.monotonic()

    def renew(self) -> None:
        """See Lock."""
        if time.monotonic() - self._renewed < LEASE_SECONDS / 4:
            return
        held = self._held()
        if held is None or held[0] != self._owner:  # what that one has written is not in our catalog
            raise _has_writer(self._place.location, "its lease is gone" if held is None else held[0])
        self._write()
        self._renewed = time.monotonic()

    def release(self) -> None:
        """See Lock."""
        with contextlib.suppress(OSError):
            held = self._held()
            if held is not None and held[0] == self._owner:
                self._place.remove(_LEASE)

    def _write(self) -> None:
        self._place.write(_LEASE, json.dumps({"owner": self._owner, "time": time.time()}).encode())

    def _held(self) -> tuple[str, float] | None:
        try:
            document = json.loads(bytes(self._place.read(_LEASE)))
            return str(document["owner"]), float(document["time"])
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError):
            return None
