"""How do reference workloads run from the command line? One module a verb of `stepscope workload`."""

from __future__ import annotations

from importlib import import_module

import click

_VERBS = {
    "plan": "Estimate memory, FLOPs, communication, step time and cost before anything runs.",
    "bench": "Measure throughput and how it scales; hold it against an earlier bench.",
    "run": "Train a workload, profiled, with or without an injected fault.",
    "faults": "List the faults that a workload can be trained with.",
    "suite": "Train runs with known faults, analyse them, and score the verdicts.",
}
"""Verb (module of the same name with a click command `command`) -> one line for --help."""


class _LazyGroup(click.Group):
    """Imports a verb's module only when that verb is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command: click.Command = import_module(f"stepscope.cli.workload.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))


@click.command(cls=_LazyGroup)
def command() -> None:
    """Run reference training with known bottlenecks."""
