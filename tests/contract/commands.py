"""Commands with their arguments and options, as click knows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from stepscope.cli import root


def commands() -> dict[str, dict[str, str]]:
    """Command -> argument or option as it is typed -> what it takes, in words."""
    return dict(sorted(_below("stepscope", root, click.Context(root, info_name="stepscope"))))


def _below(name: str, command: click.Command, context: click.Context) -> Iterator[tuple[str, dict[str, str]]]:
    yield name, {_typed(one): _taken(one) for one in command.params} | _rest(command)
    if isinstance(command, click.Group):
        for verb in command.list_commands(context):
            inner = command.get_command(context, verb)
            assert inner is not None, verb
            yield from _below(f"{name} {verb}", inner, click.Context(inner, context, verb))


def _rest(command: click.Command) -> dict[str, str]:
    return {"...": "any further arguments"} if command.allow_extra_args and not isinstance(command, click.Group) else {}


def _typed(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return (parameter.metavar or parameter.name or "").upper()
    on, off = ", ".join(parameter.opts), ", ".join(parameter.secondary_opts)
    return f"{on} / {off}" if off else on


def _taken(parameter: click.Parameter) -> str:
    is_flag = isinstance(parameter, click.Option) and parameter.is_flag
    has_default = isinstance(parameter.default, (str, int, float)) and parameter.default not in ("", False)
    parts = ["flag" if is_flag else _type(parameter.type)]
    if parameter.nargs != 1 or parameter.multiple:
        parts.append("any number" if parameter.nargs < 0 or parameter.multiple else f"{parameter.nargs} values")
    if parameter.required:
        parts.append("required")
    if has_default and (parameter.secondary_opts or not is_flag):  # of a lone flag, versions of click tell others
        parts.append(f"default {parameter.default}")
    if isinstance(parameter, click.Option) and parameter.hidden:
        parts.append("hidden")
    if parameter.envvar:
        parts.append(f"environment {parameter.envvar}")
    return ", ".join(parts)


def _type(kind: Any) -> str:
    if isinstance(kind, click.Choice):
        return " | ".join(map(str, kind.choices))
    if isinstance(kind, (click.IntRange, click.FloatRange)):
        least = "" if kind.min is None else f"{'above' if kind.min_open else 'from'} {kind.min}"
        most = "" if kind.max is None else f"{'below' if kind.max_open else 'to'} {kind.max}"
        return " ".join(filter(None, (kind.name.removesuffix(" range"), least, most)))
    return str(kind.name)
