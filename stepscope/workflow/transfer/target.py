"""A run below a URL as the target of an upload: objects that appear whole or not at all, and what is known of them."""

from __future__ import annotations

import hashlib
import math
import os
import posixpath
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.core.errors import UsageError
from stepscope.workflow.inputs.object_stores import store_error, store_errors

_WHOLE_OBJECTS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "r2", "memory"})
"""Stores whose objects appear only once they are whole; elsewhere a file is written under another name and renamed."""
_PART_BYTES = 16 << 20
_S3 = frozenset({"s3", "s3a"})
_S3_OPTIONS = {"chunksize": _PART_BYTES, "max_concurrency": 2}
"""32 MiB of a large file in memory at once, where s3fs would take 500 MB."""
_S3_PATIENCE = {"config_kwargs": {"connect_timeout": 10, "read_timeout": 60, "retries": {"total_max_attempts": 2}}}
"""An upload tries again itself."""
_PLAIN_MD5, _MD5_OF_PARTS = re.compile(r"[0-9a-f]{32}"), re.compile(r"([0-9a-f]{32})-(\d+)")
_UNFINISHED = ".part"


class StoredObject(NamedTuple):
    """An object as the store describes it; `of_store` is its ETag, empty where the store gives none."""

    bytes: int
    of_store: str


class Content(NamedTuple):
    """Bytes to upload, in memory or in a file that does not change; and their MD5."""

    num_bytes: int
    md5: str
    data: bytes | None = None
    file: Path | None = None


def content_of(data: bytes) -> Content:
    """Content in memory."""
    return Content(len(data), _md5(data), data=data)


def content_of_file(path: Path) -> Content:
    """Content of a file; raises OSError where it cannot be read, or changes meanwhile."""
    digest, before = hashlib.md5(usedforsecurity=False), path.stat()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns, before.st_ino) != (after.st_size, after.st_mtime_ns, after.st_ino):
        raise OSError(f"{path} changes while it is read")
    return Content(after.st_size, digest.hexdigest(), file=path)


class NotArrivedError(OSError):
    """The store has something else than what was uploaded."""


