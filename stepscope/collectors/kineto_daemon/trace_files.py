"""Files of a trace on its way into a run: the staging folder that a process writes to, and the compressed file.

Each capture of a process has a staging folder of its own, below /tmp or the process's KINETO_ONDEMAND_TRACE_DIR
(libkineto since June 2026 refuses other places), in the process's own file system: a container has another /tmp. Paths
are opened one name at a time and links refused, as the process's user could have put some there; only a regular file of
that user is read. A trace is read once, verified and compressed on the way, and kept whole or not at all. Folders of
the agent belong to the agent: users own only their files in them, so that they cannot put a link where a later trace
goes.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import zlib
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from stepscope.collectors.kineto_daemon import processes
from stepscope.collectors.kineto_daemon.capture import Offer, ProcessView, Take
from stepscope.collectors.kineto_daemon.protocol import KinetoTraceReader, KinetoTraceSummary, TraceRequest
from stepscope.core.documents.run_directory import TRACES_FOLDER, trace_path
from stepscope.core.protocol.captures import CaptureRequest

DEFAULT_FOLDER = "/tmp"
_STAGING_PREFIX = "stepscope-kineto-"
_LEFT_BEHIND_SECONDS = 3600.0
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class TraceStaging:
    """Staging folder of one libkineto capture of one process."""

    def __init__(self, process: processes.KinetoProcess, base: str | None) -> None:
        """Create the folder.

        Args:
            base: its KINETO_ONDEMAND_TRACE_DIR, None without.

        Raises:
            OSError: it cannot be created.
            ValueError: the base is not an absolute path without `..`.
        """
        if base is not None and (not base.startswith("/") or ".." in base.split("/")):
            raise ValueError(f"its KINETO_ONDEMAND_TRACE_DIR is not a plain absolute path: {base}")
        self._peer = process.peer
        self._is_local = base is None
        self._root = _process_root(process)
        name = _STAGING_PREFIX + os.urandom(8).hex()
        self.path = PurePosixPath(base or DEFAULT_FOLDER) / name
        with _opened(self._root, self.path.parent) as parent:
            os.mkdir(name, 0o700, dir_fd=parent)
            self._give_to_process(parent)

    def has(self, path: PurePosixPath) -> bool:
        """Whether the trace exists under the name that it gets once it is whole."""
        try:
            with _opened(self._root, self.path) as folder:
                return stat.S_ISREG(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode)
        except OSError:
            return False

    def fulfilled_path(self, path: PurePosixPath) -> str | None:
        """Path of the trace in our file system; None where the process chose the folder, so that a look could hang."""
        return os.path.join(self._root, *path.relative_to("/").parts) if self._is_local else None

    def open(self, path: PurePosixPath) -> int:
        """Open the trace for reading; the caller closes the descriptor.

        Raises:
            OSError: it does not exist, or is not a regular file of the process's user.
        """
        with _opened(self._root, self.path) as folder:
            file = os.open(path.name, _FILE_FLAGS, dir_fd=folder)
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != self._peer.uid or status.st_nlink != 1:
            os.close(file)
            raise PermissionError(f"{path} is not a regular file of user {self._peer.uid}")
        return file

    def remove(self) -> None:
        """Remove the folder and its files. A process that writes there afterwards logs an error and goes on."""
        with suppress(OSError), _opened(self._root, self.path.parent) as parent:
            _remove(parent, self.path.name)

    def _give_to_process(self, parent: int) -> None:
        if os.geteuid() == self._peer.uid:
            return
        with _opened_in(parent, self.path.name) as folder:
            try:
                os.fchown(folder, self._peer.uid, self._peer.gid)
            except PermissionError:  # without CAP_CHOWN: its name is secret, and no other user can list it
                os.fchmod(folder, 0o1733)


def remove_left_behind_staging(now_ns: int) -> None:
    """Kineto daemon: remove libkineto's staging folders of killed agents.

    Those of the last hour may belong to a running one.
    """
    with suppress(OSError), _opened("/", PurePosixPath(DEFAULT_FOLDER)) as parent:
        for name in os.listdir(parent):
            if name.startswith(_STAGING_PREFIX):
                with suppress(OSError):
                    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
                    if now_ns - status.st_mtime_ns > _LEFT_BEHIND_SECONDS * 1e9:
                        _remove(parent, name)


def _remove(parent: int, name: str) -> None:
    with suppress(OSError), _opened_in(parent, name) as folder:
        for inner in os.listdir(folder):
            with suppress(OSError):
                os.unlink(inner, dir_fd=folder)
    os.rmdir(name, dir_fd=parent)


def _process_root(process: processes.KinetoProcess) -> str:
    """Path of the process's root directory in our file system.

    Raises:
        OSError: it cannot be reached, so that its trace would be lost.
    """
    pid = process.peer.pid
    if pid == 0:
        raise ProcessLookupError("the agent does not see its process: run it in the host's PID namespace (hostPID)")
    try:
        is_ours = os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except PermissionError:
        if process.pid != pid:
            raise PermissionError("its trace is in its container, for which the agent needs CAP_SYS_PTRACE") from None
        is_ours = True  # another user's process outside containers
    return "/" if is_ours else f"/proc/{pid}/root"


@contextmanager
def _opened(root: str, path: PurePosixPath) -> Iterator[int]:
    """Descriptor of the folder `path` below `root`, opened without following a link below it."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in path.relative_to("/").parts:
            inner = os.open(name, _DIRECTORY_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _opened_in(parent: int, name: str) -> Iterator[int]:
    folder = os.open(name, _DIRECTORY_FLAGS, dir_fd=parent)
    try:
        yield folder
    finally:
        os.close(folder)


_BLOCK_BYTES = 1 << 18
_GZIP = 31
_LEVEL = 1
_FOLDER_MODE, _FILE_MODE = 0o755, 0o640
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_DISK_FULL_HINT = "free some space there, or set kineto.directory"
_CAPTURE_FOLDER = re.compile(r"step(\d{1,9})")


class TraceTooLargeError(Exception):
    """The compressed trace of libkineto is larger than allowed."""


@dataclass(frozen=True, slots=True)
class CompressedTrace:
    """A compressed trace of libkineto that is not named after its rank yet."""

    path: Path
    num_bytes: int
    summary: KinetoTraceSummary


def make_capture_folder(run: Path) -> int:
    """Kineto daemon: create the folder of libkineto's next capture of a run.

    k of `step<k>` counts captures, as the step is unknown.

    Raises:
        OSError: it cannot be created.
    """
    traces = run / TRACES_FOLDER
    with _errors_with_path(traces):
        traces.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        while True:
            matches = (_CAPTURE_FOLDER.match(folder.name) for folder in traces.iterdir())
            number = max((int(match[1]) + 1 for match in matches if match), default=0)
            try:
                (run / trace_path(number, 0)).parent.mkdir(mode=_FOLDER_MODE)
            except FileExistsError:  # another capture of the same run
                continue
            return number


def compress_kineto_trace(
    source: int, partial: Path, owner: processes.KinetoPeer, *, max_bytes: int | None
) -> CompressedTrace:
    """Kineto daemon: read a trace of libkineto to its end and write it compressed.

    Args:
        owner: the process that wrote it; its user gets the file.
        max_bytes: of the compressed trace; None without a limit.

    Raises:
        TooLargeError: it would exceed the limit.
        OSError: it cannot be read or written.
    """
    reader, packer, size = KinetoTraceReader(), zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP), 0
    try:
        with _errors_with_path(partial), partial.open("xb") as file:
            os.fchmod(file.fileno(), _FILE_MODE)
            with suppress(PermissionError):  # without CAP_CHOWN it stays the agent's
                os.fchown(file.fileno(), owner.uid, owner.gid)
            is_more = True
            while is_more:
                with _errors_with_path("the process's trace"):
                    block = os.read(source, _BLOCK_BYTES)
                is_more = bool(block)
                reader.feed(block)
                size += file.write(packer.compress(block) if is_more else packer.flush())
                if max_bytes is not None and size > max_bytes:
                    raise TraceTooLargeError(f"the compressed trace is larger than {max_bytes} bytes")
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return CompressedTrace(partial, size, reader.summary())


