"""Console and tables of reports on stdout: colours on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # verbs load rich only for what they print
    from rich.console import Console
    from rich.table import Table

PLAIN_WIDTH = 240
"""Columns when stdout is not a terminal."""


def report_console() -> Console:
    """A console on stdout; plain text when it is not a terminal.

    A broken pipe is left to the command, which knows the exit code.
    """
    from rich.console import Console

    class ReportConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return ReportConsole(
        width=None if sys.stdout.isatty() else PLAIN_WIDTH,
        no_color=True if "NO_COLOR" in os.environ else None,
        highlight=False,
        markup=False,  # names from traces may hold square brackets
        emoji=False,
    )


def report_table(*columns: str, title: str | None = None) -> Table:
    """A table without outer lines; columns whose title begins with '>' are aligned right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    return table
