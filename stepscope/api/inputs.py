"""Paths as the commands take them: a folder with one run is that run, and records of runs below URLs are fetched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike, fspath
from typing import TypeVar

from stepscope.core.errors import UsageError
from stepscope.workflow.inputs.paths import OnlyRunError

Path = str | PathLike[str]
Result = TypeVar("Result")


def path_names(paths: Path | Sequence[Path]) -> list[str]:
    """Paths as texts.

    Raises:
        UsageError: there is none, or one is not a path.
    """
    given = [paths] if isinstance(paths, (str, PathLike)) else paths
    try:
        names = [path if isinstance(path, str) else fspath(path) for path in given]
    except TypeError:
        names = [None]  # type: ignore[list-item]
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"{paths!r} is not a path", what_next="give a path, a URL, or a list of them")
    if not names:
        raise UsageError("no path", what_next="give a run directory, traces or an analysis.json")
    return names


def read_entering(paths: Sequence[str], read: Callable[[list[str]], Result]) -> Result:
    """What a workflow reads from paths; of a folder with one run in it, from that run."""
    names = list(paths)
    while True:
        try:
            return read(names)
        except OnlyRunError as error:
            names = [error.run if name == error.folder else name for name in names]


def read_records(paths: Sequence[Path], read: Callable[[list[str]], Result]) -> Result:
    """As `read_entering`, with the records of runs below URLs, which are fetched.

    Raises:
        DataError: a URL is not a run's.
        UnreachableError: its store does not answer.
    """
    from stepscope.workflow.inputs.remote_runs import local_run

    return read_entering([local_run(name) for name in path_names(paths)], read)
