"""Where runs are stored, a local folder or an object store: their files, and deletion that leaves no half of a run."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from stepscope.core.documents import run_directory as layout
from stepscope.core.documents.upload import UPLOAD_SCHEMA, NodeUpload
from stepscope.core.errors import DataError, from_os_error
from stepscope.core.file_locks import is_locked_by_another
from stepscope.store.documents import decode_document, decode_manifest
from stepscope.store.files import read_whole
from stepscope.store.runs import is_run as is_whole_run
from stepscope.workflow.inputs.object_stores import store_error, store_errors
from stepscope.workflow.stored_runs.sizes import PRUNED_MARK, TRACE_FOLDERS, RunSizes

_MAX_UPLOADS_READ = 4096


def is_run(path: Path) -> bool:
    """Whether a folder is a run, or what a node without rank 0 wrote of one that it uploads."""
    return is_whole_run(path) or (path / layout.UPLOADS_FOLDER).is_dir()


class FoundRun(NamedTuple):
    """A stored run as it was found.

    Attributes:
        locked: a file that a process of this machine has open for writing; None without one.
        refused: why it is never deleted; empty where it may be.
    """

    name: str
    path: str
    sizes: RunSizes
    manifest: layout.RunManifest | None
    uploads: list[NodeUpload]
    locked: str | None = None
    refused: str = ""


class RunsPlace(Protocol):
    """A place with runs; a place that is itself a run holds that one."""

    where: str

    def runs(self) -> list[FoundRun]:
        """All runs, by name; raises DataError or UnreachableError where it cannot be listed."""

    def find(self, name: str) -> FoundRun | None:
        """One of them as it is now; None where it is gone."""

    def delete(self, run: FoundRun, *, traces_only: bool) -> None:
        """Delete a run, or its traces; raises OSError, or an error of `store_errors`."""

    def leftovers(self) -> list[str]:
        """Paths of what an earlier deletion began and did not end."""

    def finish(self, leftover: str) -> None:
        """End such a deletion."""


def open_place(where: str) -> RunsPlace:
    """The place of a folder or an fsspec URL.

    Raises:
        DataError, UnreachableError: it does not exist or cannot be opened.
    """
    if where.startswith("file://"):
        where = where.removeprefix("file://")
    return StorePlace(where) if "://" in where else FolderPlace(where)


class FolderPlace:
    """Runs in a local folder: deleted by a rename inside the same folder first."""

    def __init__(self, where: str) -> None:
        self.where = where
        root = Path(where)
        try:
            os.scandir(root).close()
        except OSError as error:
            raise from_os_error(error, "cannot be listed", where=where) from error
        self._only = root.resolve().name if is_run(root) else None
        self._root = root.resolve().parent if self._only is not None else root

    def runs(self) -> list[FoundRun]:
        return [run for name in self._names() if (run := self.find(name)) is not None]

    def find(self, name: str) -> FoundRun | None:
        path = self._root / name
        if not is_run(path):
            return None
        sizes = RunSizes()
        for file, state in _files_in(path):
            sizes.add(file, state.st_size, state.st_mtime_ns)
        refused = "it is a link" if path.is_symlink() else ""
        return FoundRun(name, str(path), sizes, _manifest(path), _uploads(path), locked_file(path), refused)

    def delete(self, run: FoundRun, *, traces_only: bool) -> None:
        """Rename, look again whether the run is written, and delete; a run that is written gets its name back.

        Raises:
            OSError: it cannot be deleted, or EBUSY where it is written after all.
        """
        whole = Path(run.path)
        parts = [whole / folder for folder in TRACE_FOLDERS] if traces_only else [whole]
        for part in parts:
            trash = part.with_name(f"{PRUNED_MARK}-{run.name[:150]}-{secrets.token_hex(4)}")
            try:
                part.rename(trash)
            except FileNotFoundError:
                continue
            if not traces_only and (locked := locked_file(trash)) is not None:
                trash.rename(part)
                raise OSError(errno.EBUSY, f"a process writes {locked}", run.path)
            _remove(trash)

    def leftovers(self) -> list[str]:
        folders = [self._root, *(self._root / name for name in self._names())]
        names = [self._only] if self._only is not None else None
        found = [path for folder in folders for path in folder.glob(f"{PRUNED_MARK}-*") if path.is_dir()]
        return sorted(str(path) for path in found if names is None or path.parent.name in names)

    def finish(self, leftover: str) -> None:
        _remove(Path(leftover))

    def _names(self) -> list[str]:
        if self._only is not None:
            return [self._only]
        names = (entry.name for entry in os.scandir(self._root) if not entry.name.startswith("."))
        return sorted(name for name in names if is_run(self._root / name))


def _files_in(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Files below a folder with their states, links not followed; what goes away meanwhile is left out."""
    pending = [("", str(folder))]
    while pending:
        inside, path = pending.pop()
        try:
            entries = list(os.scandir(path))
        except OSError:
            continue
        for entry in entries:
            name = f"{inside}/{entry.name}" if inside else entry.name
            with suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    yield name, entry.stat(follow_symlinks=False)
                elif not entry.name.startswith(PRUNED_MARK):
                    pending.append((name, entry.path))


