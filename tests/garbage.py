"""Observer of garbage collection: the process that collects, and when."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Dropped:
    """Garbage once dropped, since it holds itself; leaves a file named after the process that collects it."""

    def __init__(self, folder: Path) -> None:
        self.itself = self
        self.folder = folder

    def __del__(self) -> None:
        (self.folder / f"{os.getpid()}").touch()


def collectors_of(folder: Path) -> list[int]:
    """The processes that have collected what was dropped with this folder."""
    return [int(file.name) for file in folder.iterdir()]


@contextmanager
def collected_by_hand() -> Iterator[None]:
    """Nothing is collected inside but by `gc.collect`."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
