"""Choice of the engine that reads files, and the process pool on this machine.

The pool has as many processes as there are files and cores and as fit into memory. A cluster is joined, never started.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import ModuleType

from stepscope.core.errors import UsageError
from stepscope.core.process import about_to_fork
from stepscope.workflow.fan_out.tasks import FileMap, FileTask, FileViews
from stepscope.workflow.inputs.archives import absolute
from stepscope.workflow.views.kept_views import reusing_views


class Engine(StrEnum):
    """Engine of a fan-out: processes here, or the workers of a Dask or Ray cluster."""

    LOCAL = "local"
    DASK = "dask"
    RAY = "ray"


@dataclass(frozen=True, slots=True)
class FanOut:
    """Engine of a fan-out and its options.

    Attributes:
        num_workers: processes here; None to choose by the files.
        address: of the cluster's scheduler or head; None to find it as Dask and Ray do.

    Raises:
        UsageError: an option of one engine was given to another.
    """

    engine: Engine = Engine.LOCAL
    num_workers: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if self.engine is Engine.LOCAL and self.address is not None:
            raise UsageError("--scheduler is a cluster's address", what_next="add --engine dask or --engine ray")
        if self.engine is not Engine.LOCAL and self.num_workers is not None:
            what_next = "leave it out: a cluster has the workers it has"
            raise UsageError("--workers counts processes on this machine", what_next=what_next)


HERE = FanOut()
"""Processes on this machine, chosen by the files."""


def task_paths(paths: Sequence[str], fan_out: FanOut) -> list[str]:
    """Paths of trace files as a fan-out's workers find them: absolute for a cluster."""
    if fan_out.engine is Engine.LOCAL:
        return list(paths)
    return [path if "://" in path else absolute(path) for path in paths]


def map_of_engine(paths: Sequence[str], fan_out: FanOut) -> FileMap:
    """The map over trace files of a fan-out's engine, which reads those alone whose views are not kept.

    Raises:
        UsageError: fewer than one process.
    """
    return reusing_views(_map_of_engine(paths, fan_out))


def _map_of_engine(paths: Sequence[str], fan_out: FanOut) -> FileMap:
    if fan_out.engine is Engine.DASK:
        from stepscope.workflow.fan_out.dask_cluster import in_dask

        return partial(in_dask, address=fan_out.address)
    if fan_out.engine is Engine.RAY:
        from stepscope.workflow.fan_out.ray_cluster import in_ray

        return partial(in_ray, address=fan_out.address)
    return file_map(paths, fan_out.num_workers)


MIN_BYTES_PER_PROCESS = 64_000_000
"""Less text is read sooner than a process has started."""

_TEXT_PER_GZIP_BYTE = 15
"""Kineto's traces deflate to a tenth to a sixteenth."""
_MEMORY_SHARE_OF_TEXT = 0.4
_MEMORY_BYTES = 150_000_000
"""Memory of a process, beside a share of the text it reads (docs/explanation/speed.md)."""
_MEMORY_INFO = Path("/proc/meminfo")


def file_map(paths: Sequence[str], num_workers: int | None) -> FileMap:
    """The fan-out's map over trace files here: one after another, or in a pool of processes.

    Args:
        num_workers: processes; None to choose by the files.

    Raises:
        UsageError: fewer than one process.
    """
    if num_workers is not None and num_workers < 1:
        raise UsageError("--workers must be at least 1", what_next="leave it out to use what the machine has")
    wanted = worker_count(paths) if num_workers is None else min(num_workers, len(paths))
    if wanted <= 1:
        return in_this_process
    return lambda work, tasks: in_processes(work, tasks, num_workers=wanted)


def worker_count(paths: Sequence[str]) -> int:
    """Number of processes that read these trace files fastest on this machine."""
    sizes = sorted((_text_bytes(path) for path in paths), reverse=True)
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(len(paths), num_cores, max(1, int(sum(sizes) / MIN_BYTES_PER_PROCESS)))
    free = free_memory_bytes()
    while free is not None and count > 1 and sum(map(_memory_bytes, sizes[:count])) > free:
        count -= 1
    return count


def in_this_process(work: Callable[[FileTask], FileViews], tasks: Sequence[FileTask]) -> Iterable[FileViews]:
    """View the trace files one after another, without a fan-out."""
    return map(work, tasks)


def in_processes(
    work: Callable[[FileTask], FileViews], tasks: Sequence[FileTask], *, num_workers: int
) -> Iterator[FileViews]:
    """View trace files in a process pool; an interrupt, or a caller that stops, ends the processes at once.

    A process that is killed (out of memory) takes the pool down: the remaining files are read here, one at a time.
    """
    import multiprocessing  # one file needs neither
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor

    before = multiprocessing.active_children()
    # forking takes over what is imported already, but not while other threads may hold locks
    method = "fork" if threading.active_count() == 1 and hasattr(os, "fork") else "spawn"
    pool = ProcessPoolExecutor(num_workers, multiprocessing.get_context(method), initializer=_die_on_interrupt)
    num_done = 0
    try:
        with about_to_fork(), _main_left_out():
            results = pool.map(work, tasks)
        for result in results:
            yield result
            num_done += 1
        pool.shutdown()
    except BrokenProcessPool:
        yield from map(work, tasks[num_done:])
    finally:
        for process in multiprocessing.active_children():
            if process not in before:
                process.terminate()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _main_left_out() -> Iterator[None]:
    """Let processes that start meanwhile not import the script: without a guard it would run again in each."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _die_on_interrupt() -> None:
    """Let workers end silently; the parent reports the interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def free_memory_bytes() -> int | None:
    """Memory of this machine that a fan-out's processes may take; None where unknown."""
    try:
        lines = _MEMORY_INFO.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _text_bytes(path: str) -> int:
    """Approximate size of a file's JSON text; a file elsewhere or in an archive counts as worth a process."""
    try:
        size = os.stat(path).st_size
    except OSError:
        return MIN_BYTES_PER_PROCESS
    return size * _TEXT_PER_GZIP_BYTE if path.endswith(".gz") else size


def _memory_bytes(text_bytes: int) -> float:
    return _MEMORY_BYTES + _MEMORY_SHARE_OF_TEXT * text_bytes


Progress = Callable[[int, int, str], None]
"""Called as (files done, files in all, the file being read)."""
