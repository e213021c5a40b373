"""Console for reports on stdout: colours on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys

from rich.console import Console

PLAIN_WIDTH = 240
"""Columns when stdout is no terminal."""


class _Console(Console):
    """Leaves a broken pipe to the command's frame, which knows the exit code."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def report_console() -> Console:
    """A console on stdout; plain text when it is no terminal."""
    return _Console(
        width=None if sys.stdout.isatty() else PLAIN_WIDTH,
        no_color=True if "NO_COLOR" in os.environ else None,
        highlight=False,
        markup=False,  # names from traces may hold square brackets
        emoji=False,
    )
