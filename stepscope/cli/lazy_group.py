"""How does a command of several verbs load only the one that is called, so that `--help` and the rest stay fast?"""

from __future__ import annotations

from importlib import import_module

import click


class LazyGroup(click.Group):
    """One module a verb: of the verb's name, in `package`, with a click command `command`."""

    def __init__(self, *, package: str, verbs: dict[str, str], **options: object) -> None:
        """`verbs`: verb -> one line for --help, in the order in which they are listed."""
        super().__init__(**options)  # type: ignore[arg-type]  # click's own
        self._package = package
        self._verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._verbs:
            return None
        command: click.Command = import_module(f"{self._package}.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._verbs.items()))