def _remove(folder: Path) -> None:
    """Delete a folder that may be going away by another's hand.

    Raises:
        OSError: the first thing that cannot be deleted.
    """
    errors: list[BaseException] = []

    def note(_function: object, _path: str, failure: tuple[type[BaseException], BaseException, object]) -> None:
        if not isinstance(failure[1], FileNotFoundError):
            errors.append(failure[1])

    shutil.rmtree(folder, onerror=note)
    if errors:
        raise errors[0]


def locked_file(run: Path) -> str | None:
    """A file of the run that another process appends to now, by that process's lock; None without one."""
    for folder in (layout.STEPS_FOLDER, layout.METRICS_FOLDER):
        for path in sorted((run / folder).glob("rank*.jsonl")):
            if is_locked_by_another(path):
                return f"{folder}/{path.name}"
    return None


def _manifest(run: Path) -> layout.RunManifest | None:
    try:
        return decode_manifest(read_whole(run / layout.RUN_FILE))
    except DataError:
        return None


def _uploads(run: Path) -> list[NodeUpload]:
    paths = sorted((run / layout.UPLOADS_FOLDER).glob("*.json"))[:_MAX_UPLOADS_READ]
    return decode_uploads(content for path in paths if (content := _read(path)) is not None)


def _read(path: Path) -> bytes | None:
    try:
        return read_whole(path)
    except DataError:
        return None


def decode_uploads(contents: Iterable[bytes]) -> list[NodeUpload]:
    """Records of nodes' uploads; one that cannot be read is left out."""
    uploads = []
    for content in contents:
        with suppress(DataError, msgspec.DecodeError):
            uploads.append(decode_document(content, kind=NodeUpload, schema=UPLOAD_SCHEMA, where="upload"))
    return uploads


_BATCH = 1000
"""Objects that S3 deletes in one request."""
_TIME_KEYS = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
"""What the drivers call the time of an object's last write; the first that it has counts."""


