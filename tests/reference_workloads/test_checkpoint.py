"""A run resumes from a checkpoint as if it had never stopped, also in another layout."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.errors import DataError, UsageError
from stepscope.reference_workloads import ParallelPlan, WorkloadResult, run_workload
from stepscope.reference_workloads.plan import Preset, find_preset
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


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of tiny's GPT."""
    out = tmp_path_factory.mktemp("written")
    _trained(ParallelPlan(), Recipe(checkpoint_every=1), out, num_steps=1)
    return out / "r" / "checkpoints" / "step1"


@pytest.mark.parametrize(
    ("preset", "reason"),
    [
        (replace(find_preset("tiny"), num_layers=5), r"it has no blocks\.4\."),
        (replace(find_preset("tiny"), num_layers=2), r"it has blocks\.2\.\S+, which the model has not"),
        (find_preset("tiny", "llama"), r"attention\.qkv\.weight is 192 x 64 there and 128 x 64 here"),
        (find_preset("tiny", "resnet50"), r"it has no stem\.weight"),
    ],
    ids=lambda value: value.architecture if isinstance(value, Preset) else None,
)
def test_a_checkpoint_of_another_model_is_refused_before_any_rank_starts(
    written: Path, preset: Preset, reason: str
) -> None:
    with pytest.raises(DataError, match=f"is a checkpoint of another model: .*{reason}"):
        run_workload(
            ParallelPlan(), recipe=Recipe(resume_from=str(written)), preset=preset, profiled=False, device="cpu"
        )


def test_a_damaged_index_is_refused(written: Path, tmp_path: Path) -> None:
    index = (written / ".metadata").read_bytes()
    huge = b"\x80\x05\x8e" + b"\xff" * 8  # a frame of more bytes than there are numbers
    for damaged in (b"", b"nonsense", index[: len(index) // 2], huge):
        (tmp_path / ".metadata").write_bytes(damaged)
        with pytest.raises(DataError, match=r"has a damaged \.metadata"):
            run_workload(ParallelPlan(), recipe=Recipe(resume_from=str(tmp_path)), profiled=False, device="cpu")


def test_what_an_index_says_is_not_run(written: Path, tmp_path: Path) -> None:
    """Neither as it is read, nor later, when torch reads an entry that is no tensor with a plain unpickler."""
    import torch
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    index = pickle.loads((written / ".metadata").read_bytes())
    index.state_dict_metadata["model.norm.weight"] = BytesStorageMetadata()
    marker = tmp_path / "was run"
    for name, content in {
        "posix.system": pickle.dumps(_Runs(f"touch '{marker}'")),
        "BytesStorageMetadata": pickle.dumps(index),
        "torch.serialization.load": pickle.dumps(torch.load),
    }.items():
        (tmp_path / ".metadata").write_bytes(content)
        with pytest.raises(DataError, match=rf"asks for \S*{name}, which no tensor needs; nothing of it was run"):
            run_workload(ParallelPlan(), recipe=Recipe(resume_from=str(tmp_path)), profiled=False, device="cpu")
    assert not marker.exists()


class _Runs:
    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self._command,)


def test_a_file_that_is_missing_or_cut_short_is_named_before_any_rank_starts(written: Path, tmp_path: Path) -> None:
    copy = tmp_path / "step1"
    shutil.copytree(written, copy)
    (file,) = copy.glob("*.distcp")
    os.truncate(file, 100)
    for reason in (r"has 100 bytes of [\d,]+; give another", r"cannot be read \(No such file or directory\)"):
        with pytest.raises(DataError, match=rf"step1: is not a complete checkpoint: {file.name} {reason}"):
            run_workload(ParallelPlan(), recipe=Recipe(resume_from=str(copy)), profiled=False, device="cpu")
        file.unlink(missing_ok=True)


def test_a_file_that_only_a_rank_finds_damaged_has_a_reason(written: Path, tmp_path: Path) -> None:
    copy = tmp_path / "step1"
    shutil.copytree(written, copy)
    (file,) = copy.glob("*.distcp")
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(DataError, match=r"step1: cannot be taken over: \w+(: .+)?; give one of its step folders"):
        run_workload(ParallelPlan(), recipe=Recipe(resume_from=str(copy)), profiled=False, device="cpu")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_checkpoint_that_cannot_be_written_says_why(tmp_path: Path, mode: str) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # as a full disk, but that it says it otherwise
    try:
        with pytest.raises(DataError, match=r"checkpoints: a checkpoint cannot be written: File too large; free some"):
            _trained(ParallelPlan(dp=2), Recipe(checkpoint_every=1, checkpoint_mode=mode), tmp_path, num_steps=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_checkpoints_of_another_run_are_not_written_over(written: Path) -> None:
    with pytest.raises(UsageError, match="not empty"):
        _trained(ParallelPlan(), Recipe(checkpoint_every=1), written.parents[2], num_steps=1)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process reads what ranks wrote
def test_a_resnet_goes_on_with_its_running_statistics(tmp_path: Path) -> None:
    import torch
    from torch.distributed.checkpoint.state_dict_loader import load

    preset, plan = find_preset("tiny", "resnet50"), ParallelPlan(dp=2, zero=0)
    options: dict[str, Any] = {"preset": preset, "profiled": False, "device": "cpu", "out": tmp_path}
    whole = run_workload(plan, recipe=Recipe(checkpoint_every=2), num_steps=4, run="whole", **options)
    recipe = Recipe(checkpoint_every=2, resume_from=str(tmp_path / "whole" / "checkpoints" / "step2"))
    assert run_workload(plan, recipe=recipe, num_steps=2, run="resumed", **options).losses == whole.losses[2:]
    states = []
    for run in ("whole", "resumed"):
        state = {"model.norm.running_mean": torch.zeros(8), "model.norm.num_batches_tracked": torch.tensor(0)}
        load(state, checkpoint_id=tmp_path / run / "checkpoints" / "step4", no_dist=True)
        states.append(state)
    assert states[0]["model.norm.num_batches_tracked"] == states[1]["model.norm.num_batches_tracked"] == 4
    assert torch.equal(states[0]["model.norm.running_mean"], states[1]["model.norm.running_mean"])
