"""Paths given on the command line: whether they can be read, and which part of a run they mean."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from stepscope.core.errors import DataError, from_os_error
from stepscope.core.text.numbers import counted
from stepscope.store.runs import is_run


def check_readable(text: str) -> None:
    """Look whether a local file can be opened, or a folder listed and entered.

    Raises:
        DataError: it is not there, or is closed to us.
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


def refuse_many_runs(paths: Sequence[str]) -> None:
    """To be called where nothing was found: most often the folder that all runs lie in was given.

    Raises:
        DataError: a path is such a folder. It tells how many runs, and names one.
    """
    for text in paths:
        folder = Path(text)
        if "://" in text or not folder.is_dir() or is_run(folder):
            continue
        runs = sorted(child.name for child in folder.iterdir() if not child.name.startswith(".") and is_run(child))
        if len(runs) == 1:
            raise DataError("holds a run", where=text, what_next=f"give it: {folder / runs[0]}")
        if runs:
            one = f"give one, such as {folder / runs[0]}"
            raise DataError(f"holds {counted(len(runs), 'run')}", where=text, what_next=one)


def part_of_run(text: str, folder: str) -> Path:
    """The folder of this name if the path is a run directory that has it, else the path itself.

    Raises:
        DataError: the path does not exist or cannot be read.
    """
    check_readable(text)
    inside = Path(text) / folder
    return inside if inside.is_dir() else Path(text)
