"""Runs below URLs: their records fetched to the user's cache directory, their traces left where they are.

A run in a store is read as a run directory. Step records, counters, dumps and whatever else is small is fetched, each
object once as long as it does not change; traces are read from the store, by as many processes or nodes as read them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import posixpath
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.core.documents import run_directory as layout
from stepscope.core.documents.upload import UPLOAD_SCHEMA, NodeUpload, UploadState
from stepscope.core.errors import DataError, from_os_error
from stepscope.core.text.numbers import counted, listed, plain_size
from stepscope.core.vocabulary import Notice
from stepscope.store.documents import decode_document
from stepscope.workflow.inputs.object_stores import store_error, store_errors
from stepscope.workflow.stored_runs.sizes import PRUNED_MARK
from stepscope.workflow.views.view_files import cache_directory

CACHE_BYTES = 4 << 30
"""Of the fetched records of all runs; those not used for longest go first. No more of one run is fetched either."""
_BATCH_BYTES, _BATCH_FILES = 64 << 20, 256
_IN_USE_SECONDS = 3600.0
_FETCHED = ".fetched.json"
_STAMPS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "mtime", "created")
_MAX_NAMED = 4
_RECORD_FOLDERS = (layout.STEPS_FOLDER, layout.UPLOADS_FOLDER)


class RemoteRun(NamedTuple):
    """A run below a URL.

    Attributes:
        folder: a run directory with its records, without its traces.
        traces: URLs, by the names of their captures.
    """

    url: str
    folder: Path
    traces: dict[str, list[str]]


class _Listed(NamedTuple):
    """Objects of a run by their paths in it: size, and a stamp that changes with the content."""

    store: Any
    root: str
    objects: dict[str, tuple[int, str]]

    def url_of(self, path: str) -> str:
        return str(self.store.unstrip_protocol(f"{self.root}/{path}"))


def open_remote_run(url: str, notices: list[Notice]) -> RemoteRun | None:
    """Fetch the records of the run below a URL; None where the URL is no run's.

    Args:
        notices: gets what the nodes have not uploaded yet, and what is too large to be fetched.

    Raises:
        DataError: the run is being deleted, or the cache directory cannot be written.
        UnreachableError: the store does not answer.
    """
    if "://" not in url or url.startswith("file://"):
        return None
    try:
        listed_run = _list(url.rstrip("/"))
        if listed_run is None:
            return None
        folder = _cache_of(url.rstrip("/"))
        with _locked(folder):
            _fetch(listed_run, folder, url, notices)
    except store_errors() as error:
        raise store_error(url, error) from error
    notices += _upload_notices(listed_run, folder, url)
    return RemoteRun(url.rstrip("/"), folder, _traces(listed_run))


def local_records(url: str) -> str:
    """Path of a run directory with the records of the run below a URL.

    Raises:
        DataError, UnreachableError: as `open_remote_run`; also where the URL is no run's.
    """
    if url.startswith("file://"):
        return url.removeprefix("file://")
    run = open_remote_run(url, [])
    if run is None:
        refuse_many_remote_runs(url)
        raise DataError("is not a run", where=url, what_next="give the URL of a run's folder")
    return str(run.folder)


def local_run(path: str) -> str:
    """A local path as it is, and of a URL `local_records`."""
    return local_records(path) if "://" in path else path


def refuse_many_remote_runs(url: str) -> None:
    """Refuse a URL below which runs are; to be called where nothing else was found.

    Raises:
        DataError: names the runs.
    """
    import fsspec

    with suppress(*store_errors()):
        store, path = fsspec.core.url_to_fs(url.rstrip("/"))
        runs = [posixpath.basename(posixpath.dirname(found)) for found in store.glob(f"{path}/*/{layout.RUN_FILE}")]
        if runs:
            what = f"holds {counted(len(runs), 'run')}: {listed(sorted(runs))}"
            raise DataError(what, where=url, what_next=f"give one of them, such as {url.rstrip('/')}/{min(runs)}")


def _list(url: str) -> _Listed | None:
    """The objects of a run; None where the URL is no run's."""
    import fsspec

    store, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    root = str(root).rstrip("/")
    try:
        names = {posixpath.basename(str(path).rstrip("/")) for path in store.ls(root, detail=False)}
    except (FileNotFoundError, NotADirectoryError):
        return None
    if layout.RUN_FILE not in names and not names.intersection(_RECORD_FOLDERS):
        return None
    if PRUNED_MARK in names:
        raise DataError("is being deleted by `stepscope runs prune`", where=url, what_next="choose another run")
    found: Mapping[str, Mapping[str, Any]] = store.find(root, detail=True)
    objects = {path[len(root) + 1 :]: _state(info) for path, info in found.items() if path.startswith(f"{root}/")}
    return _Listed(store, root, {path: state for path, state in objects.items() if _is_safe(path)})