class StorePlace:
    """Runs below a URL of an object store, or of another file system that fsspec reads.

    Stores cannot rename a run. An object with a name of its own marks a run that is being deleted before the first of
    its objects goes, and itself goes last.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        self.where = url.rstrip("/")
        try:
            self._store, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except store_errors() as error:
            raise store_error(url, error) from error
        self._root, self._url, self._only = str(path).rstrip("/"), self.where, ""
        files = self._files("")
        if not files and not self._exists():
            raise DataError("does not exist", where=url, what_next="check the URL")
        if _is_run(files):
            self._root, _, self._only = self._root.rpartition("/")
            self._url = self._url.rpartition("/")[0]
        self._by_run: dict[str, dict[str, Mapping[str, Any]]] = {self._only: files} if self._only else {}
        for path, info in {} if self._only else files.items():
            name, _, inside = path.partition("/")
            if inside:
                self._by_run.setdefault(name, {})[inside] = info

    def runs(self) -> list[FoundRun]:
        return [self._run(name, files) for name, files in sorted(self._by_run.items()) if _is_kept(files)]

    def find(self, name: str) -> FoundRun | None:
        files = self._files(name)
        return self._run(name, files) if _is_kept(files) else None

    def delete(self, run: FoundRun, *, traces_only: bool) -> None:
        """Mark, and delete what is marked; raises an error of `store_errors`."""
        path = f"{self._root}/{run.name}"
        for folder in [f"{path}/{each}" for each in TRACE_FOLDERS] if traces_only else [path]:
            if not traces_only or self._store.find(folder):
                self._store.pipe_file(f"{folder}/{PRUNED_MARK}", b"deleted by stepscope runs prune\n")
                self.finish(folder)

    def leftovers(self) -> list[str]:
        marks = [f"{name}/{path}" for name, files in self._by_run.items() for path in files if _is_mark(path)]
        return sorted(f"{self._root}/{path}".removesuffix(f"/{PRUNED_MARK}") for path in marks)

    def finish(self, leftover: str) -> None:
        mark = f"{leftover}/{PRUNED_MARK}"
        paths = sorted(path for path in self._store.find(leftover) if path != mark)
        for first in range(0, len(paths), _BATCH):
            self._store.rm(paths[first : first + _BATCH])
        self._store.rm([mark])
        with suppress(*store_errors(), NotImplementedError):  # empty folders, where a store has folders
            folders = [path for path, info in self._store.find(leftover, withdirs=True, detail=True).items() if info]
            for folder in [*sorted(folders, key=len, reverse=True), leftover]:
                self._store.rmdir(folder)

    def _files(self, name: str) -> dict[str, Mapping[str, Any]]:
        """Files of a run as they are now, by their paths in it; below the place itself for an empty name."""
        path = f"{self._root}/{name}" if name else self._root
        try:
            found: dict[str, Mapping[str, Any]] = self._store.find(path, detail=True)
        except FileNotFoundError:
            return {}
        except store_errors() as error:
            raise store_error(self.where, error) from error
        return {file[len(path) + 1 :]: info for file, info in found.items() if file.startswith(f"{path}/")}

    def _exists(self) -> bool:
        try:
            return bool(self._store.exists(self._root))
        except store_errors() as error:
            raise store_error(self.where, error) from error

    def _run(self, name: str, files: dict[str, Mapping[str, Any]]) -> FoundRun:
        sizes = RunSizes()
        marked = tuple(path.removesuffix(PRUNED_MARK) for path in files if _is_mark(path))
        for path, info in files.items():
            if not (marked and path.startswith(marked)):
                sizes.add(path, int(info.get("size") or 0), _modified_ns(info))
        wanted = [path for path in files if path.startswith(f"{layout.UPLOADS_FOLDER}/") and path.endswith(".json")]
        wanted = [*wanted[:_MAX_UPLOADS_READ], *([layout.RUN_FILE] if layout.RUN_FILE in files else [])]
        contents = self._contents(name, wanted)
        manifest = None
        with suppress(DataError):
            manifest = decode_manifest(contents.pop(layout.RUN_FILE, b""))
        return FoundRun(name, f"{self._url}/{name}", sizes, manifest, decode_uploads(contents.values()))

    def _contents(self, name: str, files: list[str]) -> dict[str, bytes]:
        """Of those that can be read."""
        if not files:
            return {}
        paths = {f"{self._root}/{name}/{file}": file for file in files}
        found = self._store.cat(list(paths), on_error="return")
        found = found if isinstance(found, dict) else {next(iter(paths)): found}
        return {paths[path]: content for path, content in found.items() if isinstance(content, bytes)}


def _is_mark(path: str) -> bool:
    return path.rpartition("/")[2] == PRUNED_MARK


def _is_run(files: Iterable[str]) -> bool:
    return any(
        path in (layout.RUN_FILE, layout.ANALYSIS_FILE)
        or path.startswith((f"{layout.TRACES_FOLDER}/", f"{layout.UPLOADS_FOLDER}/"))
        for path in files
    )


def _is_kept(files: Mapping[str, object]) -> bool:
    return PRUNED_MARK not in files and _is_run(files)


def _modified_ns(info: Mapping[str, Any]) -> int | None:
    """Time of an object's last write, ns since the epoch; None where the store tells none."""
    value = next((info[key] for key in _TIME_KEYS if info.get(key)), None)
    if isinstance(value, str):
        with suppress(ValueError):
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    if isinstance(value, datetime):
        value = value.timestamp()
    return int(value * 1e9) if isinstance(value, (int, float)) and value > 0 else None
