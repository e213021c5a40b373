"""The verb cost: GPU-hours, energy and money by job, user, team or node."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli.history_source import Opener, history_source, time_options
from stepscope.cli.options import FILE, json_option
from stepscope.cli.terminal.answers import print_report, print_warnings
from stepscope.cli.terminal.console import report_console, report_table
from stepscope.core.errors import printable
from stepscope.core.text.numbers import UNKNOWN, counted, moment

if TYPE_CHECKING:
    from stepscope.core.documents.cost import CostFigures, CostReport, CostRow

_COLUMNS = ("gpu_hours", "busy_hours", "held_but_idle_hours", "unknown_hours", "energy_kwh", "money", "idle_money")
MAX_ROWS = 40


@click.command("cost")
@history_source()
@time_options(last="30d")
@click.option(
    "--by", type=click.Choice(["job", "user", "team", "node"]), default="job", help="A row for each of these."
)
@click.option("--rates", "rates_file", type=FILE, help="Take prices from this rate card (TOML).")
@click.option(
    "--runs", multiple=True, metavar="DIR", help="Add the waste of jobs from these runs, by goodput; repeatable."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values, all rows.")
@json_option
def cost_command(
    open_history: Opener,
    start_ns: int,
    end_ns: int,
    is_now: bool,  # noqa: ARG001  steps are of whole minutes anyway
    by: str,
    rates_file: Path | None,
    runs: tuple[str, ...],
    as_csv: bool,
    as_json: bool,
) -> None:
    """Show what GPUs cost: hours of cards, energy and money by job, user, team or node.

    A MIG instance counts as its part of the card, and jobs that share a device in turns have equal parts of it: all
    rows and what no job had add up to the time of the cards. Needs a history of agents: stepscope history run, or a
    Prometheus server.
    """
    from stepscope.workflow.cost import read_cost, read_rates

    if as_csv and as_json:
        raise click.UsageError("give --csv or --json")
    rates = None if rates_file is None else read_rates(rates_file)
    report = read_cost(open_history(), start_ns, end_ns, by=by, rates=rates, runs=runs)
    if as_csv:
        click.echo(_csv(report), nl=False)
        print_warnings(report.warnings)
    else:
        print_report(report, _print_cost, as_json=as_json)


def _csv(report: CostReport) -> str:
    keys = list(dict.fromkeys(name for row in report.rows for name in row.key))
    waste = sorted({kind.value for row in report.rows for kind in row.waste})
    facts = ["user", "team"] if report.by == "job" else ["jobs"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*keys, *facts, *_COLUMNS, *(f"{kind}_hours" for kind in waste), "currency"])
    for row in report.rows:
        hours = {kind.value: value for kind, value in row.waste.items()}
        known = [getattr(row, fact) for fact in facts]
        figures = [getattr(row.figures, column) for column in _COLUMNS]
        writer.writerow([*row.key.values(), *known, *figures, *(hours.get(kind) for kind in waste), report.currency])
    return text.getvalue()


def _print_cost(report: CostReport) -> None:
    console = report_console()
    span = f"{moment(report.start_ns)} to {moment(report.end_ns)}"
    console.print(f"{counted(report.num_cards, 'GPU')}, {span}", soft_wrap=True)
    has_waste = any(row.waste for row in report.rows)
    money = [f">{report.currency}", ">of it idle"] if report.currency else []
    facts = ["user", "team"] if report.by == "job" else [">jobs"]
    columns = [">GPU-hours", ">busy", ">idle", ">kWh", *money, *([">wasted"] if has_waste else [])]
    table = report_table(report.by, *facts, *columns)
    for row in report.rows[:MAX_ROWS]:
        known = [row.user or UNKNOWN, row.team or UNKNOWN] if report.by == "job" else [str(row.jobs)]
        wasted = [f"{sum(row.waste.values()):,.1f}" if row.waste else UNKNOWN] if has_waste else []
        table.add_row(printable(_name(row)), *map(printable, known), *_cells(row.figures, report), *wasted)
    rest = [""] * (len(facts)), [""] if has_waste else []
    for name, figures in (("no job", report.free), ("all GPUs", report.cards)):
        table.add_row(name, *rest[0], *_cells(figures, report), *rest[1])
    console.print(table)
    if len(report.rows) > MAX_ROWS:
        console.print(f"{len(report.rows) - MAX_ROWS} more rows are in --csv and --json")


def _name(row: CostRow) -> str:
    return row.key.get("job_id") or next(iter(row.key.values()))


def _cells(figures: CostFigures, report: CostReport) -> list[str]:
    hours = [figures.gpu_hours, figures.busy_hours, figures.held_but_idle_hours]
    cells = [f"{value:,.1f}" for value in hours]
    cells.append(UNKNOWN if figures.energy_kwh is None else f"{figures.energy_kwh:,.1f}")
    if report.currency:
        cells += [UNKNOWN if money is None else f"{money:,.2f}" for money in (figures.money, figures.idle_money)]
    return cells