def _state(info: Mapping[str, Any]) -> tuple[int, str]:
    stamp = next((f"{key}={info[key]}" for key in _STAMPS if info.get(key)), "")
    return int(info.get("size") or 0), stamp


def _is_safe(path: str) -> bool:
    """Whether a key is a path below a folder: a store takes any text for a name."""
    return all(part not in ("", ".", "..") and "\0" not in part for part in path.split("/"))


def _traces(run: _Listed) -> dict[str, list[str]]:
    traces: dict[str, list[str]] = {}
    if f"{layout.TRACES_FOLDER}/{PRUNED_MARK}" in run.objects:  # a prune of them was killed
        return traces
    for path in run.objects:
        kind, _, inside = path.partition("/")
        capture, _, name = inside.partition("/")
        if kind == layout.TRACES_FOLDER and name and "/" not in name:
            traces.setdefault(capture, []).append(run.url_of(path))
    return traces


def _is_record(path: str, objects: Mapping[str, object]) -> bool:
    """Whether an object is fetched: no trace, no checkpoint, and a view only where its trace is not there."""
    kind, _, inside = path.partition("/")
    if kind in (layout.TRACES_FOLDER, layout.CHECKPOINT_FOLDER) or posixpath.basename(path).startswith("."):
        return False
    if kind == layout.VIEWS_FOLDER and inside.endswith(".view"):
        return f"{layout.TRACES_FOLDER}/{inside.removesuffix('.view')}.json.gz" not in objects
    return True


def _cache_of(url: str) -> Path:
    views = cache_directory()
    if views is None:
        raise DataError("there is no cache directory", where=url, what_next="set XDG_CACHE_HOME")
    key = hashlib.sha256(url.encode()).hexdigest()[:20]
    return views.with_name("runs") / key / posixpath.basename(url)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time fetches a run; raises DataError where the cache directory cannot be written."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder.parent / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise from_os_error(error, "cannot be written", where=str(folder)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _fetch(run: _Listed, folder: Path, url: str, notices: list[Notice]) -> None:
    """Bring the folder to what the store has now."""
    known = _fetched(folder)
    wanted = {path: state for path, state in run.objects.items() if _is_record(path, run.objects)}
    for path in known.keys() - wanted.keys():
        with suppress(OSError):
            (folder / path).unlink()
    missing = [path for path, state in wanted.items() if known.get(path) != state or not state[1]]
    kept = {path: state for path, state in known.items() if wanted.get(path) == state and state[1]}
    room = CACHE_BYTES - sum(size for size, _ in kept.values())
    missing.sort(key=lambda path: wanted[path][0])
    taken: list[str] = []
    for path in missing:
        room -= wanted[path][0]
        taken += [path] if room >= 0 else []
    if len(taken) < len(missing):
        left = missing[len(taken) :]
        size = plain_size(sum(wanted[path][0] for path in left))
        what = f"{counted(len(left), 'file')} not fetched, {size}: {listed(left, _MAX_NAMED)}"
        notices.append(Notice("not_fetched", f"{url}: {what}; copy the run to a disk to read all of it"))
    try:
        for batch in _batches(taken, wanted):
            _fetch_batch(run, folder, batch)
            kept |= {path: wanted[path] for path in batch}
            _keep_fetched(folder, kept)
        _keep_fetched(folder, kept)
        _remove_unused(folder)
    except OSError as error:
        if error.filename is not None and str(error.filename).startswith(str(folder)):
            raise from_os_error(error, "cannot be written", where=str(error.filename)) from error
        raise