@contextmanager
def _errors_with_path(where: Path | str) -> Iterator[None]:
    """Add the path to errors of `write` and `fsync`, and what helps on a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(where)
        if error.errno in _DISK_FULL:
            error.strerror = f"{error.strerror}; {_DISK_FULL_HINT}"
        raise


class CaptureFiles:
    """The files of one libkineto capture. Used by one thread, beside the readers that it gives work to.

    Args:
        request: sets the number of steps, and the limit of each compressed trace.
        pending: takes the requests for the processes.
    """

    def __init__(
        self,
        request: CaptureRequest,
        targets: Mapping[str, processes.KinetoTarget],
        *,
        pending: processes.PendingRequests,
        readers: ThreadPoolExecutor,
    ) -> None:
        self.targets = targets
        self._request = request
        self._pending = pending
        self._readers = readers
        self._staging: dict[str, TraceStaging] = {}
        self._configs: dict[str, TraceRequest] = {}
        self._reading: dict[str, Future[CompressedTrace]] = {}
        self._partials: dict[str, CompressedTrace] = {}
        self._folders: dict[Path, int] = {}
        self._folders_lock = threading.Lock()

    @property
    def is_reading(self) -> bool:
        return bool(self._reading)

    def view(self, key: str, process: processes.KinetoProcess | None) -> ProcessView:
        """Present state of a process; `process` was looked up before its files are."""
        config = self._configs.get(key)
        written = config is not None and self._staging[key].has(config.written_path(self.targets[key].process.pid))
        return ProcessView(process, self._pending.delivered(key), written)

    def offer(self, offer: Offer) -> None:
        """Set the request for the process's next poll.

        Raises:
            OSError: there is no folder that the process could write to.
            ValueError: libkineto's request text cannot hold its path.
        """
        target = self.targets[offer.key]
        if offer.key not in self._staging:
            self._staging[offer.key] = TraceStaging(target.process, target.place.trace_folder)
        path = self._staging[offer.key].path / f"attempt{offer.attempt}.json"
        config = TraceRequest(path, self._request.steps, offer.start_multiple)
        self._configs[offer.key] = config
        fulfilled_by = self._staging[offer.key].fulfilled_path(config.written_path(target.process.pid))
        self._pending.put(offer.key, config.text(), unless=fulfilled_by)

    def start_reading(self, take: Take) -> None:
        """Verify and compress a trace on a reader thread."""
        self._reading[take.key] = self._readers.submit(self._read, take)

    def finished(self) -> list[tuple[str, CompressedTrace | str]]:
        """Keys whose traces were read since the last call, each with the compressed trace or why there is none."""
        results: list[tuple[str, CompressedTrace | str]] = []
        for key, reading in list(self._reading.items()):
            if not reading.done():
                continue
            del self._reading[key]
            self._drop(key)  # of an earlier attempt
            try:
                self._partials[key] = reading.result()
            except Exception as error:  # a trace may hold anything: an unforeseen error fails this capture alone
                results.append((key, error_line(error)))
            else:
                results.append((key, self._partials[key]))
        return results

    def keep(self, keys: Collection[str]) -> dict[str, tuple[Path, int] | str]:
        """Give traces their names in the run; path and bytes of each, or why it could not be kept."""
        in_trace = {key: self._partials[key].summary.rank for key in keys}
        ranks = processes.ranks_to_keep([self.targets[key] for key in keys], in_trace)
        kept: dict[str, tuple[Path, int] | str] = {}
        for key, rank in ranks.items():
            run, partial = self.targets[key].run_directory, self._partials[key]
            try:
                capture = self._folders[run]
                path = run / trace_path(capture, rank)
                with _errors_with_path(path):
                    partial.path.replace(path)
                kept[key] = (path, partial.num_bytes)
                del self._partials[key]
            except OSError as error:
                kept[key] = error_line(error)
        return kept

    def close(self) -> None:
        """Remove the staging folders and traces that were not kept."""
        for key in list(self._partials):
            self._drop(key)
        for staging in self._staging.values():
            staging.remove()
        for run, number in self._folders.items():
            with suppress(OSError):  # it holds traces
                (run / trace_path(number, 0)).parent.rmdir()

    def _read(self, take: Take) -> CompressedTrace:
        target = self.targets[take.key]
        path = self._configs[take.key].written_path(target.process.pid)
        source = self._staging[take.key].open(path)
        try:
            folder = self._capture_folder(target.run_directory)
            partial = folder / f".{take.key}.{take.attempt}.partial"
            return compress_kineto_trace(source, partial, target.process.peer, max_bytes=self._request.max_bytes)
        finally:
            os.close(source)

    def _capture_folder(self, run: Path) -> Path:
        with self._folders_lock:
            if run not in self._folders:
                self._folders[run] = make_capture_folder(run)
            return (run / trace_path(self._folders[run], 0)).parent

    def _drop(self, key: str) -> None:
        partial = self._partials.pop(key, None)
        if partial is not None:
            partial.path.unlink(missing_ok=True)


def error_line(error: Exception) -> str:
    """Kineto daemon: the error of a libkineto capture in one line, with the file that it is about."""
    text = getattr(error, "strerror", None) or str(error)
    where = getattr(error, "filename", None)
    return f"{where}: {text}" if where else text
