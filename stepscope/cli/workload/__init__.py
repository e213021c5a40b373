"""`stepscope workload`: reference training jobs, one module per verb."""

from __future__ import annotations

import click

from stepscope.cli.groups import LazyGroup

_VERBS = {
    "plan": "Estimate memory, FLOPs, communication, step time and cost before anything runs.",
    "bench": "Measure throughput and scaling, and compare with an earlier bench.",
    "run": "Train a workload, profiled, with or without an injected fault.",
    "faults": "List the faults that can be injected.",
    "suite": "Train runs with known faults, analyze them, and score the verdicts.",
}
"""Verb (module of the same name with a click command `command`) -> one line for --help."""


@click.command(cls=LazyGroup, package=__name__, verbs=_VERBS)
def command() -> None:
    """Run reference training jobs with known bottlenecks."""
