"""A real S3 server with an empty bucket, and what is in it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec

from tests.workflow.clusters import S3, running


@contextmanager
def s3_bucket(folder: Path) -> Iterator[dict[str, str]]:
    """The environment by which processes reach `s3://bucket`; also this one's while it lasts."""
    with running(S3, folder) as endpoint:
        settings = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        settings |= {"AWS_EC2_METADATA_DISABLED": "true"}
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        store = fsspec.filesystem("s3", skip_instance_cache=True)
        store.mkdir("bucket")
        try:
            yield settings
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})
            fsspec.config.conf.pop("s3", None)
            type(store).clear_instance_cache()


def contents(url: str) -> dict[str, str]:
    """SHA-256 of each object below a URL, but the records of uploads."""
    store, root = fsspec.core.url_to_fs(url, skip_instance_cache=True, use_listings_cache=False)
    paths = [path for path in store.find(root) if "/uploads/" not in path]
    found = store.cat(paths) if paths else {}
    return {path[len(root) + 1 :]: hashlib.sha256(content).hexdigest() for path, content in found.items()}


def folder_contents(*folders: Path) -> dict[str, str]:
    """The same of the files in folders together; hidden ones are left out."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".") and path.parent.name != "uploads"
    }
