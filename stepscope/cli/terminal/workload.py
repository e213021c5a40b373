"""An estimate or a benchmark of a reference workload in a terminal."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from stepscope.cli.terminal.console import report_console, report_table
from stepscope.core.text.numbers import counted
from stepscope.reference_workloads.bench.result import BaselineRow, Bench, BenchScale

_GIB = 2.0**30
_COUNTS = {"B": 1e9, "M": 1e6, "K": 1e3}
_FLOPS = {"PFLOP": 1e15, "TFLOP": 1e12, "GFLOP": 1e9, "MFLOP": 1e6}


def print_plan(document: dict[str, Any]) -> None:
    """Terminal: tables of a workload's estimate."""
    console = report_console()
    plan, assumed = document["plan"], document["assumed"]
    num_parameters = _scaled(document["num_parameters"], _COUNTS)
    layout = f"tp {plan['tp']} x pp {plan['pp']} x dp {plan['dp']}"
    console.print(
        f"{document['workload']} {document['preset']}: {num_parameters} parameters, {layout} = {plan['world_size']} x"
        f" {assumed['gpu']}, zero {plan['zero']}, {counted(plan['micro_batches'], 'micro-batch')}"
    )
    console.print(_memory_table(document))
    outside = document["outside_allocator_bytes"] / _GIB
    console.print(f"Outside torch's allocator about {outside:.1f} GiB a rank: CUDA context and NCCL (assumed).")
    flops = document["flops"]
    console.print(
        f"A step is {_scaled(flops['model'], _FLOPS)} (executed {_scaled(flops['executed'], _FLOPS)}) for"
        f" {document['tokens_per_step']:,} tokens: {_scaled(flops['model_per_rank'], _FLOPS)} a rank."
    )
    if document["communication"]:
        console.print(_communication_table(document))
    _print_step(console, document)
    if document["cost"]:
        cost = document["cost"]
        money = "" if cost["money"] is None else f", {cost['money']:,.0f} at that price"
        console.print(
            f"{cost['num_tokens']:.3g} tokens: {cost['flops'] / 1e21:,.3g} ZFLOP by 6ND,"
            f" {cost['gpu_hours']:,.0f} GPU-hours ({cost['days']:,.1f} days on this job's GPUs){money}."
        )
    for warning in document["warnings"]:
        console.print(f"{warning['message'][0].upper()}{warning['message'][1:]}.")


def print_against_plan(rows: list[dict[str, Any]]) -> None:
    """Terminal: table of a workload's estimate against its measurement, a row per quantity."""
    table = report_table("plan against run", ">planned", ">measured", ">plan / run")
    for row in rows:
        planned, measured = (_quantity(row[key], row["unit"]) for key in ("planned", "measured"))
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f}"
        table.add_row(row["what"], planned, measured, ratio)
    report_console().print(table)


def _quantity(value: float | None, unit: str) -> str:
    if value is None:
        return "not measured"
    if unit == "bytes":
        return f"{value / _GIB:.2f} GiB"
    if unit == "flops":
        return f"{value / 1e12:,.2f} TFLOP"
    return f"{value:,.1f} {unit}"


def _scaled(value: float, units: dict[str, float]) -> str:
    """The value in the largest unit below it; three decimals below ten."""
    unit, size = next(((unit, size) for unit, size in units.items() if value >= size), list(units.items())[-1])
    return f"{value / size:,.{3 if value < 10 * size else 1}f} {unit}"


def _memory_table(document: dict[str, Any]) -> Table:
    """Memory at its peak in GiB, of small models in MiB; categories that no rank has are left out."""
    ranks = document["memory"]
    size, unit = (_GIB, "GiB") if max(rank["peak_bytes"] for rank in ranks) >= _GIB / 10 else (_GIB / 1024, "MiB")
    shown = [name for name in ranks[0]["at_peak"] if any(rank["at_peak"][name] for rank in ranks)]
    title = f"Memory of a rank at its fullest, {unit}"
    columns = (f">{name.replace('_', ' ')}" for name in (*shown, "peak"))
    table = report_table("pp rank", *columns, "in", title=title)
    for rank in ranks:
        cells = [f"{rank['at_peak'][name] / size:.2f}" for name in shown]
        table.add_row(str(rank["pp_rank"]), *cells, f"{rank['peak_bytes'] / size:.2f}", rank["moment"])
    return table


def _communication_table(document: dict[str, Any]) -> Table:
    """Communication of the pipeline rank that exchanges longest, by dimension."""
    seconds: dict[int, float] = defaultdict(float)
    for exchange in document["communication"]:
        seconds[exchange["pp_rank"]] += exchange["seconds"]
    rank = max(seconds, key=lambda each: seconds[each])
    title = "Communication of a rank and step" + (f" (pp rank {rank})" if len(seconds) > 1 else "")
    columns = ("dimension", "exchange", ">count", ">MiB each", ">GiB sent", ">ms", "over")
    table = report_table(*columns, title=title)
    for exchange in document["communication"]:
        if exchange["pp_rank"] == rank:
            table.add_row(
                exchange["dimension"],
                f"{exchange['kind'].replace('_', '-')}: {exchange['what']}",
                f"{exchange['count']:,}",
                f"{exchange['num_bytes'] / 2**20:,.2f}",
                f"{exchange['sent_bytes'] / _GIB:.3f}",
                f"{exchange['seconds'] * 1e3:,.2f}",
                exchange["link"],
            )
    return table


def _print_step(console: Console, document: dict[str, Any]) -> None:
    assumed = document["assumed"]
    digits = 1 if document["step_ms"] >= 10 else 4
    parts = ", ".join(
        f"{name.replace('_', ' ')} {milliseconds:,.{digits}f}"
        for name, milliseconds in document["step_parts_ms"].items()
        if milliseconds
    )
    console.print(f"Step about {document['step_ms']:,.{digits}f} ms: {parts}.")
    if document["pipeline"]:
        pipeline = document["pipeline"]
        textbook = "" if pipeline["textbook"] is None else f" (textbook {pipeline['textbook']:.1%})"
        console.print(
            f"Bubble {pipeline['bubble']:.1%} of the pipeline's period, mean over ranks, by replaying"
            f" {document['plan']['schedule']}{textbook}."
        )
    console.print(
        f"{document['tokens_per_second']:,.0f} tokens/s, MFU {document['mfu']:.1%}; assumed that a GPU computes at"
        f" {assumed['efficiency']:.0%} of its {assumed['peak_tflops']:,.0f} TFLOP/s ({assumed['dtype']}, dense)."
    )


def print_bench(bench: Bench) -> None:
    """Terminal: table of a throughput benchmark: scales, scaling law, comparison; warnings go to stderr."""
    console = report_console()
    gpus = [gpu["name"] for gpu in bench.environment.get("gpus", [])]
    where = f"{len(gpus)} x {gpus[0]}" if gpus else f"{bench.environment.get('cpu') or 'CPU'}"
    console.print(f"{bench.workload} {bench.model.get('name')} on {where}, {bench.scaling} scaling")
    figures = (">batch", ">step p50", ">p95", f">{bench.item}s/s", ">MFU", ">efficiency", ">95%")
    table = report_table("scale", *figures)
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
