"""`stepscope workload plan` and `run`: the estimate of a workload, and one profiled training run of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from stepscope.cli.options import FOLDER
from stepscope.cli.workload.layout import WorkloadLayout, layout_options, read_layout
from stepscope.core.errors import UsageError
from stepscope.core.text.numbers import counted

if TYPE_CHECKING:
    from stepscope.reference_workloads.job import TrainingProgress
    from stepscope.reference_workloads.launch import WorkloadResult


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
def plan_command(name: str, as_json: bool, emit: str | None, **options: Any) -> None:
    """Estimate memory, FLOPs, communication, bubble, step time and cost of workload NAME (gpt or llama)."""
    from stepscope.cli.terminal.workload import print_plan
    from stepscope.reference_workloads.estimate import estimate as planning
    from stepscope.reference_workloads.launch_script import launch_script

    layout = read_layout(name, options)
    if options["price_per_gpu_hour"] is not None and not options["tokens"]:
        raise UsageError("a price alone costs nothing", where="--price-per-gpu-hour", what_next="add --tokens")
    assumptions = planning.Assumptions(
        gpu=planning.known_gpu(options["gpu"]),
        efficiency=planning.DEFAULT_EFFICIENCY if options["efficiency"] is None else options["efficiency"],
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
    estimated = planning.estimate(layout.plan, layout.preset, layout.recipe, assumptions)
    cost = None
    if options["tokens"]:
        cost = planning.training_cost(
            num_parameters=estimated.num_parameters,
            num_tokens=planning.parse_num_tokens(options["tokens"], option="--tokens"),
            tokens_per_second=estimated.tokens_per_second,
            num_gpus=layout.plan.world_size,
            price_per_gpu_hour=options["price_per_gpu_hour"],
        )
    document = planning.plan_document(name, layout.plan, layout.preset, layout.recipe, assumptions, estimated, cost)
    if as_json:
        click.echo(json.dumps(document, indent=1))
    else:
        print_plan(document)


RUN_SCHEMA = "stepscope.workload/1"


@click.command("run")
@click.argument("name")
@layout_options
@click.option(
    "--inject",
    "injections",
    multiple=True,
    metavar="FAULT[:FIELD=VALUE,...]",
    help="Inject a fault of `stepscope workload faults`, such as slow_loader:milliseconds_per_item=5; repeatable.",
)
@click.option("--control", "as_control", is_flag=True, help="Train the same job without the faults.")
@click.option("--simulate-compute", default=0.0, metavar="MS", help="Let layers sleep MS forward and 2 MS backward.")
@click.option("--steps", default=9, help="Train for this many optimizer steps.")
@click.option("--out", default="runs", type=FOLDER, help="Write the run into this folder of runs.")
@click.option("--run-name", help="Name the run.  [default: preset, layout and time]")
@click.option("--no-profile", is_flag=True, help="Train only; write nothing but checkpoints.")
@click.option("--seed", default=0, help="Seed of weights and data.")
@click.option("--device", default="auto", help="Train on auto, cpu or cuda.")
@click.option("--against-plan", "with_plan", is_flag=True, help="Compare with the estimate of `plan` (GPUs only).")
@click.option("--json", "as_json", is_flag=True, help=f"Print one {RUN_SCHEMA} document.")
def run_command(name: str, as_json: bool, **options: Any) -> None:
    """Train workload NAME (gpt, llama or resnet50), profiled, on as many processes as tp x pp x dp.

    Under torchrun this process is one rank. Exits with status 4 when a rank dies.
    """
    import msgspec

    from stepscope.reference_workloads.injections.catalogue import parse_injection
    from stepscope.reference_workloads.launch import run_workload
    from stepscope.reference_workloads.placement import is_main_rank

    if options["with_plan"]:
        _check_gpu(options["device"])
    layout = read_layout(name, options)
    result = run_workload(
        layout.plan,
        out=options["out"],
        run=options["run_name"],
        preset=layout.preset,
        recipe=layout.recipe,
        injections=[parse_injection(text) for text in options["injections"]],
        as_control=options["as_control"],
        num_steps=options["steps"],
        simulate_compute_ms=options["simulate_compute"],
        profiled=not options["no_profile"],
        seed=options["seed"],
        device=options["device"],
        on_progress=_show_progress,
    )
    if not is_main_rank():  # under torchrun one rank speaks for all
        return
    rows = None
    if options["with_plan"]:
        rows = _rows_against_plan(result, profiled=not options["no_profile"])
    if as_json:
        document = _run_document(name, layout, result, profiled=not options["no_profile"])
        document["injections"] = [] if options["as_control"] else list(options["injections"])
        document["against_plan"] = rows
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=1))  # NaN becomes null
    else:
        where = "not profiled" if options["no_profile"] else str(result.run_dir)
        click.echo(
            f"{where}\nloss {result.first_loss:.4f} -> {result.last_loss:.4f} in {counted(len(result.losses), 'step')}"
        )
        if rows is not None:
            from stepscope.cli.terminal.workload import print_against_plan

            print_against_plan(rows)


def _check_gpu(device: str) -> None:
    """Raise UsageError when the run would be on the CPU."""
    if device == "cpu":
        raise UsageError(
            "a plan is an estimate for GPUs, which a run on the CPU cannot confirm", where="--against-plan"
        )
    import torch

    if not torch.cuda.is_available():
        raise UsageError(
            "torch finds no CUDA device here, and a plan is for GPUs", where="--against-plan", what_next="leave it out"
        )


def _show_progress(progress: TrainingProgress) -> None:
    click.echo(f"step {progress.step:3d}  loss {progress.loss:.4f}  {progress.step_ms:8.1f} ms", err=True)


def _run_document(name: str, layout: WorkloadLayout, result: WorkloadResult, *, profiled: bool) -> dict[str, Any]:
    plan = layout.plan
    warnings = []
    num_steps, num_skipped = len(result.losses), result.outcomes[0].num_skipped_steps
    if num_skipped == num_steps:
        skipped = "its one step" if num_steps == 1 else f"all {counted(num_steps, 'step')}"
        warnings.append(
            {
                "code": "all_steps_skipped",
                "message": f"gradients overflowed in {skipped}, so nothing was learned: the loss scale is still"
                f" {result.outcomes[0].loss_scale:g}; begin lower with --initial-loss-scale, or take more --steps",
            }
        )
    if not result.last_loss < result.first_loss:  # a loss that is no number does not fall either
        warnings.append({"code": "loss_not_falling", "message": "the last step's loss is not below the first one's"})
    return {
        "schema": RUN_SCHEMA,
        "workload": name,
        "preset": layout.preset.name,
        "dtype": layout.preset.dtype,
        "plan": {**asdict(plan), "schedule": plan.schedule if plan.pp > 1 else None},
        "world_size": plan.world_size,
        "device": result.device_type,
        "run_dir": str(result.run_dir) if profiled else None,
        "first_loss": result.first_loss,
        "last_loss": result.last_loss,
        "losses": result.losses,
        "gradient_norms": result.outcomes[0].gradient_norms,
        "loss_scale": result.outcomes[0].loss_scale,
        "skipped_steps": result.outcomes[0].num_skipped_steps,
        "step_ms": result.step_seconds * 1e3,
        "tokens_per_second": result.tokens_per_second,
        "ranks": [
            {
                "rank": rank,
                "step_ms": [seconds * 1e3 for seconds in outcome.step_seconds],
                "peak_allocated_bytes": outcome.peak_allocated_bytes,
                "peak_reserved_bytes": outcome.peak_reserved_bytes,
            }
            for rank, outcome in enumerate(result.outcomes)
        ],
        "warnings": warnings,
    }


def _rows_against_plan(result: WorkloadResult, *, profiled: bool) -> list[dict[str, Any]]:
    """Command `workload run --against-plan`: its rows: what, unit, planned, measured, ratio.

    Raises:
        UsageError: the estimate does not know the layout or the GPU.
        DataError: the run's traces cannot be analysed.
    """
    import torch

    from stepscope.reference_workloads.estimate import estimate as planning

    job = result.job
    gpu = planning.known_gpu(torch.cuda.get_device_name())
    planned = planning.estimate(job.plan, job.preset, job.recipe, planning.Assumptions(gpu))
    flops = _measured_flops(result, gpu.peak_flops(job.preset.dtype)) if profiled else None
    rows = planning.compare_with_run(planned, result, flops_per_rank=flops)
    return [asdict(row) | {"ratio": row.ratio} for row in rows]


def _measured_flops(result: WorkloadResult, peak_flops: float | None) -> float | None:
    """What the analysis counts: its MFU is of the captured step."""
    from stepscope.workflow.analyze import analyze

    job = analyze([str(result.run_dir)], keep=False).analysis.job
    if job.mfu is None or job.step_ms is None or peak_flops is None:
        return None
    return job.mfu * peak_flops * job.step_ms / 1e3
