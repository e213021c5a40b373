"""`stepscope hang`: the ranks that hold a job up, and whether their host or their GPU does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli.options import enters_only_run, json_option, print_document, print_warnings

if TYPE_CHECKING:
    from stepscope.core.documents.hang import HangReport, WaitingGroup


@click.command("hang")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@json_option
@enters_only_run
def command(paths: tuple[str, ...], as_json: bool) -> None:
    """Find the ranks that hold a job up, from the dumps of torch's flight recorder.

    PATH is a dump (pickle or JSON, NCCL or gloo, any name that ends with the rank), a folder of them, or a run
    directory. Nothing in a dump is executed.
    """
    from stepscope.workflow.hang import read_hang

    report = read_hang(paths)
    if as_json:
        print_document(report)
    else:
        _print(report)
    print_warnings(report.warnings)


def _print(report: HangReport) -> None:
    from stepscope.core.errors import printable
    from stepscope.core.text.numbers import counted, ranks_words
    from stepscope.core.text.wording import cause_phrase
    from stepscope.core.vocabulary import Cause

    verdict = report.verdict
    kind = f", {verdict.kind}" if verdict.kind else ""
    cause = cause_phrase(Cause(verdict.cause)) if verdict.cause in frozenset(Cause) else verdict.cause
    lines = [f"VERDICT  {cause}{kind}  (confidence {verdict.confidence:.0%})"]
    lines.append(f"  {verdict.summary}")
    lines += [f"  - {ranks_words(one.ranks)}: {one.message}" for one in verdict.evidence]
    lines += [f"  > {action}" for action in verdict.actions]
    missing = f"; no dump of {ranks_words(report.missing_ranks)}" if report.missing_ranks else ""
    lines.append(f"{counted(len(report.ranks), 'dump')}{missing}")
    for group in report.groups:
        lines.append(f"{ranks_words(group.ranks)}: {_where(group)}")
        lines += [f"    {frame}" for frame in group.stack]
    click.echo("\n".join(map(printable, lines)))


def _where(group: WaitingGroup) -> str:
    from stepscope.core.documents.hang import group_words
    from stepscope.core.text.numbers import form, ranks_words

    if group.operation is None:
        return "no collective is open" + ("; the last was called from" if group.stack else "")
    name = group_words(group.process_group, group.description)
    waits = f", {form(len(group.ranks), 'waits', 'wait')} for {ranks_words(group.waits_for)}" if group.waits_for else ""
    return f"in {group.operation} {group.sequence} of {name}{waits}"