def _batches(paths: Sequence[str], states: Mapping[str, tuple[int, str]]) -> Iterator[list[str]]:
    batch: list[str] = []
    num_bytes = 0
    for path in paths:
        if batch and (num_bytes + states[path][0] > _BATCH_BYTES or len(batch) == _BATCH_FILES):
            yield batch
            batch, num_bytes = [], 0
        batch.append(path)
        num_bytes += states[path][0]
    if batch:
        yield batch


def _fetch_batch(run: _Listed, folder: Path, paths: Sequence[str]) -> None:
    """Fetch some objects at once; one that went away meanwhile is left out."""
    if len(paths) == 1:
        with suppress(FileNotFoundError):
            _write(folder, paths[0], lambda file: run.store.get_file(f"{run.root}/{paths[0]}", str(file)))
        return
    keys = {f"{run.root}/{path}": path for path in paths}
    for key, content in run.store.cat(list(keys), on_error="return").items():
        if isinstance(content, FileNotFoundError):
            continue
        if isinstance(content, Exception):
            raise content
        _write(folder, keys[key], lambda file, content=content: file.write_bytes(content))


def _write(folder: Path, path: str, write: Any) -> None:
    final = folder / path
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f".{final.name}.partial")
    write(temporary)
    temporary.replace(final)


def _fetched(folder: Path) -> dict[str, tuple[int, str]]:
    """What has been fetched and is still there."""
    try:
        document = json.loads((folder.parent / _FETCHED).read_bytes())
        known = {str(path): (int(size), str(stamp)) for path, (size, stamp) in document.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
    return {path: state for path, state in known.items() if _is_safe(path) and _size(folder / path) == state[0]}


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _keep_fetched(folder: Path, states: Mapping[str, tuple[int, str]]) -> None:
    temporary = folder.parent / f"{_FETCHED}.partial"
    temporary.write_text(json.dumps(states))
    temporary.replace(folder.parent / _FETCHED)


def _remove_unused(folder: Path) -> None:
    """Keep the cache of all runs within its size."""
    used = []
    for each in folder.parent.parent.iterdir():
        with suppress(OSError, ValueError):
            record = each / _FETCHED
            states = json.loads(record.read_bytes())
            used.append((record.stat().st_mtime, sum(size for size, _ in states.values()), each))
    total = sum(size for _, size, _ in used)
    for last_used, size, each in sorted(used):
        if total <= CACHE_BYTES or time.time() - last_used < _IN_USE_SECONDS:
            return
        shutil.rmtree(each, ignore_errors=True)
        total -= size


def _upload_notices(run: _Listed, folder: Path, url: str) -> list[Notice]:
    """Notices of nodes whose files have not all arrived, and of objects that are missing in the store."""
    notices = []
    for path in sorted((folder / layout.UPLOADS_FOLDER).glob("*.json")):
        try:
            record = decode_document(path.read_bytes(), kind=NodeUpload, schema=UPLOAD_SCHEMA, where=str(path))
        except (DataError, OSError) as error:
            notices.append(Notice("unusable_file", str(error)))
            continue
        if record.state is not UploadState.FINISHED:
            why = f" ({record.problem})" if record.problem else ""
            text = f"{url}: {record.node} has not finished its upload{why}; its files may be missing"
            notices.append(Notice("upload_unfinished", text))
        missing = sorted(record.files.keys() - run.objects.keys())
        if missing:
            what = f"{counted(len(missing), 'file')} of {record.node} {'is' if len(missing) == 1 else 'are'} missing"
            notices.append(Notice("missing_objects", f"{url}: {what}: {listed(missing, _MAX_NAMED)}"))
    return notices
