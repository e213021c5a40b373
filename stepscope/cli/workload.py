"""How do reference workloads run from the command line? `stepscope workload run gpt --preset tiny --pp 2 ...`"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from stepscope.core.errors import UsageError

if TYPE_CHECKING:
    from stepscope.reference_workloads.job import Progress
    from stepscope.reference_workloads.launch import WorkloadResult
    from stepscope.reference_workloads.plan import ParallelPlan

SCHEMA = "stepscope.workload/1"
_WORKLOADS = ("gpt",)


@click.group()
def command() -> None:
    """Run reference training with known bottlenecks."""


@command.command("run")
@click.argument("name")
@click.option("--preset", default="tiny", show_default=True, help="Model and batch: tiny, one-gpu, two-gpu.")
@click.option("--tp", default=1, show_default=True, help="Tensor parallel size.")
@click.option("--pp", default=1, show_default=True, help="Pipeline parallel size.")
@click.option("--dp", default=1, show_default=True, help="Data parallel size.")
@click.option("--zero", type=int, help="What dp shards, 0 to 3.  [default: 2 with dp > 1]")
@click.option("--schedule", default="1f1b", show_default=True, help="gpipe, 1f1b, interleaved or zero-bubble.")
@click.option("--micro-batches", type=int, help="Parts of each rank's batch.  [default: pp]")
@click.option(
    "--layers",
    metavar="N[,N...]",
    help="Layers of the model, or of each pipeline stage (1,1,1,2: a heavy last one).  [default: the preset's]",
)
@click.option(
    "--simulate-compute", default=0.0, metavar="MS", help="Each layer sleeps MS forwards and twice that backwards."
)
@click.option("--steps", default=9, show_default=True, help="Optimizer steps.")
@click.option("--out", default="runs", show_default=True, type=click.Path(file_okay=False), help="Folder of all runs.")
@click.option("--run-name", help="Folder inside --out.  [default: preset, layout and time]")
@click.option("--no-profile", is_flag=True, help="Train only; write no files.")
@click.option("--seed", default=0, show_default=True, help="Decides weights and data.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--json", "as_json", is_flag=True, help=f"Print one {SCHEMA} document.")
def run_command(name: str, as_json: bool, **options: Any) -> None:
    """Train workload NAME (gpt), profiled, on as many processes as tp x pp x dp.

    Under torchrun this process is one rank. Ends with 4 when a rank dies.
    """
    from stepscope.reference_workloads.launch import run_gpt
    from stepscope.reference_workloads.plan import ParallelPlan, find_preset

    if name not in _WORKLOADS:
        raise UsageError(f"there is no workload {name!r}", what_next=f"choose one of {', '.join(_WORKLOADS)}")
    layers = _numbers(options["layers"])
    preset = find_preset(options["preset"])
    plan = ParallelPlan(
        **{key: options[key] for key in ("tp", "pp", "dp", "zero", "schedule", "micro_batches")},
        stage_layers=layers if layers is not None and len(layers) > 1 else None,
    )
    result = run_gpt(
        plan,
        out=options["out"],
        run=options["run_name"],
        preset=preset if layers is None else replace(preset, num_layers=sum(layers)),
        num_steps=options["steps"],
        simulate_compute_ms=options["simulate_compute"],
        profiled=not options["no_profile"],
        seed=options["seed"],
        device=options["device"],
        on_progress=_show_progress,
    )
    if "WORLD_SIZE" in os.environ and int(os.environ.get("RANK", "0")) != 0:  # under torchrun one rank speaks for all
        return
    if as_json:
        document = _document(name, options["preset"], plan, result, profiled=not options["no_profile"])
        click.echo(json.dumps(document, indent=1))
    else:
        where = "not profiled" if options["no_profile"] else str(result.run_dir)
        click.echo(f"{where}\nloss {result.first_loss:.4f} -> {result.last_loss:.4f} in {len(result.losses)} steps")


def _numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise UsageError(
            f"a number of layers, or one for each stage with commas between, not {text!r}", where="--layers"
        )
    return tuple(map(int, parts))


def _show_progress(progress: Progress) -> None:
    click.echo(f"step {progress.step:3d}  loss {progress.loss:.4f}  {progress.step_ms:8.1f} ms", err=True)


def _document(name: str, preset: str, plan: ParallelPlan, result: WorkloadResult, *, profiled: bool) -> dict[str, Any]:
    warnings = []
    if result.last_loss >= result.first_loss:
        warnings.append({"code": "loss_not_falling", "message": "the last step's loss is not below the first one's"})
    return {
        "schema": SCHEMA,
        "workload": name,
        "preset": preset,
        "plan": {
            "tp": plan.tp,
            "pp": plan.pp,
            "dp": plan.dp,
            "zero": plan.zero,
            "schedule": plan.schedule if plan.pp > 1 else None,
            "micro_batches": plan.micro_batches,
            "stage_layers": plan.stage_layers,
        },
        "world_size": plan.world_size,
        "device": result.device_type,
        "run_dir": str(result.run_dir) if profiled else None,
        "first_loss": result.first_loss,
        "last_loss": result.last_loss,
        "losses": result.losses,
        "warnings": warnings,
    }
