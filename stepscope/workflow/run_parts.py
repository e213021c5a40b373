"""Where do a run's files of one kind lie, given its directory, that folder, or a file?"""

from __future__ import annotations

from pathlib import Path

from stepscope.core.errors import DataError


def part_of_run(path: Path, folder: str) -> Path:
    """The folder of this name where the path is a run directory that has it; else the path itself.

    Raises:
        DataError: the path is not there.
    """
    if not path.exists():
        raise DataError("does not exist", where=str(path), what_next="check the path")
    inside = path / folder
    return inside if inside.is_dir() else path
