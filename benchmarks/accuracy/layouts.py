"""Accuracy of parallel layouts against one process, also of those that are rejected.

Prints the rows summarized in docs/explanation/layouts.md.

    python -m benchmarks.accuracy.layouts [--only TEXT] [--device cuda]

Each layout trains the tiny model six steps, on this machine's processors or on as many GPUs as it has. Its gradients
of the first step are compared, parameter by parameter, with those of one process: the largest norm of a difference
over the norm of the reference. The loss alone is not enough: Adam hides gradients that are all too large by the same
factor. Rejected layouts are trained as well, past the check, to show why it exists.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.accuracy.gradients import GradientRecorder, largest_deviation, read_gradients
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.reference_workloads import ParallelPlan, plan, run_workload
from stepscope.reference_workloads.plan import SCHEDULES, find_preset
from stepscope.reference_workloads.recipe import Recipe

NUM_STEPS = 6
TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}
"""Relative; orders of addition differ by 1e-6 and 1e-2, what torch gets wrong by 0.5 and more."""

Gradients = dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """A layout, by the arguments of its plan."""

    sizes: dict[str, Any]
    architecture: str = "gpt"
    dtype: str = "float32"
    recipe: Recipe = field(default_factory=Recipe)

    def __str__(self) -> str:
        words = [self.architecture]
        words += [
            f"{name.replace('_', ' ')}{'' if value is True else f' {value}'}" for name, value in self.sizes.items()
        ]
        if self.dtype != "float32":
            words.append(self.dtype)
        if self.recipe != Recipe():
            words.append(f"checkpointing {self.recipe.activation_checkpointing}")
        return ", ".join(words)


def cases() -> list[Case]:
    """Every dimension alone, then together, then the options."""
    alone: list[dict[str, Any]] = [
        {"tp": 2},
        {"tp": 2, "sequence_parallel": True},
        {"tp": 2, "loss_parallel": True},
        *({"pp": 2, "schedule": schedule, "micro_batches": 4} for schedule in SCHEDULES),
        *({"dp": 2, "zero": zero, "micro_batches": 2} for zero in range(4)),
        {"dp": 2, "zero": 0, "replicate": True, "micro_batches": 2},
        {"dp": 2, "zero": 3, "cpu_offload": True},
    ]
    cube: dict[str, Any] = {"tp": 2, "pp": 2, "dp": 2, "micro_batches": 4}
    cut: dict[str, Any] = {"sequence_parallel": True, "loss_parallel": True}
    together: list[dict[str, Any]] = [
        *({**cube, "zero": zero, "schedule": schedule} for schedule in SCHEDULES for zero in range(4)),
        *({**cube, "zero": 0, "replicate": True, "schedule": schedule} for schedule in SCHEDULES),
        {**cube, "zero": 2, "cpu_offload": True},
        *({**cube, **cut, "zero": zero} for zero in (0, 1, 2)),
        {**cube, **cut, "zero": 2, "schedule": "zero-bubble"},
        {**cube, "zero": 1, "cpu_offload": True},
    ]
    interleaved: dict[str, Any] = {**cube, **cut, "schedule": "interleaved"}
    return [
        *(Case(sizes) for sizes in alone + together),
        *(Case(interleaved, recipe=Recipe(activation_checkpointing=kind)) for kind in ("selective", "full")),
        Case({**cube, "zero": 2}, dtype="bfloat16"),
        Case({**cube, **cut, "zero": 2}, "llama", dtype="bfloat16"),
        Case({"tp": 2, **cut}, "llama", dtype="bfloat16"),
        *(Case(sizes, architecture="llama") for sizes in ({"tp": 2}, {**cube, **cut}, interleaved)),
    ]


def main() -> None:
    """Train every layout and print one row each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="run layouts whose name contains this")
    parser.add_argument("--device", default="cpu", help="cuda: run layouts for which there are enough GPUs")
    arguments = parser.parse_args()
    print("| layout | here | loss after 6 steps | of one process | largest gradient deviation |")
    print("| --- | --- | --- | --- | --- |")
    chosen = [case for case in cases() if arguments.only in str(case) and _fits(case, arguments.device)]
    wrong = [str(case) for case in chosen if not _print_row(case, arguments.device)]
    if wrong:
        raise SystemExit(f"neither right nor refused: {'; '.join(wrong)}")


def _fits(case: Case, device: str) -> bool:
    num_ranks = math.prod(case.sizes.get(name, 1) for name in ("tp", "pp", "dp"))
    return device == "cpu" or num_ranks <= torch.cuda.device_count()


def _print_row(case: Case, device: str) -> bool:
    """Print a row; return whether the layout is right, or rejected."""
    is_refused = _is_refused(case)
    reference_loss, reference = _reference(case.architecture, case.dtype, device)
    here = "refused" if is_refused else "runs"
    try:
        with patch.object(plan, "refuse_unsound"):
            loss, gradients = _train(case, device)
        deviation = largest_deviation(gradients, reference)
        is_right = deviation < TOLERANCE[case.dtype]
        found = f"{loss:.4f} | {reference_loss:.4f} | {deviation:.1e}"
    except StepscopeError as error:
        is_right = False
        found = f"- | {reference_loss:.4f} | {str(error)[:160]}"
    print(f"| {case} | {here} | {found} |", flush=True)
    return is_right or is_refused


def _is_refused(case: Case) -> bool:
    try:
        ParallelPlan(**case.sizes)
    except UsageError:
        return True
    return False


@cache
def _reference(architecture: str, dtype: str, device: str) -> tuple[float, Gradients]:
    return _train(Case({}, architecture=architecture, dtype=dtype), device)


def _train(case: Case, device: str) -> tuple[float, Gradients]:
    preset = replace(find_preset("tiny"), architecture=case.architecture, dtype=case.dtype)
    with tempfile.TemporaryDirectory() as folder:
        result = run_workload(
            ParallelPlan(**case.sizes),
            preset=preset,
            recipe=case.recipe,
            injections=[GradientRecorder(folder)],
            profiled=False,
            num_steps=NUM_STEPS,
            device=device,
        )
        return result.last_loss, read_gradients(folder)


if __name__ == "__main__":
    main()
