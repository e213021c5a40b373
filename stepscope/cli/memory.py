"""`stepscope memory`: what held the GPU's memory, what grows, and why it ran out."""

from __future__ import annotations

import click

from stepscope.cli.options import enters_only_run, print_document


@click.command("memory")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; a list of them for several snapshots.")
@enters_only_run
def command(paths: tuple[str, ...], as_json: bool) -> None:
    """Explain what held the GPU's memory at its peak, what grows, and why it ran out.

    PATH is a snapshot of torch.cuda.memory._dump_snapshot(), also gzipped and of any size, a folder of them, or a run
    directory. Nothing in a snapshot is executed.
    """
    from stepscope.workflow.memory import read_memory

    reports = read_memory(paths)
    if as_json:
        documents = [report for _, report in reports]
        print_document(documents[0] if len(documents) == 1 else documents)
    else:
        from stepscope.cli.terminal.memory import print_memory

        for name, report in reports:
            print_memory(name, report)
    for name, report in reports:
        for notice in report.warnings:
            click.echo(f"warning: {name}: {notice.message}", err=True)
