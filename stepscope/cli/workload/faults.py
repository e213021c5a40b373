"""`stepscope workload faults`: the faults that can be injected, their expected verdicts and default severity."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

SCHEMA = "stepscope.faults/1"


@click.command("faults")
@click.option("--json", "as_json", is_flag=True, help=f"Print one {SCHEMA} document.")
def command(as_json: bool) -> None:
    """List the faults that `workload run --inject` accepts."""
    faults = list_faults()
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "faults": faults, "warnings": []}, indent=1))
        return
    for fault in faults:
        severity = ", ".join(f"{name}={value}" for name, value in fault["severity"].items())
        reasons = f" ({', '.join(fault['reasons'])})" if fault["reasons"] else ""
        click.echo(f"{fault['name']}  {severity}".rstrip())
        click.echo(f"    {fault['what']}")
        click.echo(f"    verdict  {fault['cause']}{reasons}")
        click.echo(f"    shows    {fault['shows']}")
        click.echo(f"    needs    {'; '.join(fault['needs']) or 'nothing'}")


def list_faults() -> list[dict[str, Any]]:
    """Each fault's name, docstring's first line, expected verdict, needs, and default severity."""
    from stepscope.reference_workloads.injections.catalogue import INJECTIONS

    return [
        {
            "name": kind.name,
            "what": (kind.__doc__ or "").splitlines()[0],
            "cause": kind.cause,
            "also_right": list(kind.also_right),
            "reasons": list(kind.reasons),
            "shows": kind.shows,
            "needs": [need.text for need in kind.needs],
            "severity": asdict(kind()),
        }
        for kind in INJECTIONS.values()
    ]
