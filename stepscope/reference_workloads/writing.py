"""What is said where a folder cannot be written?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepscope.core.errors import DataError


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
