"""What do Dask's and Ray's workers run, and what is said when they cannot?"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable

from stepscope import __version__
from stepscope.core.counting import counted
from stepscope.core.errors import DataError, UnreachableError, UsageError
from stepscope.workflow.file_views import FileTask, FileViews

LOOK_EVERY_SECONDS = 2.0
"""How often a cluster that gives no results is asked whether it is still there."""
WORKERS_WITHIN_SECONDS = 120.0
"""A cluster that grows on demand has its first worker by then (a machine of a cloud starts in one to two minutes)."""

VERSION_OF = f"{__name__}:__version__"
"""For `pkgutil.resolve_name`, which every worker has: a function of ours could not even arrive at one without us. This
module brings all that reading needs."""


def on_worker(work: Callable[[FileTask], FileViews], task: FileTask) -> FileViews:
    """The work, on a machine that need not see the files of the one who asks."""
    if "://" not in task.path and not os.path.exists(task.path):
        where_next = "put the traces where all workers find them: a shared file system or an object store"
        what = f"does not exist on the worker {socket.gethostname()}"
        return FileViews(task, error=DataError(what, where=task.path, what_next=where_next))
    return work(task)


def check_versions(engine: str, found: Iterable[tuple[str, str | BaseException]]) -> None:
    """Views travel between equal versions only.

    Args:
        engine: for the message.
        found: a worker and its version, or why it could not tell.

    Raises:
        UsageError: one lacks stepscope or has another version.
    """
    for worker, version in found:
        if version != __version__:
            has = f"has stepscope {version}" if isinstance(version, str) else f"cannot import stepscope ({version})"
            raise UsageError(
                f"the {engine} worker {worker} {has}; this is stepscope {__version__}",
                what_next=f'install there: pip install "stepscope[analyze]=={__version__}"',
            )


class KilledError(DataError):
    """Reading the file ends its workers."""


def killed(task: FileTask, engine: str, why: object) -> FileViews:
    """A file whose workers died on it; as with local processes the others are analysed all the same."""
    what = f"the {engine} workers that read it died ({why})"
    return FileViews(task, error=KilledError(what, where=task.path, what_next="give the workers more memory"))


def lost(engine: str, address: str, num_missing: int) -> UnreachableError:
    """The cluster went away."""
    return UnreachableError(
        f"the {engine} cluster was lost with {counted(num_missing, 'file')} to go",
        where=address,
        what_next="see whether it is up, and run again",
    )


def no_workers(engine: str, address: str, num_missing: int) -> UnreachableError:
    """The cluster has nobody to do the work."""
    return UnreachableError(
        f"the {engine} cluster has no workers, with {counted(num_missing, 'file')} to go",
        where=address,
        what_next="start some, and run again",
    )
