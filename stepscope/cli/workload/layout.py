"""Options of model, parallel layout and training recipe, shared by the verbs that train or plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import click

from stepscope.cli.options import FOLDER
from stepscope.core.errors import UsageError
from stepscope.core.text.numbers import unknown_name

if TYPE_CHECKING:
    from stepscope.reference_workloads.plan import ParallelPlan, Preset
    from stepscope.reference_workloads.recipe import Recipe

WORKLOADS = ("gpt", "llama", "resnet50")

_PLAN_OPTIONS = (
    click.option("--tp", default=1, help="Tensor parallel size."),
    click.option("--pp", default=1, help="Pipeline parallel size."),
    click.option("--dp", default=1, help="Data parallel size."),
    click.option("--zero", type=int, help="ZeRO stage of data parallelism, 0 to 3.  [default: 2 with dp > 1]"),
    click.option(
        "--schedule",
        default="1f1b",
        help="Pipeline schedule: gpipe, 1f1b, looped-bfs, interleaved, zero-bubble, zbv or dualpipe-v.",
    ),
    click.option("--micro-batches", type=int, help="Split each rank's batch into so many.  [default: by the schedule]"),
    click.option("--sequence-parallel", is_flag=True, help="Shard the sequence over tp between the matrix products."),
    click.option("--loss-parallel", is_flag=True, help="Shard the vocabulary over tp, up to the loss."),
    click.option("--replicate", is_flag=True, help="With --zero 0, use torch's replicate instead of DDP."),
    click.option("--cpu-offload", is_flag=True, help="Keep parameters and optimizer in host memory (--zero 2 or 3)."),
)
_RECIPE_OPTIONS = (
    click.option("--activation-checkpointing", default="none", help="Recompute activations: none, selective or full."),
    click.option("--max-gradient-norm", type=float, help="Clip gradients to this norm.  [default: never]"),
    click.option("--bucket-mb", type=float, help="Size of DDP's gradient buckets in MiB.  [default: torch's own]"),
    click.option("--checkpoint-every", type=int, metavar="STEPS", help="Write a checkpoint every so many steps."),
    click.option("--checkpoint-mode", default="sync", help="Write checkpoints sync or async."),
    click.option("--resume-from", metavar="DIR", help="Resume from a run's checkpoints/step{n} folder."),
    click.option(
        "--no-overlap",
        "overlaps_reduction",
        flag_value=False,
        default=True,
        show_default=False,
        help="Do not overlap gradient reduction with compute.",
    ),
    click.option(
        "--no-prefetch",
        "prefetches",
        flag_value=False,
        default=True,
        show_default=False,
        help="Gather FSDP weights only when they are needed.",
    ),
    click.option("--compile", "compiles", is_flag=True, help="Compile the blocks with torch.compile."),
    click.option("--initial-loss-scale", default=65536.0, help="Start float16's dynamic loss scale here."),
    click.option("--loader-workers", type=int, help="Number of DataLoader workers per rank.  [default: the preset's]"),
    click.option("--loader-prefetch", type=int, help="Batches that each worker prefetches.  [default: torch's own]"),
    click.option(
        "--no-pin-memory",
        "loader_pins_memory",
        flag_value=False,
        default=True,
        show_default=False,
        help="Keep batches for a GPU in pageable memory.",
    ),
    click.option("--data-dir", type=FOLDER, help="JPEG images of resnet50, made if empty.  [default: synthetic]"),
)
_MODEL_OPTIONS = (
    click.option("--dtype", help="Dtype of matrix products: float32, bfloat16 or float16.  [default: the preset's]"),
    click.option("--preset", default="tiny", help="Model and batch: tiny, one-gpu, two-gpu, node, cluster."),
    click.option(
        "--layers",
        metavar="N[,N...]",
        help="Layers of the model, or of each stage, as 1,1,1,2.  [default: the preset's]",
    ),
)


@dataclass(frozen=True, slots=True)
class WorkloadLayout:
    """Preset, parallel plan and recipe from command-line options."""

    preset: Preset
    plan: ParallelPlan
    recipe: Recipe


def layout_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the command-line options of a workload's model, parallel layout and recipe."""
    for option in reversed(_MODEL_OPTIONS + _PLAN_OPTIONS + _RECIPE_OPTIONS):
        function = option(function)
    return function


def read_layout(workload: str, options: dict[str, Any]) -> WorkloadLayout:
    """Take the values of `layout_options` out of a command's options, as a layout.

    Raises:
        UsageError: there is no such workload or preset, or the values do not fit together.
    """
    from stepscope.reference_workloads.plan import ParallelPlan, find_preset
    from stepscope.reference_workloads.recipe import Recipe

    if workload not in WORKLOADS:
        raise unknown_name("workload", workload, WORKLOADS)
    layers = _numbers(options.pop("layers"))
    preset = find_preset(options.pop("preset"), workload)
    if preset.image is not None and options["zero"] is None:
        options["zero"] = 0
    plan = ParallelPlan(
        **_taken(options, ParallelPlan), stage_layers=layers if layers is not None and len(layers) > 1 else None
    )
    recipe = Recipe(**_taken(options, Recipe))
    preset = replace(preset, dtype=options.pop("dtype") or preset.dtype)
    return WorkloadLayout(preset if layers is None else replace(preset, num_layers=sum(layers)), plan, recipe)


def _taken(options: dict[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Remove the options that are fields of a dataclass."""
    return {field.name: options.pop(field.name) for field in fields(kind) if field.name in options}


def _numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise UsageError(
            f"a number of layers, or one for each stage with commas between, not {text!r}", where="--layers"
        )
    return tuple(map(int, parts))
