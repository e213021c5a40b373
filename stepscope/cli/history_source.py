"""Options of commands that ask the metric history: where it is, and for which time."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.cli.options import FILE
from stepscope.cli.quantities import Span
from stepscope.core.errors import UsageError

if TYPE_CHECKING:
    from stepscope.store.history.questions import MetricHistory

LOCATION = "stepscope-history"
"""Folder of the history unless one is named."""
_Function = Callable[..., None]
_Decorator = Callable[[_Function], _Function]
Opener = Callable[[], "MetricHistory"]
"""Opens the history that the options name."""


def history_source(*, default: str | None = LOCATION, text: str = "Ask the history") -> _Decorator:
    """Add --history and how to reach it to a command, which gets them as one `open_history`, an `Opener`.

    Args:
        default: location without --history; None: the command then gets None.
        text: beginning of the help.
    """

    def decorate(function: _Function) -> _Function:
        @click.option(
            "--history",
            "location",
            envvar="STEPSCOPE_HISTORY",
            default=default,
            metavar="DIR|URL",
            help=f"{text} in this directory, at this fsspec URL, or in the Prometheus-compatible server at http://HOST.",
        )
        @click.option(
            "--token-file", type=FILE, envvar="STEPSCOPE_TOKEN_FILE", help="Read a Prometheus server's token from here."
        )
        @click.option(
            "--ca-file", default="", show_default=False, metavar="FILE", help="Trust these CA certificates with it."
        )
        @click.option(
            "--header",
            "headers",
            multiple=True,
            metavar="NAME=VALUE",
            help="Send this header to it, as X-Scope-OrgID=TENANT; repeatable.",
        )
        @wraps(function)
        def call(
            location: str | None, token_file: Path | None, ca_file: str, headers: tuple[str, ...], **options: Any
        ) -> None:
            sent = dict(map(_header, headers))
            opener = None if location is None else partial(_opened, location, token_file, ca_file, sent)
            function(open_history=opener, **options)

        return call

    return decorate


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--header takes NAME=VALUE, not {text!r}")
    return name, value


def _opened(location: str, token_file: Path | None, ca_file: str, headers: dict[str, str]) -> MetricHistory:
    from stepscope.workflow.history.opening import open_history

    token = ""
    if token_file is not None:
        from stepscope.agent.state_directory import read_agent_token

        token = read_agent_token(token_file)
    return open_history(location, token=token, ca_file=ca_file, headers=headers)


def time_options(*, last: str) -> _Decorator:
    """Add --start, --end and --last to a command, which gets `start_ns` and `end_ns`, and whether the end `is_now`."""

    def decorate(function: _Function) -> _Function:
        @click.option(
            "--start", metavar="TIME", help="Begin at this time, as 2026-12-01T08:00Z.  [default: --last before --end]"
        )
        @click.option("--end", metavar="TIME", help="End at this time.  [default: now]")
        @click.option(
            "--last", type=Span(), default=last, metavar="SPAN", help="Begin this long before the end: 90min, 12h, 30d."
        )
        @wraps(function)
        def call(start: str | None, end: str | None, last: float, **options: Any) -> None:
            end_ns = time.time_ns() // 10**6 * 10**6 if end is None else _moment(end, "--end")  # as the history's
            start_ns = end_ns - round(last * 1e3) * 10**6 if start is None else _moment(start, "--start")
            if start_ns >= end_ns:
                what_next = "check --start and --end"
                raise UsageError(f"{start or 'the start'} is not before {end or 'now'}", what_next=what_next)
            function(start_ns=start_ns, end_ns=end_ns, is_now=start is None and end is None, **options)

        return call

    return decorate


def _moment(text: str, option: str) -> int:
    try:
        parsed = datetime.fromisoformat(text)
        return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()) * 10**9
    except (ValueError, OverflowError):
        raise click.UsageError(f"{option} takes a time such as 2026-12-01T08:00Z (UTC), not {text!r}") from None
