"""Trace files of paths (files, archives, folders, run directories, fsspec URLs) and how each is opened."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stepscope.core.documents.run_directory import LIGHT_FOLDER, RUN_FILE, STEPS_FOLDER, TRACES_FOLDER, trace_path
from stepscope.core.errors import DataError, from_os_error
from stepscope.core.text.numbers import listed
from stepscope.core.vocabulary import Notice
from stepscope.store.runs import is_recorded_run
from stepscope.trace.columns import TraceColumns
from stepscope.trace.file_names import folder_of_job, natural_order
from stepscope.trace.reading import has_rank_name, read_ranks_stream
from stepscope.workflow.inputs.archives import (
    ARCHIVE_NAME,
    SEPARATOR,
    file_names,
    is_archive_file,
    opened_member,
    split_address,
)
from stepscope.workflow.inputs.captures import Capture, Choice, captures_of, choose
from stepscope.workflow.inputs.object_stores import store_error, store_errors
from stepscope.workflow.inputs.paths import OnlyRunError, check_readable, refuse_many_runs
from stepscope.workflow.inputs.remote_runs import RemoteRun, open_remote_run, refuse_many_remote_runs
from stepscope.workflow.inputs.trace_stamps import HashingStream, TraceStamp, stamp_of, stamp_of_open
from stepscope.workflow.views.removed_traces import RemovedLookup, captures_with_records, removed_files
from stepscope.workflow.views.view_format import UnusableViewError

_NOT_TRACES = frozenset({"run.json", "analysis.json", "timeline.json", "truth.json"})
_CAPTURE = re.compile(r"step(\d+)(?:-attempt(\d+))?$")
_STEP_RECORDS = re.compile(rf"(?:^|/){STEPS_FOLDER}/rank\d+\.jsonl$")
_MAX_SHOWN = 4
_EXPORT = ".sqlite"
"""End of the names of Nsight Systems' exports; one beside traces of torch.profiler shows the same ranks again."""
_NAMES = f"*.json, *.json.gz, *{_EXPORT}"


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """Trace files of the given paths.

    Attributes:
        paths: files, URLs, or addresses in archives, in natural order.
        run_directory: the local run directory, where just that was given.
        notices: on files that were left out.
        num_captures: how many captures there are, by the names; the files are of the chosen ones.
        url: of the run, whose records have been fetched to the run directory; None for a run on this machine.
        captures: of a run that has a URL.
    """

    paths: list[str]
    run_directory: Path | None
    notices: list[Notice]
    num_captures: int = 1
    url: str | None = None
    captures: Sequence[Capture] = ()

    @property
    def other_captures(self) -> list[list[str]]:
        """Files of each of the run's captures but the chosen one."""
        of_run = [] if self.run_directory is None or self.url is not None else _captures_of_run(self.run_directory)
        captures = [*of_run, *self.captures]
        return [capture.files for capture in captures if not set(capture.files) & set(self.paths)]

    @property
    def capture(self) -> tuple[int, int] | None:
        """Attempt and first step of the run's capture; None where the files are not of a run."""
        is_captured = self.run_directory is not None and bool(self.paths)
        return _attempt_and_first_step(Path(self.paths[0]).parent.name) if is_captured else None


def find_trace_files(paths: Iterable[str], *, capture: Choice = None) -> TraceFiles:
    """Expand the paths of a command line. A path without traces becomes a notice where others have some.

    Args:
        capture: which one, where the files are several captures of the same processes.

    Raises:
        DataError: no path holds a trace; NoCaptureError of a run directory alone.
        OnlyRunError: a path is a folder with one run in it.
        UsageError: there is no such capture.
        UnreachableError: a URL's store does not answer.
    """
    files: dict[str, str] = {}
    notices: list[Notice] = []
    given = [_run_on_disk(text) or text for text in paths]
    if len(given) == 1 and (remote := open_remote_run(given[0], notices)) is not None:
        return _of_remote_run(remote, capture, notices)
    errors: list[DataError] = []
    for text in given:
        try:
            if "://" in text:
                files |= {url: url for url in _in_store(text, notices)}
            else:
                files |= {_identity(path): path for path in _on_disk(text, notices)}
        except OnlyRunError:
            raise
        except DataError as error:
            errors.append(error)
    if errors and not files:
        raise errors[0]
    notices += [Notice("unusable_file", str(error)) for error in errors]
    found = sorted(files.values(), key=natural_order)
    is_one_place = len(given) == 1 and "://" not in given[0]
    of_run = _captures_of_run(Path(given[0])) if is_one_place else []
    captures = of_run or captures_of(found)
    return TraceFiles(
        paths=choose(captures, capture, notices),
        run_directory=Path(given[0]) if of_run else None,
        notices=notices,
        num_captures=len(captures),
    )


