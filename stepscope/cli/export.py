"""The verb export: a run for Perfetto, or its tables as CSV or Parquet."""

from __future__ import annotations

import re
from pathlib import Path

import click

from stepscope.cli.options import capture_option, enters_only_run
from stepscope.cli.terminal.answers import print_warnings
from stepscope.cli.terminal.console import file_progress
from stepscope.core.errors import printable
from stepscope.core.text.numbers import counted, number_runs

_OUTPUT = {"perfetto": "trace.perfetto.json.gz", "csv": "tables", "parquet": "tables"}


@click.command("export")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--format", "kind", type=click.Choice(list(_OUTPUT)), required=True, help="Format to write.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help=f"File for Perfetto, folder for tables.  [default: {_OUTPUT['perfetto']}, {_OUTPUT['csv']}]",
)
@click.option("--ranks", default="all", metavar="0-7,12|all", help="Perfetto: these ranks.")
@click.option("--start", type=float, metavar="MS", help="Perfetto: from this time after the first profiled step on.")
@click.option("--end", type=float, metavar="MS", help="Perfetto: up to this time after the first profiled step.")
@capture_option()
@enters_only_run
def export_command(
    paths: tuple[str, ...],
    kind: str,
    output: Path | None,
    ranks: str,
    start: float | None,
    end: float | None,
    capture: int | None,
) -> None:
    """Write a run for Perfetto, all ranks in one trace on one clock, or its tables as CSV or Parquet.

    PATH is as for analyze. Open the trace at https://ui.perfetto.dev or with another viewer of Chrome's JSON format. It
    has tracks of the time breakdown and of causes above those of each rank's threads and streams.
    """
    output = Path(_OUTPUT[kind]) if output is None else output
    if kind == "perfetto":
        _export_perfetto(paths, output, ranks, start, end, capture)
        return
    if ranks != "all" or start is not None or end is not None:
        raise click.UsageError("--ranks, --start and --end are of --format perfetto")
    from stepscope.api import load
    from stepscope.api.export import export_tables

    files, notices = export_tables(
        load(paths, capture=capture, keep=False), output, "csv" if kind == "csv" else "parquet"
    )
    click.echo(f"{printable(str(output))}: {counted(len(files), 'table')}")
    print_warnings(notices)


def _export_perfetto(
    paths: tuple[str, ...], output: Path, ranks: str, start: float | None, end: float | None, capture: int | None
) -> None:
    from stepscope.workflow.export.perfetto import Selection, export_perfetto

    selection = Selection(_ranks(ranks), start, end)
    with file_progress("reading") as on_progress:
        done = export_perfetto(paths, output, selection, capture=capture, on_progress=on_progress)
    clocks = "" if done.clock_residual_us is None else f", clocks aligned within {done.clock_residual_us:.1f} us"
    slices = counted(done.num_slices, "event")
    click.echo(f"{printable(str(done.path))}: rank {number_runs(done.ranks)}, {slices}{clocks}")


_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_MAX_RANKS = 1 << 20


def _ranks(text: str) -> frozenset[int] | None:
    if text == "all":
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 <= last - first < _MAX_RANKS:
            raise click.UsageError(f"--ranks takes numbers and ranges with commas, or all, not {text!r}")
        ranks.update(range(first, last + 1))
    return frozenset(ranks)
