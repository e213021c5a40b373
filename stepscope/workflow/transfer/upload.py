"""Upload of a node's folder of a run: what has arrived is recorded beside it, so that it can be killed at any moment.

Whole files are uploaded once. A file that lines are appended to is uploaded again as a whole, up to the end of a line:
one object that every tool can read, with nothing to join. So that this stays cheap, the time until the next upload
grows with the file: a file costs `GROWING_BYTES_PER_SECOND` at most.

The record claims a path before its first upload, and names it as arrived after the store has confirmed it. So an object
that a killed upload left is this node's own and is uploaded again under the same name: nothing is lost or doubled.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stepscope.core.documents import run_directory as layout
from stepscope.core.documents.upload import UPLOAD_SCHEMA, NodeUpload, UploadedFile, UploadState
from stepscope.core.errors import DataError
from stepscope.store.documents import decode_document, encode_document
from stepscope.store.files import write_whole
from stepscope.workflow.transfer.node_files import (
    COPY_FILE,
    NodeFile,
    attempts_of,
    copy_lines,
    files_of_node,
    first_time_ns,
    has_view,
    last_time_ns,
    merged_manifest,
    num_whole_bytes,
    path_in_run,
    ranks_of_node,
    with_attempts,
)
from stepscope.workflow.transfer.target import (
    Content,
    StoredObject,
    UploadTarget,
    content_of,
    content_of_file,
    is_of,
)

SETTLES_SECONDS = 2.0
"""A file that is not renamed into place, such as a dump of NCCL, is still being written before."""
IN_MEMORY_BYTES = 32 << 20
LEAST_SECONDS = 15.0
REDUCED_SECONDS = 60.0
"""After the view of a trace those of the node's other ranks are made, one at a time."""
GROWING_BYTES_PER_SECOND = 256 * 1024
RECORD_EVERY_SECONDS = 60.0
"""The record says to readers and to `runs prune` that the node still uploads."""
_FLIGHT = f"{layout.FLIGHT_FOLDER}/"
_URL_USER = re.compile(r"(?<=://)[^/@]*@")
_MAX_LEFTOVER_PARTS = 1000


