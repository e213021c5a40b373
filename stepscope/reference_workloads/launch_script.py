"""Script that runs a plan on many machines, by torchrun or under Slurm."""

from __future__ import annotations

from dataclasses import fields
from shlex import join

from stepscope.core.errors import UsageError
from stepscope.core.text.numbers import counted
from stepscope.reference_workloads.plan import ParallelPlan, Preset, find_preset
from stepscope.reference_workloads.recipe import Recipe

_TORCHRUN = """\
#!/usr/bin/env bash
# {summary}
# {where}
set -euo pipefail
exec torchrun --nnodes={nodes} --nproc-per-node={gpus} --rdzv-backend=c10d --rdzv-id=stepscope \\
  --rdzv-endpoint="${{HEAD:-localhost}}:${{PORT:-29500}}" \\
  -m {command}
"""
_SLURM = """\
#!/usr/bin/env bash
#SBATCH --job-name=stepscope-{workload}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --cpus-per-task={cpus}
#SBATCH --exclusive
#SBATCH --time=00:30:00
#SBATCH --output=%x-%j.log
# {summary}
set -euo pipefail
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export HEAD
srun --kill-on-bad-exit=1 torchrun --nnodes={nodes} --nproc-per-node={gpus} --rdzv-backend=c10d \\
  --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$HEAD:29500" \\
  -m {command}
"""
_WHERE_MANY = "Run it on each of the {nodes} machines with HEAD set to the first one's address."
_CPUS_PER_GPU = 8


def launch_script(
    kind: str, workload: str, plan: ParallelPlan, preset: Preset, recipe: Recipe, *, gpus_per_node: int
) -> str:
    """A script that trains a workload's plan by "torchrun" or "slurm", on whole machines.

    Raises:
        UsageError: the plan does not fill its machines, or cuts a tensor-parallel group in two; or `workload run` has
            no option for what the recipe asks.
    """
    gpus = min(plan.world_size, gpus_per_node)
    if plan.world_size % gpus:
        raise UsageError(
            f"{plan.world_size} ranks do not fill machines of {gpus} GPUs",
            what_next="change the sizes or --gpus-per-node",
        )
    if gpus % plan.tp:
        raise UsageError(
            f"a tensor-parallel group of {plan.tp} would be cut between machines of {counted(gpus, 'GPU')}",
            what_next="choose a --tp that divides --gpus-per-node",
        )
    nodes = plan.world_size // gpus
    size = f"tp {plan.tp} x pp {plan.pp} x dp {plan.dp} = {counted(plan.world_size, 'GPU')}"
    template = {"torchrun": _TORCHRUN, "slurm": _SLURM}[kind]
    return template.format(
        workload=workload,
        nodes=nodes,
        gpus=gpus,
        cpus=gpus * _CPUS_PER_GPU,
        summary=f"{workload} {preset.name}: {size}",
        where=_WHERE_MANY.format(nodes=nodes) if nodes > 1 else "Run it on the machine as it is.",
        command=join(["stepscope", "workload", "run", workload, *_arguments(workload, plan, preset, recipe)]),
    )


_SWITCHES = {
    "overlaps_reduction": "--no-overlap",
    "prefetches": "--no-prefetch",
    "loader_pins_memory": "--no-pin-memory",
    "compiles": "--compile",
    "sequence_parallel": "--sequence-parallel",
    "loss_parallel": "--loss-parallel",
    "replicate": "--replicate",
    "cpu_offload": "--cpu-offload",
}
"""Options of `workload run` without a value, by the field whose default they turn round."""

_WITHOUT_OPTION = frozenset({"loss_scale_growth_interval"})


def _arguments(workload: str, plan: ParallelPlan, preset: Preset, recipe: Recipe) -> list[str]:
    """Options of `workload run` for this plan; those at their defaults are left out."""
    known = find_preset(preset.name, workload)
    arguments = ["--preset", preset.name, "--device", "cuda"]
    if plan.stage_layers is not None:
        arguments += ["--layers", ",".join(map(str, plan.stage_layers))]
    elif preset.num_layers != known.num_layers:
        arguments += ["--layers", str(preset.num_layers)]
    if preset.dtype != known.dtype:
        arguments += ["--dtype", preset.dtype]
    for options in (plan, recipe):
        for field in fields(options):
            value = getattr(options, field.name)
            if field.name == "stage_layers" or value == field.default or value is None:
                continue
            if field.name in _WITHOUT_OPTION:
                raise UsageError(f"`workload run` has no option for {field.name}", what_next="leave it at its default")
            switch = _SWITCHES.get(field.name)
            arguments += ["--" + field.name.replace("_", "-"), str(value)] if switch is None else [switch]
    return arguments
