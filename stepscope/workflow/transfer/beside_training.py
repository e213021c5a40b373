"""Upload of a node's folder beside its training: in turns while it is written, to the end, and what is then removed."""

from __future__ import annotations

import os
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path

from stepscope.core.documents.run_directory import TRACES_FOLDER, UPLOADS_FOLDER
from stepscope.core.documents.upload import UploadState
from stepscope.core.errors import StepscopeError
from stepscope.core.protocol.upload_state import UploadProgress, UploadStage, is_training_over, training_over_ns
from stepscope.workflow.inputs.object_stores import store_error, store_errors
from stepscope.workflow.stored_runs.places import decode_uploads, locked_file
from stepscope.workflow.stored_runs.sizes import PRUNED_MARK
from stepscope.workflow.transfer.node_files import files_of_node, has_view
from stepscope.workflow.transfer.target import UploadTarget
from stepscope.workflow.transfer.upload import NodeUploader
from stepscope.workflow.transfer.upload_runs import again_seconds, own_folder, remove_arrived

TURN_SECONDS = 5.0
_LOOK_SECONDS = 0.5
AFTER_TRAINING_SECONDS = 1800.0
"""Then what has not arrived is left for `stepscope runs upload`."""
VIEWS_SECONDS = 300.0
"""The processes that reduce traces end by then."""
_CLOCK_STEP_NS = 20_000_000
"""Times of files are some milliseconds behind the clock."""
_KEPT_SECONDS = 86_400.0
"""Records of a run that has arrived stay so long in the node's folder, for an attempt that goes on from them."""


class UploadBesideTraining:
    """Upload of a node's folder while processes of the node write it.

    Args:
        folder: the node's folder of the run.
        parent: the process of training that started this one.
        keep: leave traces and other large files where they are once they have arrived.
        reduces: traces are reduced to views beside training.

    Raises:
        UploadInUseError: another process uploads the folder.
        StepscopeError: the URL or its driver cannot be used here.
    """

    def __init__(self, folder: Path, url: str, parent: int, *, keep: bool, reduces: bool) -> None:
        self._folder = folder
        self._url = f"{url.rstrip('/')}/{folder.name}"
        self._parent = parent
        self._keep = keep
        self._reduces = reduces
        self._has_been_written = False
        self._uploader = NodeUploader(folder, UploadTarget(self._url), socket.gethostname(), reduces=reduces)

    def run(self) -> bool:
        """Upload until training has ended; returns whether all has arrived."""
        with own_folder(self._folder):
            while True:
                began_ns = time.time_ns()
                is_whole = self._upload()
                self._wait_for_parent(began_ns)
                if self._is_parent_alive() or not self._is_over():  # more was written, or is
                    continue
                is_whole = self._upload()  # what came meanwhile: an analysis, views
                if is_whole and not self._keep and self._is_over():
                    remove_arrived(self._folder, self._uploader.record)
                    self._remove_old()
                if self._is_over():
                    return is_whole

    def _upload(self) -> bool:
        """Turns until nothing more is written and all has arrived; False where that takes too long.

        Also where the folder is gone.
        """
        num_failed, give_up_at = 0, float("inf")
        while True:
            if not self._folder.is_dir():  # deleted
                return False
            is_over = self._is_over()  # before the look at the files: what was written until then is uploaded
            if is_over and give_up_at == float("inf"):
                give_up_at, num_failed = time.monotonic() + AFTER_TRAINING_SECONDS, 0
            seconds, as_of_ns = TURN_SECONDS, time.time_ns()
            try:
                if is_over and self._reduces:
                    self._uploader.turn(is_last=False)
                    self._wait_for_views()
                    as_of_ns = time.time_ns()
                is_whole = self._uploader.turn(is_last=is_over)
                num_failed = 0
                if is_over and is_whole:
                    self._report(UploadStage.FINISHED, None, as_of_ns)
                    return True
                self._report(UploadStage.WAITING, None, as_of_ns)
                seconds = _LOOK_SECONDS if is_over else TURN_SECONDS
            except (StepscopeError, *store_errors()) as error:  # type: ignore[misc]
                num_failed += 1
                seconds = again_seconds(num_failed)
                problem = str(error if isinstance(error, StepscopeError) else store_error(self._url, error))
                self._uploader.note_problem(problem)
                self._report(UploadStage.WAITING, problem, as_of_ns)
            if time.monotonic() + seconds > give_up_at:
                self._report(UploadStage.FAILED, self._uploader.record.problem, as_of_ns)
                return False
            self._wait(seconds, until_over=not is_over)

    def _is_over(self) -> bool:
        """Whether no process of this node writes the folder any more."""
        if locked_file(self._folder) is not None:
            self._has_been_written = True
            return False
        has_said = is_training_over(self._folder, self._parent)
        return has_said or self._has_been_written or not self._is_parent_alive()

    def _is_parent_alive(self) -> bool:
        return os.getppid() == self._parent

    def _wait(self, seconds: float, *, until_over: bool) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not (until_over and self._is_over()):
            time.sleep(min(_LOOK_SECONDS, max(until - time.monotonic(), 0.0)))

    def _wait_for_parent(self, uploaded_ns: int) -> None:
        """Until the parent has ended, or a process of training says that it has written more by now.

        The parent may read what it wrote, or train again.
        """
        latest_ns = uploaded_ns - _CLOCK_STEP_NS
        while self._is_parent_alive() and self._is_over() and training_over_ns(self._folder) < latest_ns:
            time.sleep(_LOOK_SECONDS)

    def _wait_for_views(self) -> None:
        """Until the traces of this node have been reduced, which may end minutes after training."""
        until = time.monotonic() + VIEWS_SECONDS
        while time.monotonic() < until:
            traces = [each.path for each in files_of_node(self._folder) if each.path.startswith(f"{TRACES_FOLDER}/")]
            if all(has_view(self._folder, trace, older_than_seconds=_LOOK_SECONDS * 4) for trace in traces):
                return
            time.sleep(_LOOK_SECONDS)

    def _report(self, stage: UploadStage, problem: str | None, as_of_ns: int) -> None:
        record = self._uploader.record
        with suppress(OSError):
            UploadProgress(stage, record.waiting_files, record.waiting_bytes, problem, as_of_ns).write(self._folder)

    def _remove_old(self) -> None:
        """Delete the folders of other runs here that have arrived and were not written for a day."""
        for folder in self._folder.parent.iterdir():
            with suppress(OSError):
                if folder != self._folder and _is_old(folder):
                    trash = folder.with_name(f"{PRUNED_MARK}-{folder.name[:150]}")
                    folder.rename(trash)
                    shutil.rmtree(trash, ignore_errors=True)


def _is_old(folder: Path) -> bool:
    if folder.name.startswith(PRUNED_MARK):
        return True
    paths = list((folder / UPLOADS_FOLDER).glob("*.json"))
    if not paths or locked_file(folder) is not None:
        return False
    if max(path.stat().st_mtime for path in paths) > time.time() - _KEPT_SECONDS:
        return False
    records = decode_uploads(path.read_bytes() for path in paths)
    return len(records) == len(paths) and all(each.state is UploadState.FINISHED for each in records)