class NodeUploader:
    """Uploads a node's folder of a run, in turns.

    Args:
        folder: the node's folder of the run.
        host: name of the node, for the record.
        reduces: traces are reduced to views beside training, which removes most of them: one waits until that is done.
        clock: seconds, of `time.monotonic`.

    Raises:
        Exception: from `turn`, what `store_errors` has, and DataError where the record cannot be written; the next
            turn goes on where this one ended.
    """

    def __init__(
        self,
        folder: Path,
        target: UploadTarget,
        host: str,
        *,
        reduces: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._target = target
        self._reduces = reduces
        self._clock = clock
        self._url = _URL_USER.sub("", target.url)
        found = _record_of(folder, self._url)
        self.record = found or NodeUpload(folder.name, f"{host}-{secrets.token_hex(4)}", target=self._url)
        self._is_new = found is None
        self._is_begun = False
        self._uploaded_at: dict[str, float] = {}
        self._recorded_at = float("-inf")
        self._lines_before: dict[str, bytes] = {}

    def turn(self, *, is_last: bool) -> bool:
        """Upload what is due; returns whether all that there is has arrived.

        Args:
            is_last: nothing is written any more: upload all that is left, and record that the node's part is whole.
        """
        self._begin()
        files = files_of_node(self._folder)
        self.record.ranks = sorted({*self.record.ranks, *ranks_of_node(files)})
        due = self._due(files, is_last=is_last)
        if due:
            self.record.state = UploadState.UPLOADING
        if self._claim(due):
            self._upload_record()
        waiting = {file.path: file.num_bytes for file in due}
        for file in due:
            self._note_waiting(waiting)
            self._upload(file, is_last=is_last)
            del waiting[file.path]
        self._remove_ended(files)
        self._note_waiting(waiting)
        self.record.problem = None
        is_whole = is_last and self._is_whole()
        if is_whole:
            self.record.state = UploadState.FINISHED
        if due or is_whole or self._clock() - self._recorded_at > RECORD_EVERY_SECONDS:
            self._upload_record()
        return not self._due(files_of_node(self._folder), is_last=is_last)

    def note_problem(self, problem: str) -> None:
        """Keep why files wait in the node's record."""
        self.record.problem = problem
        with suppress(DataError):
            self._write_record()

    def _begin(self) -> None:
        """Once: what the store has of this node's paths."""
        if self._is_begun:
            return
        objects = self._target.objects()
        if self._is_new:
            self._find_before(objects)
            self._write_record()
            self._is_new = False
        missing = [path for path, file in self.record.files.items() if not _has(objects, path, file)]
        for path in missing:  # lost, or replaced by others
            del self.record.files[path]
        unconfirmed = [path for path in self.record.claimed if path not in self.record.files]
        self._target.abort_unfinished(unconfirmed[:_MAX_LEFTOVER_PARTS])
        self._is_begun = True

    def _find_before(self, objects: dict[str, StoredObject]) -> None:
        """What other folders have uploaded of this run: attempts that ended before this folder was made."""
        record, last_ns = self.record, 0
        for file in files_of_node(self._folder):
            if not file.is_appended or file.path not in objects:
                continue
            before = self._target.read(file.path)
            if (self._folder / file.path).read_bytes().startswith(before):
                continue  # this folder's own, of an upload whose record is lost
            record.bytes_before[file.path] = len(before)
            self._lines_before[file.path] = before
            if file.path.startswith(f"{layout.STEPS_FOLDER}/"):
                last_ns = max(last_ns, last_time_ns(before))
        if layout.RUN_FILE not in objects:
            record.attempts_before = 1 if record.bytes_before else 0
            return
        attempts = attempts_of(self._target.read(layout.RUN_FILE))
        begun_ns = first_time_ns(self._folder)
        own = self._folder / layout.RUN_FILE
        own_ns = {attempt["start_ns"] for attempt in attempts_of(own.read_bytes())} if own.is_file() else set()
        earlier = [
            each
            for each in attempts
            if each["start_ns"] not in own_ns
            and (each["start_ns"] <= last_ns or (each.get("end_ns") or begun_ns) < begun_ns)
        ]
        record.attempts_before = max(len(earlier), 1 if record.bytes_before else 0)

    def _due(self, files: list[NodeFile], *, is_last: bool) -> list[NodeFile]:
        waiting = files if is_last else [file for file in files if not self._may_be_removed(file)]
        return [file for file in waiting if self._is_due(file, is_last=is_last)]

    def _is_due(self, file: NodeFile, *, is_last: bool) -> bool:
        path = path_in_run(file.path, self.record.attempts_before)
        known = self.record.files.get(path)
        if known is not None and (known.source_bytes, known.modified_ns) == (file.num_bytes, file.modified_ns):
            return False
        if is_last:
            return True
        if file.is_appended:
            wait = max(LEAST_SECONDS, file.num_bytes / GROWING_BYTES_PER_SECOND)
            return self._clock() - self._uploaded_at.get(path, float("-inf")) >= wait
        return time.time() - file.modified_ns / 1e9 >= SETTLES_SECONDS or file.path == layout.RUN_FILE

    def _may_be_removed(self, file: NodeFile) -> bool:
        """Whether a trace has no view yet, or one that is so new that the capture may not be reduced yet."""
        if not self._reduces or not file.path.startswith(f"{layout.TRACES_FOLDER}/"):
            return False
        return not has_view(self._folder, file.path, older_than_seconds=REDUCED_SECONDS)

    def _claim(self, files: list[NodeFile]) -> bool:
        """Whether a path was not claimed before."""
        claimed = set(self.record.claimed)
        new = [path for file in files if (path := path_in_run(file.path, self.record.attempts_before)) not in claimed]
        self.record.claimed += new
        return bool(new)

    def _upload(self, file: NodeFile, *, is_last: bool) -> None:
        path = path_in_run(file.path, self.record.attempts_before)
        try:
            content, source_bytes = self._content(file, is_last=is_last)
        except FileNotFoundError:  # removed since it was listed
            return
        stored = self._target.find(path) if path not in self.record.files else None
        arrived = stored if stored is not None and stored.of_store and is_of(stored, content) else None
        if arrived is None:
            arrived = self._target.put(path, content)
        self._uploaded_at[path] = self._clock()
        self.record.files[path] = UploadedFile(
            arrived.bytes, content.md5, arrived.of_store, file.path, source_bytes, file.modified_ns
        )
        if self._clock() - self._recorded_at > 1.0:
            self._write_record()

    def _content(self, file: NodeFile, *, is_last: bool) -> tuple[Content, int]:
        """Content of a file as it is in the run, and how many bytes of the file are in it."""
        local = self._folder / file.path
        if file.path == layout.RUN_FILE:
            own = local.read_bytes()
            before = self._target.read(file.path) if self._target.find(file.path) is not None else None
            return content_of(merged_manifest(own, before)), len(own)
        if not file.is_appended:
            return content_of_file(local), file.num_bytes
        before, attempts = self._before(file.path), self.record.attempts_before
        num_bytes = file.num_bytes if is_last and file.is_log else num_whole_bytes(local, file.num_bytes)
        consumed = file.num_bytes if is_last else num_bytes  # half a line at the end stays behind
        if len(before) + num_bytes <= IN_MEMORY_BYTES:
            with local.open("rb") as stream:
                lines = stream.read(num_bytes)
            return content_of(before + with_attempts(file.path, lines, attempts)), consumed
        copy = self._folder / COPY_FILE
        with copy.open("wb") as written:
            written.write(before)
            copy_lines(self._folder, file.path, num_bytes, attempts, written)
        return content_of_file(copy), consumed

    def _before(self, path: str) -> bytes:
        """What other folders had uploaded of this file."""
        num_bytes = self.record.bytes_before.get(path, 0)
        if num_bytes and path not in self._lines_before:
            self._lines_before[path] = self._target.read(path, num_bytes)
        return self._lines_before.get(path, b"")

    def _remove_ended(self, files: list[NodeFile]) -> None:
        """Dumps of a step that ended after all: the node has removed them, and so must the store."""
        here = {file.path for file in files}
        for path in [path for path in self.record.files if path.startswith(_FLIGHT) and path not in here]:
            self._target.remove(path)
            del self.record.files[path]

    def _is_whole(self) -> bool:
        """Whether the store has all that is recorded, by one look at all of it; what it lacks becomes due again."""
        objects = self._target.objects()
        missing = [path for path, file in self.record.files.items() if not _has(objects, path, file)]
        for path in missing:
            del self.record.files[path]
        return not missing

    def _note_waiting(self, waiting: dict[str, int]) -> None:
        self.record.waiting_files, self.record.waiting_bytes = len(waiting), sum(waiting.values())

    def _write_record(self) -> None:
        self.record.updated_ns = time.time_ns()
        path = self._folder / layout.UPLOADS_FOLDER / f"{self.record.node}.json"
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise DataError(f"cannot be made ({error})", where=str(path.parent)) from error
        write_whole(path, encode_document(self.record))
        self._recorded_at = self._clock()

    def _upload_record(self) -> None:
        self._write_record()
        record = replace(self.record, claimed=[])
        self._target.put(f"{layout.UPLOADS_FOLDER}/{self.record.node}.json", content_of(encode_document(record)))


def _has(objects: dict[str, StoredObject], path: str, file: UploadedFile) -> bool:
    """Whether the store still has an object as it was uploaded."""
    stored = objects.get(path)
    if stored is None or stored.bytes != file.bytes:
        return False
    return not (stored.of_store and file.of_store) or stored.of_store == file.of_store


def _record_of(folder: Path, url: str) -> NodeUpload | None:
    """The record of an earlier upload of this folder to the same URL."""
    for path in sorted((folder / layout.UPLOADS_FOLDER).glob("*.json")):
        with suppress(DataError, OSError):
            record = decode_document(path.read_bytes(), kind=NodeUpload, schema=UPLOAD_SCHEMA, where=str(path))
            if record.target == url:
                return record
    return None
