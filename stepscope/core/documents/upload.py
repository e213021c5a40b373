"""Upload of one node's files of a run to an object store (`stepscope.upload/1`): uploads/{node}.json of the run.

The node keeps it beside the files as the record of what has arrived, and uploads it too, so that readers of the store
know whether all of the node's files are there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

UPLOAD_SCHEMA = "stepscope.upload/1"


class UploadState(StrEnum):
    """How far a node's upload is."""

    UPLOADING = "uploading"
    """files may still come"""
    FINISHED = "finished"
    """the node's part of the run has ended, and all its files have arrived"""


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A file of the node that has arrived whole.

    Attributes:
        bytes: that arrived; of a file that lines are appended to, up to the end of a line.
        modified_ns: time of the file's last change on the node, ns since the epoch.
        md5: of these bytes.
        of_store: the store's own stamp of the object (ETag); empty where it gives none.
    """

    bytes: int
    modified_ns: int
    md5: str
    of_store: str = ""


@dataclass(slots=True)
class NodeUpload:
    """The document uploads/{node}.json.

    Attributes:
        run: name of the run.
        node: host name, and a part that tells two folders on one host apart.
        ranks: whose files the node has.
        attempts_before: attempts of the run that other folders have uploaded before this one began.
        updated_ns: when this was written, ns since the epoch.
        waiting_files, waiting_bytes: not uploaded yet when this was written.
        problem: why files wait; None where nothing failed.
        claimed: paths that this node began to upload, arrived or not.
        files: those that have arrived, by their paths in the run.
    """

    run: str
    node: str
    state: UploadState = UploadState.UPLOADING
    ranks: list[int] = field(default_factory=list)
    attempts_before: int = 0
    updated_ns: int = 0
    waiting_files: int = 0
    waiting_bytes: int = 0
    problem: str | None = None
    claimed: list[str] = field(default_factory=list)
    files: dict[str, UploadedFile] = field(default_factory=dict)
    schema: str = UPLOAD_SCHEMA
