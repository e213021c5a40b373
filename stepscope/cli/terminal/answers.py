"""Answers of commands: one line of JSON or text, and warnings on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from stepscope.core.vocabulary import Notice


def print_document(document: Any) -> None:
    """Terminal: print a command's answer as one line of JSON."""
    from stepscope.store.documents import encode_document

    click.echo(encode_document(document).decode())


def print_report(report: Any, print_text: Callable[[Any], None], *, as_json: bool) -> None:
    """Terminal: print a command's report as one line of JSON, or as text by `print_text`; warnings go to stderr."""
    if as_json:
        print_document(report)
    else:
        print_text(report)
    print_warnings(report.warnings)


def print_warnings(notices: Iterable[Notice]) -> None:
    """Terminal: print each warning of a command as a line on stderr."""
    for notice in notices:
        click.echo(f"warning: {notice.message}", err=True)
