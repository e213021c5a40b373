"""Console, tables and progress bars: colours on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table


PLAIN_WIDTH = 240
"""Columns when stdout is not a terminal."""


def report_console() -> Console:
    """Console for reports in the terminal; plain text when stdout is not one.

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


def print_hanging(console: Console, line: str, *, style: str | None = None, indent: int | None = None) -> None:
    """Print a line of a report to the terminal, wrapped at words; its further lines are indented.

    Args:
        indent: of the further lines; by default where the text after a name begins ("  Fix       text"), or two more
            than the line's own.
    """
    from rich.text import Text

    if indent is None:
        named = _NAMED.match(line)
        indent = named.end() if named else len(line) - len(line.lstrip()) + 2
    wrapped = textwrap.wrap(
        line, max(console.width, 40), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    for part in wrapped:
        console.print(Text(part, style=style or ""), soft_wrap=True)


_NAMED = re.compile(r" *\w+(?: \w+)? {2,}(?=\S)")


def report_table(*columns: str, title: str | None = None) -> Table:
    """Table of a report in the terminal; columns whose title begins with '>' are aligned right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    return table


_COLUMN_SPACE = 3
"""Characters between the texts of two columns of a report's table."""
_MIN_NAME_WIDTH = 12


def fit_names(table: Table, width: int) -> Table:
    """The table with its first column, of names, cut so that the other columns stay whole in so many characters."""
    from rich.cells import cell_len

    names, *others = table.columns
    taken = sum(
        max(cell_len(str(cell)) for cell in (column.header, *column.cells)) + _COLUMN_SPACE for column in others
    )
    names.max_width = max(width - taken - _COLUMN_SPACE - 1, _MIN_NAME_WIDTH)
    names.no_wrap = True
    return table


SHOWN_AFTER_SECONDS = 1.0


@contextmanager
def file_progress(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """Progress bar in the terminal over files that are read: a callback (done, total, path)."""
    if not sys.stderr.isatty():
        yield lambda _done, _total, _path: None
        return
    began = time.monotonic()
    progress = _bar()
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


@contextmanager
def run_progress(what: str) -> Iterator[tuple[Callable[[str], None], Callable[[int, int, str], None]]]:
    """Progress bar in the terminal over runs of minutes each: a function that prints a line, and a callback.

    Both write to stderr. The bar is drawn by these calls, not by a thread: ranks are forked in between, where a lock
    that a thread holds would stay held.
    """
    if not sys.stderr.isatty():
        yield lambda line: click.echo(line, err=True), lambda _done, _total, _name: None
        return
    progress = _bar(auto_refresh=False)
    task = progress.add_task(what)

    def draw(done: int, total: int, name: str) -> None:
        progress.update(task, completed=done, total=total, description=f"{what} {name}", refresh=True)

    def tell(line: str) -> None:
        progress.console.print(line, markup=False, highlight=False)

    with progress:
        yield tell, draw


def _bar(*, auto_refresh: bool = True) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=auto_refresh)
