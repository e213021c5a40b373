"""Paths given on the command line: whether they can be read, and which part of a run they mean."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from stepscope.core.errors import DataError, from_os_error
from stepscope.core.text.numbers import counted, listed
from stepscope.store.runs import is_run

MAX_LISTED_RUNS = 50


def check_readable(text: str) -> None:
    """Check that a local file can be opened, or a folder listed and entered.

    Raises:
        DataError: it does not exist or may not be read.
    """
    try:
        if os.path.isdir(text):
            with os.scandir(text):
                os.stat(os.path.join(text, "."))  # a folder may be listed by one who may not enter it
        elif os.path.isfile(text):
            Path(text).open("rb").close()
        else:
            os.stat(text)  # a pipe may be read once only
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: no path has a NUL
        raise DataError("does not exist", where=text or "an empty path", what_next="check the path") from None
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=text) from error


class OnlyRunError(DataError):
    """A folder that holds one run was given in place of the run.

    Attributes:
        folder: as it was given.
        run: path of the run in it.
    """

    def __init__(self, folder: str, run: str) -> None:
        self.folder = folder
        self.run = run
        super().__init__("holds one run", where=folder, what_next=f"give it: {run}")


def refuse_many_runs(paths: Sequence[str]) -> None:
    """Refuse a folder of runs; to be called where nothing else was found.

    Raises:
        OnlyRunError: a path is a folder with one run in it.
        DataError: a path is a folder with several runs, which are named.
    """
    for text in paths:
        runs = _runs_in(text)
        if len(runs) == 1:
            raise OnlyRunError(text, os.path.join(text, runs[0]))
        if runs:
            what = f"holds {counted(len(runs), 'run')}: {listed(runs, MAX_LISTED_RUNS)}"
            raise DataError(what, where=text, what_next=f"give one of them, such as {os.path.join(text, runs[0])}")


def _runs_in(text: str) -> list[str]:
    """Names of the runs in a local folder that is no run itself; empty for anything else."""
    folder = Path(text)
    if "://" in text or not folder.is_dir() or is_run(folder):
        return []
    return sorted(child.name for child in folder.iterdir() if not child.name.startswith(".") and is_run(child))


def part_of_run(text: str, folder: str) -> Path:
    """The folder of this name if the path is a run directory that has it, else the path itself.

    Raises:
        OnlyRunError: the path is a folder with one run in it, and no file.
        DataError: the path does not exist or cannot be read.
    """
    check_readable(text)
    place = Path(text)
    inside = place / folder
    if inside.is_dir():
        return inside
    runs = _runs_in(text)
    if len(runs) == 1 and not any(child.is_file() for child in place.iterdir()):
        raise OnlyRunError(text, os.path.join(text, runs[0]))
    return place
