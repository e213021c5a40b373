"""How far is a job over many files? A bar on a terminal once it takes over a second, else nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath

SHOWN_AFTER_SECONDS = 1.0


@contextmanager
def file_progress(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A callback (done, total, path) that draws a bar on stderr."""
    if not sys.stderr.isatty():
        yield lambda _done, _total, _path: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    began = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task(what)
    started = False

    def tell(done: int, total: int, path: str) -> None:
        nonlocal started
        if not started and time.monotonic() - began >= SHOWN_AFTER_SECONDS:
            progress.start()
            started = True
        progress.update(task, completed=done, total=total, description=f"{what} {PurePath(path).name}")

    try:
        yield tell
    finally:
        if started:
            progress.stop()