def _run_on_disk(url: str) -> str | None:
    """Path of the run directory that a file:// URL names; None for anything else."""
    path = url.removeprefix("file://")
    return path if path != url and is_recorded_run(Path(path)) else None


def open_ranks(path: str) -> list[TraceColumns]:
    """Input: open the trace of a file, a URL or an address in an archive; one per rank where it holds several.

    Raises:
        DataError: it cannot be used.
        UnreachableError: its store does not answer.
    """
    return open_stamped(path)[0]


def open_stamped(path: str) -> tuple[list[TraceColumns], TraceStamp | None]:
    """`open_ranks`, and the stamp of what was read; None where it has none, or changed meanwhile."""
    source, member = split_address(path)
    is_local = "://" not in source
    before = None if is_local else stamp_of(path)
    with _opened(source) as stream:
        if member is not None:
            before = stamp_of_open(stream) if is_local else before
            with opened_member(stream, path) as content:
                traces = read_ranks_stream(content, path=path, file_bytes=content.num_bytes)
        elif is_local:
            traces, before = _read_hashed(stream, path)
        else:
            traces = read_ranks_stream(stream, path=path, file_bytes=getattr(stream, "size", None) or 0)
    after = None if before is None else stamp_of(path)
    return traces, before if before is not None and after is not None and before.is_of_state(after) else None


def _read_hashed(stream: BinaryIO, path: str) -> tuple[list[TraceColumns], TraceStamp | None]:
    before = stamp_of_open(stream)
    if before is None:  # a pipe
        return read_ranks_stream(stream, path=path, file_bytes=0), None
    hashing = HashingStream(stream)
    traces = read_ranks_stream(hashing, path=path, file_bytes=before.num_bytes)
    return traces, before.with_digest(hashing.finish())


class NoCaptureError(DataError):
    """A run directory has no captured traces.

    Attributes:
        url: of the run, whose records have been fetched to `run`; None for a run on this machine.
    """

    def __init__(self, run: Path, url: str | None = None) -> None:
        self.run = run
        self.url = url
        super().__init__(
            "has no captured traces yet",
            where=url or str(run),
            what_next=f"profile some steps; they appear in {url or run}/{TRACES_FOLDER}/step<k>/",
        )


class ReducedTraceError(DataError):
    """A trace was removed because its view stands for it, and is needed itself."""

    def __init__(self, path: str) -> None:
        what = "was reduced to its view, and this needs the trace"
        super().__init__(what, where=path, what_next="give a rank whose trace was kept")


@contextmanager
def _opened(source: str) -> Iterator[BinaryIO]:
    """A local file or a URL, opened for reading.

    Raises:
        DataError, UnreachableError: it cannot be.
    """
    if "://" not in source:
        try:
            with open(source, "rb") as stream:
                yield stream
        except FileNotFoundError as error:
            if RemovedLookup().find(source) is None:
                raise from_os_error(error, "cannot be read", where=source) from error
            raise ReducedTraceError(source) from error
        except OSError as error:
            raise from_os_error(error, "cannot be read", where=source) from error
        return
    import fsspec

    try:
        with fsspec.open(source, "rb") as stream:
            yield stream
    except store_errors() as error:
        raise store_error(source, error) from error


def _identity(address: str) -> str:
    """What is the same for all ways to name a file."""
    path, member = split_address(address)
    return os.path.realpath(path) + ("" if member is None else f"{SEPARATOR}{member}")


def _on_disk(text: str, notices: list[Notice]) -> list[str]:
    path = Path(text)
    try:
        if split_address(text)[1] is not None:
            return [text]
        if path.is_file():
            return _in_archive(text, notices) if is_archive_file(text) else [text]
        if RemovedLookup().find(text) is not None:
            return [text]
        check_readable(text)
        if not path.is_dir():
            raise DataError("is neither a file nor a folder", where=text, what_next="give trace files")
        return _in_run(path, notices) if is_recorded_run(path) else _in_folder(path, notices)
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=text) from error


