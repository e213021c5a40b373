"""`stepscope workload plan gpt --preset one-gpu --tp 2 ...`: the estimate of a workload, before anything runs."""

from __future__ import annotations

import json
from typing import Any

import click

from stepscope.cli.workload.layout import layout_options, read_layout
from stepscope.core.errors import UsageError


@click.command("plan")
@click.argument("name")
@layout_options
@click.option("--gpu", default="H100", help="Assume GPUs of this model, as its driver or data sheet names it.")
@click.option("--mfu", "efficiency", type=float, help="Assume this share of the dense peak.  [default: 0.5]")
@click.option("--gpus-per-node", default=8, help="Assume this many GPUs per node, joined by scale-up links.")
@click.option("--network-gbs", default=50.0, help="Assume GB/s of each GPU to other nodes, one direction.")
@click.option("--tokens", metavar="N", help="Also estimate the cost of training on N tokens, such as 2T.")
@click.option("--price-per-gpu-hour", type=float, help="Also estimate the cost in money; needs --tokens.")
@click.option("--emit", type=click.Choice(["torchrun", "slurm"]), help="Print a script that runs the plan instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one stepscope.workload-plan/1 document.")
def command(name: str, as_json: bool, emit: str | None, **options: Any) -> None:
    """Estimate memory, FLOPs, communication, bubble, step time and cost of workload NAME (gpt or llama)."""
    from stepscope.cli.terminal.workload import print_plan
    from stepscope.reference_workloads.estimate.estimate import (
        DEFAULT_EFFICIENCY,
        Assumptions,
        estimate,
        known_gpu,
        parse_amount,
        plan_document,
        training_cost,
    )
    from stepscope.reference_workloads.launch_script import launch_script

    layout = read_layout(name, options)
    if options["price_per_gpu_hour"] is not None and not options["tokens"]:
        raise UsageError("a price alone costs nothing", where="--price-per-gpu-hour", what_next="add --tokens")
    assumptions = Assumptions(
        gpu=known_gpu(options["gpu"]),
        efficiency=DEFAULT_EFFICIENCY if options["efficiency"] is None else options["efficiency"],
        gpus_per_node=options["gpus_per_node"],
        network_bytes_per_second=options["network_gbs"] * 1e9,
    )
    layout.plan.check_preset(layout.preset)
    layout.recipe.check(layout.plan, layout.preset, is_simulated=False)
    if emit:  # also of what no estimate knows
        click.echo(
            launch_script(
                emit, name, layout.plan, layout.preset, layout.recipe, gpus_per_node=assumptions.gpus_per_node
            ),
            nl=False,
        )
        return
    estimated = estimate(layout.plan, layout.preset, layout.recipe, assumptions)
    cost = None
    if options["tokens"]:
        cost = training_cost(
            num_parameters=estimated.num_parameters,
            num_tokens=parse_amount(options["tokens"], option="--tokens"),
            tokens_per_second=estimated.tokens_per_second,
            num_gpus=layout.plan.world_size,
            price_per_gpu_hour=options["price_per_gpu_hour"],
        )
    document = plan_document(name, layout.plan, layout.preset, layout.recipe, assumptions, estimated, cost)
    if as_json:
        click.echo(json.dumps(document, indent=1))
    else:
        print_plan(document)
