"""Does a run go on from a checkpoint as if it had never stopped, also in another layout?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.reference_workloads import ParallelPlan, WorkloadResult, run_workload
from stepscope.reference_workloads.presets import find_preset
from stepscope.reference_workloads.processes import RankFailedError
from stepscope.reference_workloads.recipe import Recipe

pytest.importorskip("torch")


def _trained(
    plan: ParallelPlan, recipe: Recipe, out: Path, *, num_steps: int, dtype: str = "float32"
) -> WorkloadResult:
    preset = replace(find_preset("tiny"), dtype=dtype)
    return run_workload(
        plan, recipe=recipe, preset=preset, profiled=False, device="cpu", out=out, run="r", num_steps=num_steps
    )


@pytest.mark.parametrize(
    ("plan", "mode", "dtype"),
    [
        (ParallelPlan(tp=2, dp=2, zero=0), "sync", "float32"),
        (ParallelPlan(pp=2, dp=2, schedule="zero-bubble"), "async", "float32"),
        (ParallelPlan(dp=2, zero=1), "async", "float16"),
    ],
    ids=str,
)
def test_losses_go_on_exactly_and_in_one_process_nearly(
    plan: ParallelPlan, mode: str, dtype: str, tmp_path: Path
) -> None:
    written = Recipe(checkpoint_every=2, checkpoint_mode=mode)
    whole = _trained(plan, written, tmp_path, num_steps=4, dtype=dtype)
    assert sorted(path.name for path in (tmp_path / "r" / "checkpoints").iterdir()) == ["step2", "step4"]
    resumed = Recipe(resume_from=str(tmp_path / "r" / "checkpoints" / "step2"))
    assert _trained(plan, resumed, tmp_path, num_steps=2, dtype=dtype).losses == whole.losses[2:]
    alone = _trained(ParallelPlan(), resumed, tmp_path, num_steps=2, dtype=dtype)
    assert alone.losses == pytest.approx(whole.losses[2:], abs=2e-3)
    assert alone.outcomes[0].loss_scale == whole.outcomes[0].loss_scale


def test_a_checkpoint_of_another_model_is_named_as_such(tmp_path: Path) -> None:
    _trained(ParallelPlan(), Recipe(checkpoint_every=1), tmp_path, num_steps=1)
    resumed = Recipe(resume_from=str(tmp_path / "r" / "checkpoints" / "step1"))
    larger = replace(find_preset("tiny"), num_layers=5)
    with pytest.raises(RankFailedError, match=r"no checkpoint of this model: Missing key .*blocks\.4"):
        run_workload(ParallelPlan(), recipe=resumed, preset=larger, profiled=False, device="cpu", num_steps=1)
