"""Where does a bench's run write its checkpoints? In a folder of the current directory, deleted when the run has ended.

Not in the system's folder for temporary files: that is memory on many machines, where writing costs nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepscope.core.errors import from_os_error
from stepscope.reference_workloads.placement import is_launched_rank
from stepscope.reference_workloads.plan import ParallelPlan
from stepscope.training.run.identity import identify
from stepscope.training.run.run_naming import run_name

_PREFIX = ".stepscope-bench-"


@contextmanager
def checkpoint_folder(plan: ParallelPlan, *, is_needed: bool) -> Iterator[Path]:
    """The folder; none is made where no checkpoint is written.

    Raises:
        DataError: it cannot be made.
    """
    if not is_needed:
        yield Path()
    elif is_launched_rank(plan):
        with _of_all_ranks() as folder:
            yield folder
    else:
        with _made() as folder:
            yield Path(folder)


def _made() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix=_PREFIX, dir=Path.cwd(), ignore_cleanup_errors=True)
    except OSError as error:
        raise from_os_error(error, "no checkpoint can be written", where=os.getcwd()) from error


@contextmanager
def _of_all_ranks() -> Iterator[Path]:
    """A launcher's ranks write into one folder, which each node's first one deletes: all end a checkpoint at once."""
    identity = identify()
    folder = Path(f"{_PREFIX}{run_name(None, identity)}")
    try:
        yield folder
    finally:
        if identity.local_rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