def _in_run(run: Path, notices: list[Notice]) -> list[str]:
    """Traces of all captures of a run; of a folder `traces` that another tool wrote, as in any folder.

    Raises:
        NoCaptureError: there is none.
        DataError: the same in another tool's folder, or of a run whose record of removed traces cannot be used.
    """
    refused: list[Notice] = []
    captures = _captures_of_run(run, refused)
    notices += refused
    if captures:
        _note_unfinished(run / TRACES_FOLDER / captures[-1].name, notices)
        return [file for capture in captures for file in capture.files]
    if not (run / RUN_FILE).is_file():
        return _in_folder(run / TRACES_FOLDER, notices)
    if refused:
        raise DataError(refused[0].message)
    raise NoCaptureError(run)


def _captures_of_run(run: Path, notices: list[Notice] | None = None) -> list[Capture]:
    """The captures of a run directory with traces, the earliest first; empty for anything else.

    Traces that were removed because their views stand for them are among the files, by their former paths.
    """
    names = {folder.name for folder in _capture_folders(run / TRACES_FOLDER)} | set(captures_with_records(run))
    captures = []
    for name in sorted(filter(_CAPTURE.search, names), key=_attempt_and_first_step):
        folder = run / TRACES_FOLDER / name
        captures.append(Capture(name, _with_removed(folder, _traces_in(folder), [] if notices is None else notices)))
    return [capture for capture in captures if capture.files]


def _of_remote_run(run: RemoteRun, capture: Choice, notices: list[Notice]) -> TraceFiles:
    """The files of a run below a URL; raises as `find_trace_files`."""
    names = {*run.traces, *captures_with_records(run.folder)}
    captures = []
    for name in sorted(filter(_CAPTURE.search, names), key=_attempt_and_first_step):
        there = {url.rpartition("/")[2]: url for url in run.traces.get(name, ()) if _names_a_trace(url)}
        removed = _with_removed(run.folder / TRACES_FOLDER / name, [], notices)
        files = there | {Path(path).name: path for path in removed if Path(path).name not in there}
        captures += [Capture(name, sorted(files.values(), key=natural_order))] if files else []
    if not captures:
        raise NoCaptureError(run.folder, run.url)
    chosen = choose(captures, capture, notices)
    return TraceFiles(chosen, run.folder, notices, len(captures), run.url, captures)


def light_captures(run: Path, rank: int) -> list[tuple[tuple[int, int], Path]]:
    """Attempt and first step, and the file, of each light capture of a rank; the earliest first."""
    name = trace_path(0, rank).name
    folders = _capture_folders(run / LIGHT_FOLDER)
    return [(_attempt_and_first_step(folder.name), folder / name) for folder in folders if (folder / name).is_file()]


def _capture_folders(kind: Path) -> list[Path]:
    """Folders of a run's captures of one kind, the earliest first."""
    folders = [folder for folder in kind.glob("step*") if _CAPTURE.search(folder.name)]
    return sorted(folders, key=lambda folder: _attempt_and_first_step(folder.name))


def _attempt_and_first_step(capture: str) -> tuple[int, int]:
    match = _CAPTURE.search(capture)
    return (int(match[2] or 1), int(match[1])) if match else (0, 0)


def _in_folder(folder: Path, notices: list[Notice]) -> list[str]:
    files = _with_removed(folder, _traces_in(folder), notices)
    _note_unfinished(folder, notices)
    if files:
        return files
    refuse_many_runs([str(folder)])
    folders = [inner for inner in folder.iterdir() if inner.is_dir() and not inner.name.startswith(".")]
    names = [f"{inner.name}/{Path(file).name}" for inner in folders for file in _traces_in(inner)]
    archives = sorted(file.name for file in folder.iterdir() if ARCHIVE_NAME.search(file.name))
    if archives and not names:
        what = f"holds no trace ({_NAMES}), but {listed(archives, _MAX_SHOWN)}"
        raise DataError(what, where=str(folder), what_next=f"give the archive: {folder / archives[0]}")
    return [str(folder / name) for name in _job_files(names, str(folder), notices)]


