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
        bytes: of the object.
        md5: of the object.
        of_store: the store's own stamp of the object (ETag); empty where it gives none.
        source: its path in the node's folder, where it is another than in the run.
        source_bytes: of the node's file that are in it: of one that lines are appended to, up to the end of a line.
        modified_ns: time of that file's last change, ns since the epoch.
    """

    bytes: int
    md5: str
    of_store: str
    source: str
    source_bytes: int
    modified_ns: int


@dataclass(slots=True)
class NodeUpload:
    """The document uploads/{node}.json.

    Attributes:
        run: name of the run.
        node: host name, and a part that tells two folders on one host apart.
        target: URL of the run, without a user's name and password.
        ranks: whose steps the node has.
        attempts_before: attempts of the run that other folders had uploaded before this one began.
        bytes_before: of the files that those had uploaded of the same ranks, which this node's lines follow.
        updated_ns: when this was written, ns since the epoch.
        waiting_files, waiting_bytes: not uploaded yet when this was written.
        problem: why files wait; None where nothing failed.
        claimed: paths in the run that this node began to upload, arrived or not.
        files: those that have arrived, by their paths in the run.
    """

    run: str
    node: str
    target: str = ""
    state: UploadState = UploadState.UPLOADING
    ranks: list[int] = field(default_factory=list)
    attempts_before: int = 0
    bytes_before: dict[str, int] = field(default_factory=dict)
    updated_ns: int = 0
    waiting_files: int = 0
    waiting_bytes: int = 0
    problem: str | None = None
    claimed: list[str] = field(default_factory=list)
    files: dict[str, UploadedFile] = field(default_factory=dict)
    schema: str = UPLOAD_SCHEMA
