"""`stepscope workload`: reference training jobs, loaded when they are called."""

from __future__ import annotations

import click

from stepscope.cli import LazyGroup

_VERBS = {
    "plan": ("training", "Estimate memory, FLOPs, communication, step time and cost before anything runs."),
    "bench": ("bench", "Measure throughput and scaling, and compare with an earlier bench."),
    "run": ("training", "Train a workload, profiled, with or without an injected fault."),
    "faults": ("suite", "List the faults that can be injected."),
    "suite": ("suite", "Train runs with known faults, analyze them, and score the verdicts."),
}
"""Verb -> the module of its command, and one line for --help."""


@click.command(cls=LazyGroup, package=__name__, verbs=_VERBS)
def workload_command() -> None:
    """Run reference training jobs with known bottlenecks."""
