"""Upload of node folders of runs after training, as `stepscope runs upload` does, and of what an upload left behind."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stepscope.core.documents.run_directory import STEPS_FOLDER, UPLOADS_FOLDER
from stepscope.core.documents.stored_runs import UploadedRun, UploadReport
from stepscope.core.documents.upload import NodeUpload
from stepscope.core.errors import DataError, StepscopeError, UsageError
from stepscope.core.protocol.upload_state import LOCK_FILE
from stepscope.core.text.numbers import counted, plain_size
from stepscope.core.vocabulary import Notice
from stepscope.store.runs import is_run
from stepscope.workflow.inputs.object_stores import store_error, store_errors
from stepscope.workflow.stored_runs.places import locked_file
from stepscope.workflow.transfer.node_files import LARGE_FOLDERS
from stepscope.workflow.transfer.target import UploadTarget
from stepscope.workflow.transfer.upload import NodeUploader

MOST_TRIES = 5
_LOCK_TRIES = 4
_FIRST_AGAIN_SECONDS, LONGEST_AGAIN_SECONDS = 1.0, 60.0


class UploadInUseError(DataError):
    """Another process uploads the folder."""


@contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """Hold a node's folder, so that one process at a time uploads it.

    Raises:
        UploadInUseError: another one does.
        OSError: the folder cannot be written.
    """
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _lock(descriptor):
            raise UploadInUseError("is being uploaded by another process", where=str(folder))
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Whether it could be locked; whoever only looks has it for an instant."""
    for _ in range(_LOCK_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.05)
    return False


def again_seconds(num_failed: int) -> float:
    """How long to wait after so many failures in a row: longer each time, and not all nodes at once."""
    seconds = min(_FIRST_AGAIN_SECONDS * 2.0 ** min(num_failed - 1, 10), LONGEST_AGAIN_SECONDS)
    return seconds * random.uniform(0.5, 1.0)


def upload_runs(
    path: str, url: str, *, keep: bool = True, on_turn: Callable[[NodeUpload], None] | None = None
) -> UploadReport:
    """Upload the runs in a folder, or one run, below a URL; each goes on where an earlier upload of it ended.

    Args:
        keep: leave traces and other large files where they are once they have arrived.

    Raises:
        DataError: there is no run.
        UsageError: the URL names no store.
        UnreachableError: the store does not answer.
    """
    root = Path(path)
    folders = [root] if _is_node_folder(root) else sorted(each for each in _folders_in(root) if _is_node_folder(each))
    if not folders:
        raise DataError("holds no run", where=path, what_next="give a run, or a folder of runs")
    runs, warnings = [], []
    for folder in folders:
        target = UploadTarget(f"{url.rstrip('/')}/{folder.resolve().name}")
        with own_folder(folder):
            locked = locked_file(folder)
            uploader = NodeUploader(folder.resolve(), target, socket.gethostname())
            _upload(uploader, target.url, is_last=locked is None, on_turn=on_turn)
            if locked is not None:
                text = f"{folder}: a process still writes {locked}; upload it again once it has ended"
                warnings.append(Notice("still_running", text))
            freed = 0 if keep or locked is not None else remove_arrived(folder, uploader.record)
        record = uploader.record
        num_bytes = sum(file.bytes for file in record.files.values())
        runs.append(
            UploadedRun(folder.name, target.url, record.node, len(record.files), num_bytes, locked is None, freed)
        )
    return UploadReport(path, runs, warnings)


def _upload(uploader: NodeUploader, url: str, *, is_last: bool, on_turn: Callable[[NodeUpload], None] | None) -> None:
    """Until all has arrived; raises what the last try failed with."""
    num_failed = 0
    while True:
        try:
            is_whole = uploader.turn(is_last=is_last)
            if on_turn is not None:
                on_turn(uploader.record)
            if is_whole or not is_last:
                return
        except store_errors() as error:
            num_failed += 1
            uploader.note_problem(str(error))
            if num_failed >= MOST_TRIES:
                raise _failed(uploader.record, url, error) from error
            time.sleep(again_seconds(num_failed))


def _failed(record: NodeUpload, url: str, error: Exception) -> StepscopeError:
    reason = store_error(url, error)
    reason.what += f"; {waiting_words(record)}"
    return reason


def waiting_words(record: NodeUpload) -> str:
    """What of a node's folder has not arrived: '3 files (12.0 MiB) wait'."""
    return f"{counted(record.waiting_files, 'file')} ({plain_size(record.waiting_bytes)}) wait"


def remove_arrived(folder: Path, record: NodeUpload) -> int:
    """Delete traces, views and snapshots of a node's folder that are in the store as they are here; returns the bytes.

    Records stay, so that an attempt that follows on the node goes on from them.
    """
    freed = 0
    for file in record.files.values():
        path = folder / file.source
        with suppress(OSError):
            state = path.stat()
            is_same = (state.st_size, state.st_mtime_ns) == (file.source_bytes, file.modified_ns)
            if is_same and file.source.startswith(tuple(f"{each}/" for each in LARGE_FOLDERS)):
                path.unlink()
                freed += state.st_size
    for kind in LARGE_FOLDERS:
        for inner, _, _ in os.walk(folder / kind, topdown=False):
            with suppress(OSError):  # not empty
                os.rmdir(inner)
    return freed


def _is_node_folder(folder: Path) -> bool:
    """Whether it is a run, or what the ranks of a node without rank 0 wrote of one."""
    return is_run(folder) or (folder / STEPS_FOLDER).is_dir() or (folder / UPLOADS_FOLDER).is_dir()


def _folders_in(root: Path) -> list[Path]:
    try:
        return [each for each in root.iterdir() if not each.name.startswith(".") and each.is_dir()]
    except OSError as error:
        raise UsageError(f"cannot be listed ({error.strerror})", where=str(root), what_next="check the path") from error
