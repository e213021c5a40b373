"""Click groups: one answer to a command that does not exist, and commands that are loaded only when they are called."""

from __future__ import annotations

from importlib import import_module

import click

from stepscope.core.errors import UsageError
from stepscope.core.text.numbers import nearest


def unknown(kind: str, given: str, near: str | None, *, command_path: str) -> UsageError:
    """The error of a command or option that does not exist.

    Args:
        command_path: whose --help lists them.
    """
    hint = f"see {command_path} --help" if near is None else f'did you mean "{near}"? See {command_path} --help'
    return UsageError(f'unknown {kind} "{given}"', what_next=hint)


class CommandGroup(click.Group):
    """A group that names the nearest command where the given one does not exist."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and not ctx.resilient_parsing and not args[0].startswith("-") and args[0] not in known:
            raise unknown("command", args[0], nearest(args[0], known), command_path=ctx.command_path)
        return super().resolve_command(ctx, args)


class LazyGroup(CommandGroup):
    """One module per verb: of the verb's name, in `package`, with a click command `command`."""

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
