"""Run directory of a workload, claimed before training so that no two runs share one."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile

from stepscope.core.errors import DataError, UsageError

_HOLDS_SOMETHING = {errno.ENOTEMPTY, errno.EEXIST}


@contextmanager
def taken_folder(wanted: Path, first_folder: str, *, may_be_numbered: bool) -> Iterator[Path]:
    """A run directory that is this run's alone; after a failure that left nothing in it, it is gone again.

    Args:
        wanted: absent, or empty.
        first_folder: what it has in it from the start on, which is what tells others that it is taken.
        may_be_numbered: where it is taken, the first free one of <name>-2, <name>-3, ... will do.

    Raises:
        UsageError: it holds something: another run has it.
        DataError: it cannot be made or written.
    """
    was_there = wanted.exists()
    run_directory = _take(wanted, first_folder, may_be_numbered=may_be_numbered)
    try:
        yield run_directory
    except BaseException:
        with suppress(OSError):  # it holds something
            (run_directory / first_folder).rmdir()
            if run_directory != wanted or not was_there:
                run_directory.rmdir()
        raise


def share_folder(run_directory: Path) -> None:
    """Make the run directory that all ranks of a launched job share, also of its second start.

    Raises:
        DataError: it cannot be made or written.
    """
    with writing(run_directory, "--out"):
        run_directory.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=run_directory) as file:
            file.write(b"1")


def _take(wanted: Path, first_folder: str, *, may_be_numbered: bool) -> Path:
    with writing(wanted, "--out"):
        wanted.parent.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            run_directory = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
            if _appears(run_directory, first_folder):
                return run_directory
            if not may_be_numbered:
                raise UsageError("the run directory is not empty", where=str(wanted), what_next="choose another name")
    raise AssertionError("count has no end")


def _appears(run_directory: Path, first_folder: str) -> bool:
    """Whether it is ours now: a folder that holds something is moved over an empty one at once, and over no other."""
    beside = run_directory.resolve().parent
    with tempfile.TemporaryDirectory(prefix=f".{run_directory.name[:100]}-", dir=beside) as made:
        whole = Path(made) / "run"
        (whole / first_folder).mkdir(parents=True)
        try:
            whole.rename(run_directory.resolve())  # a link may lead to it
        except OSError as error:
            if error.errno not in _HOLDS_SOMETHING:
                raise
            return False
        return True


@contextmanager
def writing(folder: Path, option: str) -> Iterator[None]:
    """What the system says against writing, as an error of the folder that an option names.

    Raises:
        DataError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise DataError(
            f"cannot be written ({why})", where=str(folder), what_next=f"choose another {option}"
        ) from error
