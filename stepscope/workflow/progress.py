"""Who is told how far a job over many files is?"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Called as (files done, files in all, the file being read)."""
