"""Commands: usage, arguments and options of each, from click."""

from __future__ import annotations

from collections.abc import Iterator

import click

from stepscope.cli import root
from stepscope_reference.markdown import code, table, text


def commands() -> str:
    """All commands, each with its usage, its help and a table of its options."""
    return "\n".join(_below(root, click.Context(root, info_name="stepscope", show_default=True)))


def _below(command: click.Command, context: click.Context) -> Iterator[str]:
    yield _described(command, context)
    if isinstance(command, click.Group):
        for verb in command.list_commands(context):
            inner = command.get_command(context, verb)
            assert inner is not None, verb
            yield from _below(inner, click.Context(inner, context, verb))


def _described(command: click.Command, context: click.Context) -> str:
    usage = " ".join(command.collect_usage_pieces(context))
    records = [record for one in command.get_params(context) if (record := one.get_help_record(context))]
    options = [record for record in records if "--help" not in record[0]]
    parts = [
        f"## {context.command_path}",
        f"```text\n{context.command_path} {usage}\n```",
        *_paragraphs(command.help or ""),
        *_paragraphs(command.epilog or ""),
        table(("option", "what"), [(code(name), text(what)) for name, what in options]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _paragraphs(help_text: str) -> Iterator[str]:
    """Paragraphs of a help text; those marked as preformatted keep their lines."""
    for paragraph in help_text.replace("\b\n", "\b").split("\n\n"):
        if paragraph.startswith("\b"):
            yield f"```text\n{paragraph.removeprefix(chr(8))}\n```"
        elif paragraph.strip():
            yield text(paragraph)