def _with_removed(folder: Path, files: list[str], notices: list[Notice]) -> list[str]:
    """The traces of a folder, those among them that were removed because their views stand for them."""
    is_capture = folder.parent.name == TRACES_FOLDER and _CAPTURE.search(folder.name)
    try:
        removed = removed_files(folder.parent.parent, folder.name) if is_capture else []
    except UnusableViewError as error:
        notices.append(Notice("view_not_used", f"{error}; the traces that it names are missing"))
        return files
    return sorted([*files, *removed], key=natural_order)


def _in_archive(path: str, notices: list[Notice]) -> list[str]:
    with _opened(path) as stream:
        names = file_names(stream, path, notices)
    if any(_STEP_RECORDS.search(name) for name in names):
        unread = f"{path}: the records of all steps in it are not read: unpack it, and give the run directory"
        notices.append(Notice("steps_not_read", unread))
    traces = [name for name in names if _names_a_trace(name)]
    if not traces:
        raise DataError(_without_traces(names), where=path, what_next="give an archive of the JSON of torch.profiler")
    return [f"{path}{SEPARATOR}{name}" for name in _job_files(traces, path, [])]


def _without_traces(names: Sequence[str]) -> str:
    """Predicate for an archive without traces."""
    if any(name.rpartition("/")[2] == "data.pkl" for name in names):
        return "is a file of torch.save, not a profiler trace"
    return f"is an archive without traces ({_NAMES}): {listed(names, _MAX_SHOWN) if names else 'it is empty'}"


def _job_files(names: Sequence[str], where: str, notices: list[Notice]) -> list[str]:
    """The files of one job among the traces in a place: those directly in it, in its only folder, or in folders that
    count its steps, ranks or machines.

    Raises:
        DataError: there is none, or they are of several jobs.
    """
    by_folder: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_folder[name.rpartition("/")[0]].append(name)
    if "" in by_folder:
        return by_folder[""]
    folders = sorted(by_folder, key=natural_order)
    folders = [folder for folder in folders if TRACES_FOLDER in folder.split("/")] or folders  # of a run directory
    if len(folders) == 1:
        notices.append(Notice("only_folder", f"{where}: reading the only folder of traces in it, {folders[0]}"))
    elif len(set(map(folder_of_job, folders))) > 1:
        what = f"holds folders of traces ({listed(folders, _MAX_SHOWN)}), not traces"
        raise DataError(what, where=where, what_next="give one of them: a folder is one job")
    if not folders:
        raise DataError(f"holds no trace ({_NAMES})", where=where, what_next="check the path")
    return [name for folder in folders for name in by_folder[folder]]


def _note_unfinished(folder: Path, notices: list[Notice]) -> None:
    """The profiler writes to name.tmp and renames it when the trace is whole."""
    if not folder.is_dir():
        return
    unfinished = sorted(p.name for p in folder.iterdir() if p.suffix.lower() == ".tmp" and has_rank_name(p.stem))
    if unfinished:
        shown = ", ".join(unfinished[:_MAX_SHOWN]) + (", ..." if len(unfinished) > _MAX_SHOWN else "")
        notices.append(Notice("unfinished_file", f"{folder}: still being written or broken off, left out: {shown}"))


def _traces_in(folder: Path) -> list[str]:
    inside = folder.iterdir() if folder.is_dir() else ()
    files = [str(path) for path in inside if path.is_file() and _names_a_trace(path.name)]
    of_torch = [file for file in files if not file.lower().endswith(_EXPORT)]
    return sorted(of_torch or files, key=natural_order)


def _names_a_trace(name: str) -> bool:
    """Hidden files are some writer's unfinished ones, or a Mac's notes in an archive."""
    file = name.rpartition("/")[2]
    return has_rank_name(file) and file not in _NOT_TRACES and not file.startswith(".")


def _in_store(url: str, notices: list[Notice]) -> list[str]:
    """A URL itself, the traces in it if it is an archive, or the traces directly under it."""
    import fsspec

    try:
        store, path = fsspec.core.url_to_fs(url)
        if split_address(url)[1] is not None:
            return [url]
        if not store.isdir(path):
            return _in_archive(url, notices) if ARCHIVE_NAME.search(url) else [url]
        inside = [store.unstrip_protocol(entry) for entry in store.ls(path, detail=False)]
    except store_errors() as error:
        raise store_error(url, error) from error
    files = [entry for entry in inside if _names_a_trace(entry)]
    if not files:
        refuse_many_remote_runs(url)
        raise DataError(f"holds no trace ({_NAMES})", where=url, what_next="check the URL")
    return files
