"""Trace files of a path (a file, a folder, a run directory or an fsspec URL) and how each is opened."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stepscope.core.documents.run_directory import TRACES_FOLDER
from stepscope.core.errors import DataError, StepscopeError, UnreachableError, from_os_error
from stepscope.core.vocabulary import Notice
from stepscope.store.runs import is_recorded_run
from stepscope.trace.columns import TraceColumns
from stepscope.trace.reading import has_rank_name, read_ranks, read_ranks_stream
from stepscope.workflow.inputs.paths import check_readable, refuse_many_runs

_NOT_TRACES = frozenset({"run.json", "analysis.json", "timeline.json", "truth.json"})
_CAPTURE = re.compile(r"step(\d+)(?:-attempt(\d+))?$")


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """Trace files of the given paths.

    Attributes:
        paths: files or URLs, sorted.
        run_directory: the local run directory, where just that was given.
        notices: on files that were left out.
    """

    paths: list[str]
    run_directory: Path | None
    notices: list[Notice]

    @property
    def earlier_captures(self) -> list[list[str]]:
        """Files of the run's captures before the analysed one."""
        return (
            [] if self.run_directory is None else [_traces_in(folder) for folder in _captures(self.run_directory)[:-1]]
        )

    @property
    def capture(self) -> tuple[int, int] | None:
        """Attempt and first step of the run's capture; None where the files are not of a run."""
        is_captured = self.run_directory is not None and bool(self.paths)
        return _attempt_and_first_step(Path(self.paths[0]).parent) if is_captured else None


def find_trace_files(paths: Iterable[str]) -> TraceFiles:
    """Expand the paths of a command line. A path without traces becomes a notice where others have some.

    Raises:
        DataError: no path holds a trace.
        UnreachableError: a URL's store does not answer.
    """
    files: dict[str, str] = {}
    notices: list[Notice] = []
    given = list(paths)
    errors: list[DataError] = []
    for text in given:
        try:
            if "://" in text:
                files |= {url: url for url in _in_store(text)}
            else:
                files |= {os.path.realpath(path): path for path in _on_disk(text, notices)}
        except DataError as error:
            errors.append(error)
    if errors and not files:
        raise errors[0]
    notices += [Notice("unusable_file", str(error)) for error in errors]
    is_one_place = len(given) == 1 and "://" not in given[0]
    run_directory = Path(given[0]) if is_one_place and is_recorded_run(Path(given[0])) else None
    return TraceFiles(sorted(files.values()), run_directory, notices)


def open_ranks(path: str) -> list[TraceColumns]:
    """Read the trace of a file or URL; one per rank where it holds several.

    Raises:
        DataError: it cannot be used.
        UnreachableError: its store does not answer.
    """
    if "://" not in path:
        return read_ranks(path)
    import fsspec

    try:
        with fsspec.open(path, "rb") as stream:
            return read_ranks_stream(stream, path=path, file_bytes=getattr(stream, "size", None) or 0)
    except store_errors() as error:
        raise store_error(path, error) from error


def _on_disk(text: str, notices: list[Notice]) -> list[str]:
    path = Path(text)
    try:
        if path.is_file():
            return [text]
        check_readable(text)
        if not path.is_dir():
            raise DataError("is neither a file nor a folder", where=text, what_next="give trace files")
        return _in_run(path, notices) if is_recorded_run(path) else _in_folder(path, notices)
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=text) from error


def _in_run(run: Path, notices: list[Notice]) -> list[str]:
    captures = _captures(run)
    if not captures:
        raise DataError(
            "has no captured traces yet",
            where=str(run),
            what_next=f"profile some steps; they appear in {run / TRACES_FOLDER}/step<k>/",
        )
    if len(captures) > 1:
        older = ", ".join(folder.name for folder in captures[:-1])
        notices.append(
            Notice("older_captures", f"details are of {captures[-1].name}; the job's training time also by {older}")
        )
    _note_unfinished(captures[-1], notices)
    return _traces_in(captures[-1])


def _captures(run: Path) -> list[Path]:
    """Folders of the captures that have traces, in order."""
    captures = [folder for folder in (run / TRACES_FOLDER).glob("step*") if _CAPTURE.search(folder.name)]
    return sorted((folder for folder in captures if _traces_in(folder)), key=_attempt_and_first_step)


def _attempt_and_first_step(capture: Path) -> tuple[int, int]:
    match = _CAPTURE.search(capture.name)
    return (int(match[2] or 1), int(match[1])) if match else (0, 0)


