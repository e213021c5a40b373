"""How does a bench read in a terminal?"""

from __future__ import annotations

import click
from rich import box
from rich.table import Table

from stepscope.cli.terminal import report_console
from stepscope.core.counting import counted
from stepscope.reference_workloads.throughput.result import BaselineRow, Bench, BenchScale


def print_bench(bench: Bench) -> None:
    """Print scales, the law they follow, and what became of an earlier bench; warnings go to stderr."""
    console = report_console()
    gpus = [gpu["name"] for gpu in bench.environment.get("gpus", [])]
    where = f"{len(gpus)} x {gpus[0]}" if gpus else f"{bench.environment.get('cpu') or 'CPU'}"
    console.print(f"{bench.workload} {bench.model.get('name')} on {where}, {bench.scaling} scaling")
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("scale")
    for name in ("batch", "step p50", "p95", f"{bench.item}s/s", "MFU", "efficiency", "95 %"):
        table.add_column(name, justify="right")
    for scale in bench.scales:
        table.add_row(*_cells(scale))
    console.print(table)
    if bench.fit is not None:
        low, high = bench.fit.interval
        misfit = "" if bench.fit.misfit is None else f"; no scale is further than {bench.fit.misfit:.1%} from the law"
        console.print(
            f"{bench.fit.law.capitalize()}: {bench.fit.serial_fraction:.2%} does not scale"
            f" ({low:.2%} to {high:.2%}){misfit}"
        )
    for row in bench.baseline:
        console.print(_against(row))
        for gate in row.gates:
            console.print(f"  gate {gate.summary}")
    for warning in bench.warnings:
        click.echo(f"warning: {warning.message}", err=True)


def _cells(scale: BenchScale) -> tuple[str, ...]:
    low, high = scale.efficiency_interval
    return (
        f"dp {scale.dp} ({counted(scale.num_ranks, 'rank')})",
        f"{scale.batch_size}",
        f"{scale.step_p50_ms:,.1f} ms",
        f"{scale.step_p95_ms:,.1f} ms",
        f"{scale.items_per_second:,.0f}",
        "" if scale.mfu is None else f"{scale.mfu:.1%}",
        f"{scale.efficiency:.1%}",
        "" if low == high else f"{low:.1%} to {high:.1%}",
    )


def _against(row: BaselineRow) -> str:
    step = row.step
    low, high = step.interval or (0.0, 0.0)
    verdict = step.state.replace("not_seen", "no change seen")
    return (
        f"dp {row.dp}: {verdict}: {step.a:,.1f} -> {step.b:,.1f} ms"
        f" ({step.relative or 0.0:+.1%}, change {low:+,.1f} to {high:+,.1f} ms)"
    )
