"""`stepscope top`: the GPUs of one or many machines, live."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import asks_agents

if TYPE_CHECKING:
    from stepscope.core.vocabulary import Notice
    from stepscope.workflow.nodes.agent_client import AgentClient
    from stepscope.workflow.nodes.answers import NodeAnswer, NodeWatch

_SCHEMA = "stepscope.top/1"
_REDRAW_SECONDS = 0.5


@click.command("top")
@asks_agents
@click.option("--once", is_flag=True, help="Print the table once and exit.")
@click.option("--interval", type=click.FloatRange(0.5), default=2.0, help="Poll the agents every so many seconds.")
@click.option("--job", default="", show_default=False, help="Show only the GPUs of the job of this name or id.")
@click.option("--sick", is_flag=True, help="Show only GPUs and agents with a problem.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and exit.")
def command(clients: list[AgentClient], once: bool, interval: float, job: str, sick: bool, as_json: bool) -> None:
    """Show the GPUs of one or many machines as a live table: job, class, activity, power, memory, health.

    An unknown value is a dash. An agent that does not answer has a line with the reason; its last values are dim.
    """
    from stepscope.workflow.nodes.answers import NodeWatch, answers_of, check_answers, chosen, unknown_job

    if not once and not as_json:
        with NodeWatch(clients) as watch:
            _live(watch, interval, lambda: chosen(watch.answers(), job=job, sick=sick))
        return
    answers = answers_of(clients)
    _print(chosen(answers, job=job, sick=sick), unknown_job(answers, job), as_json=as_json)
    check_answers(answers)


def _print(answers: Sequence[NodeAnswer], notices: Sequence[Notice], *, as_json: bool) -> None:
    if as_json:
        from stepscope.core.documents.node import node_document
        from stepscope.workflow.nodes.answers import silent_agents

        nodes = [
            {"agent": one.agent, "error": one.error, "node": node_document(one.node) if one.node else None}
            for one in answers
        ]
        warnings = [asdict(warning) for warning in (*silent_agents(answers), *notices)]
        click.echo(json.dumps({"schema": _SCHEMA, "nodes": nodes, "warnings": warnings}))
    else:
        from stepscope.cli.terminal.console import report_console
        from stepscope.cli.terminal.node_table import node_table

        report_console().print(node_table(answers, time.monotonic()))
        for notice in notices:
            click.echo(f"stepscope: {notice.message}", err=True)


def _live(watch: NodeWatch, interval: float, answers: Callable[[], Sequence[NodeAnswer]]) -> None:
    from rich.live import Live

    from stepscope.cli.terminal.console import report_console
    from stepscope.cli.terminal.node_table import node_table

    next_question = 0.0
    with Live(console=report_console(), screen=True, auto_refresh=False) as live:
        while True:
            now = time.monotonic()
            if now >= next_question:
                watch.ask()
                next_question = now + interval
            live.update(node_table(answers(), now), refresh=True)
            time.sleep(_REDRAW_SECONDS)
