"""ResNet: two ranks learn the same as one, from images that are really decoded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stepscope.core.errors import DataError, UsageError
from stepscope.core.vocabulary import Cause
from stepscope.reference_workloads import ParallelPlan, run_workload
from stepscope.reference_workloads.job import Injection, TrainingJob
from stepscope.reference_workloads.plan import find_preset
from stepscope.reference_workloads.recipe import Recipe

torch = pytest.importorskip("torch")

from torch.utils.data import Subset  # noqa: E402  # needs torch

from stepscope.reference_workloads.data_loading import (  # noqa: E402
    JpegImages,
    image_dataset,
    write_images,
)
from stepscope.reference_workloads.models.resnet import (  # noqa: E402
    ResNet,
    seeded_resnet,
    training_flops,
)

_TINY = find_preset("tiny", "resnet50")
_NUM_STEPS = 3  # the optimizer of ZeRO 1 is not fused: on some CPUs its third update differs from the fused one's


@dataclass(frozen=True, slots=True)
class _EvenItemsFirst(Injection):
    """Orders each batch so that its halves are what two data-parallel ranks take: every other item."""

    name: ClassVar[str] = "even_items_first"
    cause: ClassVar[Cause] = Cause.UNEXPLAINED
    shows: ClassVar[str] = "nothing"

    def dataset(self, dataset: Any, *, job: TrainingJob, dp_rank: int) -> Any:  # noqa: ARG002  # the hook's signature
        batches = range(0, len(dataset), _TINY.batch_size)
        return Subset(dataset, [first + k for first in batches for k in (*range(0, 8, 2), *range(1, 8, 2))])


def _losses(plan: ParallelPlan, **options: Any) -> list[float]:
    return run_workload(plan, preset=_TINY, profiled=False, num_steps=_NUM_STEPS, device="cpu", **options).losses


@pytest.fixture(scope="module")
def one_process() -> list[float]:
    """Losses of one process that norms each half of a batch by itself, as two ranks do."""
    return _losses(ParallelPlan(micro_batches=2), injections=[_EvenItemsFirst()])


@pytest.mark.parametrize(
    ("plan", "recipe"),
    [
        (ParallelPlan(dp=2, zero=0), Recipe()),
        (ParallelPlan(dp=2, zero=1), Recipe(bucket_mb=0.1)),
        (ParallelPlan(dp=2, zero=0), Recipe(overlaps_reduction=False)),
    ],
    ids=["ddp", "zero-1-small-buckets", "reduced-after"],
)
def test_two_ranks_learn_what_one_process_learns_of_their_halves(
    plan: ParallelPlan, recipe: Recipe, one_process: list[float]
) -> None:
    assert _losses(plan, recipe=recipe) == pytest.approx(one_process, abs=1e-4)


def test_weights_depend_on_the_seed_alone() -> None:
    def weights(seed: int, process_seed: int) -> dict[str, Any]:
        torch.manual_seed(process_seed)
        return dict(seeded_resnet(_TINY, seed=seed, device=torch.device("cpu")).state_dict())

    first, again, other = weights(0, 1), weights(0, 2), weights(1, 1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_halves_in_another_order_are_normed_otherwise(one_process: list[float]) -> None:
    assert _losses(ParallelPlan(micro_batches=2)) != pytest.approx(one_process, abs=1e-3)


def test_it_learns_from_jpeg_files_of_its_own_making(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    recipe = Recipe(data_dir=str(folder), loader_workers=1)
    result = run_workload(ParallelPlan(), preset=_TINY, recipe=recipe, profiled=False, num_steps=24, device="cpu")
    assert sum(result.losses[-4:]) < sum(result.losses[:4])
    files = sorted(folder.rglob("*.jpg"))
    assert len(files) == 8 * 16
    assert files[0].read_bytes()[:2] == b"\xff\xd8"  # JPEG's own mark
    before = [file.read_bytes() for file in files]
    write_images(_TINY, folder, seed=7)  # what is there stays
    assert [file.read_bytes() for file in files] == before


def test_an_item_is_a_crop_of_what_the_file_shows(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "red").mkdir()
    (tmp_path / "blue").mkdir()
    image.new("RGB", (80, 60), (200, 10, 10)).save(tmp_path / "red" / "a.jpeg")
    image.new("L", (60, 90), 50).save(tmp_path / "blue" / "b.JPG")  # grey, as some of ImageNet's
    dataset = JpegImages(_TINY, tmp_path, num_images=16, seed=0)
    seen = set()
    for index in range(len(dataset)):
        pixels, label = dataset[index]
        assert (tuple(pixels.shape), pixels.dtype) == ((3, 32, 32), torch.uint8)
        colour = torch.tensor([[50, 50, 50], [200, 10, 10]][int(label)], dtype=torch.float32)
        assert torch.allclose(pixels.float().mean(dim=(1, 2)), colour, atol=3)
        seen.add(int(label))
        assert torch.equal(pixels, dataset[index][0])
    assert seen == {0, 1}


def test_a_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.jpg").write_bytes(b"\xff\xd8 cut short")
    with pytest.raises(DataError, match=r"broken\.jpg: is not an image"):
        JpegImages(_TINY, tmp_path, num_images=1, seed=0)[0]
    (tmp_path / "a" / "broken.jpg").unlink()
    with pytest.raises(DataError, match="no JPEG files"):
        JpegImages(_TINY, tmp_path, num_images=1, seed=0)
    for label in range(9):
        (tmp_path / f"class{label}").mkdir()
    (tmp_path / "a" / "b.jpg").write_bytes(b"")
    with pytest.raises(UsageError, match="10 classes, but the model tells 8 apart"):
        JpegImages(_TINY, tmp_path, num_images=1, seed=0)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_is_no_image_is_named_by_the_run_too(tmp_path: Path, workers: int) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.jpg").write_bytes(b"\xff\xd8 cut short")
    recipe = Recipe(data_dir=str(tmp_path), loader_workers=workers)
    with pytest.raises(DataError) as refused:
        run_workload(ParallelPlan(), preset=_TINY, recipe=recipe, device="cpu", profiled=False, num_steps=1)
    assert str(refused.value).startswith(
        f"{tmp_path}/a/broken.jpg: is not an image that can be decoded (cannot identify"
    )
    assert str(refused.value).endswith("; replace or remove it")


def test_a_folder_that_cannot_be_learned_from_is_refused_before_any_rank_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.reference_workloads.launch.run_ranks", lambda *_: pytest.fail("ranks have started"))
    flat, many, file = tmp_path / "flat", tmp_path / "many", tmp_path / "file"
    flat.mkdir()
    (flat / "a.jpg").write_bytes(b"")
    for label in range(12):
        (many / f"class{label}").mkdir(parents=True)
        (many / f"class{label}" / "a.jpg").write_bytes(b"")
    file.write_text("no folder")
    for folder, kind, reason in (
        (flat, DataError, "flat: no JPEG files in folders named by their class"),
        (many, UsageError, "many: 12 classes, but the model tells 8 apart"),
        (file, DataError, r"file: cannot be written \(Not a directory\)"),
        (file / "below", DataError, r"below: cannot be written \(File exists\)"),
    ):
        with pytest.raises(kind, match=reason):
            run_workload(ParallelPlan(), preset=_TINY, recipe=Recipe(data_dir=str(folder)), device="cpu", out=tmp_path)
    assert list(tmp_path.glob("resnet50-*")) == []


def test_a_resumed_run_goes_on_with_the_next_image() -> None:
    whole = image_dataset(_TINY, None, num_images=70, seed=3)
    rest = image_dataset(_TINY, None, num_images=70, seed=3, first=8)
    for index in range(60):
        assert torch.equal(whole[index + 8][0], rest[index][0])


def test_the_whole_model_is_resnet_50() -> None:
    preset = find_preset("one-gpu", "resnet50")
    with torch.device("meta"):
        model = ResNet(preset)
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032  # as torchvision's
    # 4.09 GMAC at 224 pixels (torchvision's table), two FLOPs each, three times for training.
    assert training_flops(preset) == pytest.approx(3 * 2 * 4.09e9, rel=0.001)
    assert 0 < training_flops(_TINY) < 1e8  # whose last images are one pixel


@pytest.mark.parametrize(
    ("plan", "recipe", "reason"),
    [
        (ParallelPlan(tp=2), Recipe(), "knows no tensor parallelism: it cuts"),
        (ParallelPlan(pp=2), Recipe(), "knows no pipeline"),
        (ParallelPlan(dp=2), Recipe(), "zero 2: it means fully_shard"),
        (ParallelPlan(dp=2, zero=0, replicate=True), Recipe(), "no replicate"),
        (ParallelPlan(), Recipe(activation_checkpointing="full"), "running statistics"),
        (ParallelPlan(), Recipe(compiles=True), "only a transformer's blocks"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(plan: ParallelPlan, recipe: Recipe, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        run_workload(plan, preset=_TINY, recipe=recipe, device="cpu")


def test_text_has_no_folder_and_a_resnet_no_other_depth() -> None:
    with pytest.raises(UsageError, match="only resnet50 learns images"):
        run_workload(ParallelPlan(), recipe=Recipe(data_dir="x"), device="cpu")
    with pytest.raises(UsageError, match="4 bottlenecks has not 5 layers"):
        replace(_TINY, num_layers=5)
