"""`stepscope nccl`: how a job's GPUs communicate, and what is wrong with it."""

from __future__ import annotations

import click

from stepscope.cli.options import enters_only_run, json_option, print_warnings


@click.command("nccl")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@json_option
@enters_only_run
def command(paths: tuple[str, ...], as_json: bool) -> None:
    """Explain how a job's GPUs communicate, whether that is the fastest way, and what went wrong.

    PATH is a log of NCCL_DEBUG=INFO (one for all ranks or one per rank, with any prefix of a launcher), a file of
    NCCL's inspector, an answer of its RAS service, a topology, a folder of such files, or a run directory.
    """
    from stepscope.workflow.nccl import read_nccl

    report = read_nccl(paths)
    if as_json:
        from stepscope.store.documents import encode_nccl

        click.echo(encode_nccl(report).decode())
    else:
        from stepscope.cli.terminal.nccl import print_nccl

        print_nccl(report)
    print_warnings(report.warnings)
