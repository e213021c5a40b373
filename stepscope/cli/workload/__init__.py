"""How do reference workloads run from the command line? One module a verb of `stepscope workload`."""

from __future__ import annotations

import click

from stepscope.cli.lazy_group import LazyGroup

_VERBS = {
    "plan": "Estimate memory, FLOPs, communication, step time and cost before anything runs.",
    "bench": "Measure throughput and how it scales; hold it against an earlier bench.",
    "run": "Train a workload, profiled, with or without an injected fault.",
    "faults": "List the faults that a workload can be trained with.",
    "suite": "Train runs with known faults, analyse them, and score the verdicts.",
}
"""Verb (module of the same name with a click command `command`) -> one line for --help."""


@click.command(cls=LazyGroup, package=__name__, verbs=_VERBS)
def command() -> None:
    """Run reference training with known bottlenecks."""