def _in_folder(folder: Path, notices: list[Notice]) -> list[str]:
    files = _traces_in(folder)
    _note_unfinished(folder, notices)
    if files:
        return files
    refuse_many_runs([str(folder)])
    folders = (inner for inner in folder.iterdir() if inner.is_dir() and not inner.name.startswith("."))
    inner = sorted(inner.name for inner in folders if _traces_in(inner))
    if inner:
        shown = ", ".join(inner[:4]) + (", ..." if len(inner) > 4 else "")
        raise DataError(
            f"holds folders of traces ({shown}), not traces",
            where=str(folder),
            what_next="give one of them: a folder is one job",
        )
    raise DataError("holds no trace (*.json, *.json.gz)", where=str(folder), what_next="check the path")


def _note_unfinished(folder: Path, notices: list[Notice]) -> None:
    """The profiler writes to name.tmp and renames it when the trace is whole."""
    unfinished = sorted(p.name for p in folder.iterdir() if p.suffix.lower() == ".tmp" and has_rank_name(p.stem))
    if unfinished:
        shown = ", ".join(unfinished[:4]) + (", ..." if len(unfinished) > 4 else "")
        notices.append(Notice("unfinished_file", f"{folder}: still being written or broken off, left out: {shown}"))


def _traces_in(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.iterdir() if path.is_file() and _names_a_trace(path.name))


def _names_a_trace(name: str) -> bool:
    """Hidden files are some writer's unfinished ones."""
    return has_rank_name(name) and name not in _NOT_TRACES and not name.startswith(".")


def _in_store(url: str) -> list[str]:
    """A URL itself, or the traces directly under it."""
    import fsspec

    try:
        store, path = fsspec.core.url_to_fs(url)
        if not store.isdir(path):
            return [url]
        inside = [store.unstrip_protocol(entry) for entry in store.ls(path, detail=False)]
    except store_errors() as error:
        raise store_error(url, error) from error
    files = [entry for entry in inside if _names_a_trace(entry.rsplit("/", 1)[-1])]
    if not files:
        raise DataError("holds no trace (*.json, *.json.gz)", where=url, what_next="check the URL")
    return files


_CLIENT_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"),  # s3fs: no credentials, no answer
    ("aiohttp", "ClientError"),  # http, and below s3fs and gcsfs
    ("google.auth.exceptions", "GoogleAuthError"),  # gcsfs
    ("gcsfs.retry", "HttpError"),
    ("azure.core.exceptions", "AzureError"),  # adlfs
)
"""Root of each client's errors that are not OSErrors; s3fs turns a server's answers into OSErrors."""

_NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError"})
_CHECK_RIGHTS = "check that the credentials may read it"
_CREDENTIALS = "provide credentials as for the store's own tools (docs/guides/fan-out.md)"
_CHECK_URL = "check the URL, the endpoint and the network"


def store_errors() -> tuple[type[Exception], ...]:
    """Exception types of opening, listing or reading a URL; a client that raised is imported already."""
    clients = ((sys.modules.get(module), name) for module, name in _CLIENT_ERRORS)
    return (OSError, ImportError, ValueError, *(getattr(module, name) for module, name in clients if module))


def store_error(url: str, error: Exception) -> StepscopeError:
    """The StepscopeError for an error of a store."""
    from fsspec.registry import known_implementations

    protocol = url.partition("://")[0]
    if isinstance(error, ImportError):
        return _without_driver(url, protocol, error)
    if isinstance(error, ValueError) and protocol not in known_implementations:
        return DataError(f"{protocol}:// is not a known kind of store", where=url, what_next="check the URL")
    if isinstance(error, FileNotFoundError):
        return DataError("does not exist", where=url, what_next="check the URL")
    if type(error).__name__ in _NO_CREDENTIALS:
        return UnreachableError(f"cannot be opened ({error})", where=url, what_next=_CREDENTIALS)
    if isinstance(error, PermissionError):
        return UnreachableError(f"access is denied ({error})", where=url, what_next=_CHECK_RIGHTS)
    return UnreachableError(f"cannot be opened ({error})", where=url, what_next=_CHECK_URL)


def _without_driver(url: str, protocol: str, error: ImportError) -> DataError:
    """The error names the machine: it may be a cluster's worker that lacks the driver."""
    missing = next((e.name for e in (error.__cause__, error) if isinstance(e, ImportError) and e.name), None)
    package = "stepscope[s3]" if missing == "s3fs" else (missing or f"fsspec[{protocol}]").partition(".")[0]
    what = f"the driver of {protocol}:// ({missing or error}) is not installed on {socket.gethostname()}"
    return DataError(what, where=url, what_next=f'run: pip install "{package}"')