class UploadTarget:
    """The run below a URL. Methods raise what `store_errors` has.

    Raises:
        UsageError: the URL names no store.
        DataError: the store's driver is not installed.
        UnreachableError: the store cannot be opened.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        if "://" not in url:
            raise UsageError("is not a URL", where=url, what_next="give one such as s3://bucket/runs")
        import fsspec

        options = {} if fsspec.config.conf.get("s3", {}).get("config_kwargs") else _S3_PATIENCE
        options = options if url.partition("://")[0] in _S3 else {}
        try:
            self._store, path = fsspec.core.url_to_fs(self.url, use_listings_cache=False, **options)
        except store_errors() as error:
            raise store_error(url, error) from error
        self._root = str(path).rstrip("/")
        protocols = self._store.protocol
        self._protocols = {protocols} if isinstance(protocols, str) else set(protocols)
        self._gives_md5: bool | None = None

    def objects(self) -> dict[str, StoredObject]:
        """All objects of the run, by their paths in it."""
        try:
            found: Mapping[str, Mapping[str, Any]] = self._store.find(self._root, detail=True)
        except FileNotFoundError:
            return {}
        prefix = f"{self._root}/"
        return {path[len(prefix) :]: _described(info) for path, info in found.items() if path.startswith(prefix)}

    def find(self, path: str) -> StoredObject | None:
        """One object; None where it is not there."""
        try:
            self._store.invalidate_cache()
            return _described(self._store.info(f"{self._root}/{path}"))
        except FileNotFoundError:
            return None

    def read(self, path: str, num_bytes: int | None = None) -> bytes:
        """An object, or its first bytes."""
        content: bytes = self._store.cat_file(f"{self._root}/{path}", start=0, end=num_bytes)
        return content

    def put(self, path: str, content: Content) -> StoredObject:
        """Upload an object, whole or not at all, and look whether it has arrived.

        Raises:
            NotArrivedError: the store has another size or checksum.
        """
        final = f"{self._root}/{path}"
        is_whole = bool(self._protocols & _WHOLE_OBJECTS)
        folder, name = posixpath.split(final)
        written = final if is_whole else f"{folder}/.{name}{_UNFINISHED}"
        if not is_whole:
            self._store.makedirs(folder, exist_ok=True)
        if content.data is not None:
            self._store.pipe_file(written, content.data)
        else:
            self._store.put_file(str(content.file), written, **(_S3_OPTIONS if self._protocols & _S3 else {}))
        if not is_whole:
            self._store.mv(written, final)
        arrived = self.find(path)
        if arrived is None or arrived.bytes != content.num_bytes or self._is_damaged(path, arrived, content):
            has = "nothing" if arrived is None else f"{arrived.bytes} bytes, {arrived.of_store}"
            raise NotArrivedError(f"{path}: uploaded {content.num_bytes} bytes, the store has {has}")
        return arrived

    def _is_damaged(self, path: str, arrived: StoredObject, content: Content) -> bool:
        """Whether the store's checksum says so. Of encrypted objects its stamp is none, which the first small one
        shows."""
        if is_of(arrived, content):
            self._gives_md5 = self._gives_md5 or bool(_PLAIN_MD5.fullmatch(arrived.of_store)) or None
            return False
        if self._gives_md5 is None and content.data is not None:
            is_same = self.read(path) == content.data
            self._gives_md5 = False if is_same else None
            return not is_same
        return bool(self._gives_md5)

    def remove(self, path: str) -> None:
        """Delete an object; one that is not there is no error."""
        with suppress(FileNotFoundError):
            self._store.rm_file(f"{self._root}/{path}")

    def abort_unfinished(self, paths: Collection[str]) -> None:
        """Have the store forget the parts of objects that a killed upload of ours began; only S3 keeps such."""
        if not self._protocols & _S3 or not hasattr(self._store, "list_multipart_uploads"):
            return
        bucket, _, prefix = self._root.partition("/")
        ours = {f"{prefix}/{path}" for path in paths}
        with suppress(*store_errors()):  # not everybody who may write may list these
            for each in self._store.list_multipart_uploads(bucket):
                if each["Key"] in ours:
                    self._store.call_s3(
                        "abort_multipart_upload", Bucket=bucket, Key=each["Key"], UploadId=each["UploadId"]
                    )


def is_of(stored: StoredObject, content: Content) -> bool:
    """Whether an object is this content, by its size, and by its stamp where that looks like an MD5."""
    if stored.bytes != content.num_bytes:
        return False
    if _PLAIN_MD5.fullmatch(stored.of_store):
        return stored.of_store == content.md5
    parts = _MD5_OF_PARTS.fullmatch(stored.of_store)
    if parts is None or int(parts[2]) != math.ceil(content.num_bytes / _PART_BYTES):
        return True  # the size alone: the store's stamp is not a checksum, or of parts of another size
    return parts[1] == _md5_of_parts(content)


def _md5_of_parts(content: Content) -> str:
    digests = []
    if content.data is not None:
        blocks = (content.data[first : first + _PART_BYTES] for first in range(0, content.num_bytes, _PART_BYTES))
        digests = [hashlib.md5(block, usedforsecurity=False).digest() for block in blocks]
    elif content.file is not None:
        with content.file.open("rb") as file:
            while block := file.read(_PART_BYTES):
                digests.append(hashlib.md5(block, usedforsecurity=False).digest())
    return _md5(b"".join(digests))


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _described(info: Mapping[str, Any]) -> StoredObject:
    stamp = next((info[key] for key in ("ETag", "etag") if info.get(key)), "")
    return StoredObject(int(info.get("size") or 0), str(stamp).strip('"'))
