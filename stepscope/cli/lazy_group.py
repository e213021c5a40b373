"""Click group that loads only the command that is called, so that `--help` and the rest stay fast."""

from __future__ import annotations

from importlib import import_module

import click

from stepscope.core.errors import UsageError
from stepscope.core.text.names import nearest


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not ctx.resilient_parsing and not args[0].startswith("-") and args[0] not in self._verbs:
            near = nearest(args[0], self._verbs)
            hint = f"see {ctx.command_path} --help" if near is None else f"is {near} meant?"
            raise UsageError(f"{ctx.command_path} has no command {args[0]!r}", what_next=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._verbs.items()))
