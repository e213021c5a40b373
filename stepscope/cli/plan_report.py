"""How does an estimate read in a terminal, before a run and after it?"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from stepscope.cli.terminal import report_console
from stepscope.core.counting import counted

_GIB = 2.0**30
_COUNTS = {"B": 1e9, "M": 1e6, "K": 1e3}
_FLOPS = {"PFLOP": 1e15, "TFLOP": 1e12, "GFLOP": 1e9, "MFLOP": 1e6}


def print_plan(document: dict[str, Any]) -> None:
    """Print a stepscope.workload-plan document."""
    console = report_console()
    console.print(_headline(document))
    console.print(_memory_table(document))
    outside = document["outside_allocator_bytes"] / _GIB
    console.print(f"Outside torch's allocator about {outside:.1f} GiB a rank: CUDA context and NCCL (assumed).")
    _print_flops(console, document)
    if document["communication"]:
        console.print(_communication_table(document))
    _print_step(console, document)
    if document["cost"]:
        _print_cost(console, document["cost"])
    for warning in document["warnings"]:
        console.print(f"{warning['message'][0].upper()}{warning['message'][1:]}.")


def print_comparison(rows: list[dict[str, Any]]) -> None:
    """Print plan against measurement, one row a quantity."""
    table = Table("plan against run", box=box.SIMPLE_HEAD)
    for name in ("planned", "measured", "plan / run"):
        table.add_column(name, justify="right")
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
    """In the largest unit of which there is at least one; three digits after the point below ten."""
    unit, size = next(((unit, size) for unit, size in units.items() if value >= size), list(units.items())[-1])
    return f"{value / size:,.{3 if value < 10 * size else 1}f} {unit}"


def _headline(document: dict[str, Any]) -> str:
    plan, assumed = document["plan"], document["assumed"]
    num_parameters = _scaled(document["num_parameters"], _COUNTS)
    layout = f"tp {plan['tp']} x pp {plan['pp']} x dp {plan['dp']}"
    return (
        f"{document['workload']} {document['preset']}: {num_parameters} parameters, {layout} = {plan['world_size']} x"
        f" {assumed['gpu']}, zero {plan['zero']}, {counted(plan['micro_batches'], 'micro-batch')}"
    )


def _memory_table(document: dict[str, Any]) -> Table:
    """GiB (of small models MiB) at the fullest moment; categories that no rank has are left out."""
    ranks = document["memory"]
    size, unit = (_GIB, "GiB") if max(rank["peak_bytes"] for rank in ranks) >= _GIB / 10 else (_GIB / 1024, "MiB")
    shown = [name for name in ranks[0]["at_peak"] if any(rank["at_peak"][name] for rank in ranks)]
    title = f"Memory of a rank at its fullest, {unit}"
    table = Table("pp rank", box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for name in (*shown, "peak"):
        table.add_column(name.replace("_", " "), justify="right")
    table.add_column("in")
    for rank in ranks:
        cells = [f"{rank['at_peak'][name] / size:.2f}" for name in shown]
        table.add_row(str(rank["pp_rank"]), *cells, f"{rank['peak_bytes'] / size:.2f}", rank["moment"])
    return table


def _print_flops(console: Console, document: dict[str, Any]) -> None:
    flops = document["flops"]
    console.print(
        f"A step is {_scaled(flops['model'], _FLOPS)} (executed {_scaled(flops['executed'], _FLOPS)}) for"
        f" {document['tokens_per_step']:,} tokens: {_scaled(flops['model_per_rank'], _FLOPS)} a rank."
    )


def _communication_table(document: dict[str, Any]) -> Table:
    """Of the pipeline rank that exchanges longest, by dimension."""
    seconds: dict[int, float] = defaultdict(float)
    for exchange in document["communication"]:
        seconds[exchange["pp_rank"]] += exchange["seconds"]
    rank = max(seconds, key=lambda each: seconds[each])
    title = "Communication of a rank and step" + (f" (pp rank {rank})" if len(seconds) > 1 else "")
    table = Table("dimension", "exchange", box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for name in ("count", "MiB each", "GiB sent", "ms"):
        table.add_column(name, justify="right")
    table.add_column("over")
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


def _print_cost(console: Console, cost: dict[str, Any]) -> None:
    money = "" if cost["money"] is None else f", {cost['money']:,.0f} at that price"
    console.print(
        f"{cost['num_tokens']:.3g} tokens: {cost['flops'] / 1e21:,.3g} ZFLOP by 6ND, {cost['gpu_hours']:,.0f} GPU-hours"
        f" ({cost['days']:,.1f} days on this job's GPUs){money}."
    )
