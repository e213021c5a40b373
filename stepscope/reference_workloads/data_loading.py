"""Training data and its loader: seeded text, synthetic images, and JPEG files that loader workers really decode.

In the text the next token is mostly a fixed function of the last one, so that there is something to learn.
"""

from __future__ import annotations

import ctypes
import functools
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from stepscope.core.errors import DataError, StepscopeError, UsageError, from_os_error
from stepscope.core.text.numbers import counted
from stepscope.reference_workloads.job import TrainingJob
from stepscope.reference_workloads.placement import naming_option
from stepscope.reference_workloads.plan import Preset
from stepscope.reference_workloads.processes import die_with_rank

_SURPRISE = 0.1  # share of tokens that follow no rule, so that the loss has a floor above zero


class SyntheticText(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Synthetic training data: sequences of token ids. Item i depends on the seed and i alone.

    `first` is the number of sequences that an earlier run has seen.
    """

    def __init__(self, preset: Preset, *, num_sequences: int, seed: int, first: int = 0) -> None:
        self._preset = preset
        self._num_sequences = num_sequences
        self._seed = seed
        self._first = first
        generator = torch.Generator().manual_seed(seed)
        self._follower = torch.randperm(preset.vocab_size, generator=generator)

    def __len__(self) -> int:
        return self._num_sequences

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(inputs, targets), each (sequence_length,) of int64; targets are the inputs one token later."""
        length = self._preset.sequence_length + 1
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._first + index)
        surprises = torch.randint(self._preset.vocab_size, (length,), generator=generator).tolist()
        surprised = (torch.rand(length, generator=generator) < _SURPRISE).tolist()
        follower = self._follower.tolist()
        tokens = [surprises[0]]
        for place in range(1, length):
            tokens.append(surprises[place] if surprised[place] else follower[tokens[-1]])
        sequence = torch.tensor(tokens)
        return sequence[:-1], sequence[1:]


def make_loader(
    job: TrainingJob, *, dp_rank: int, first_step: int = 0
) -> DataLoader[tuple[torch.Tensor, torch.Tensor]]:
    """Make a training rank's DataLoader; together the data-parallel ranks see each sequence once.

    `first_step` steps' batches are left out: an earlier run has trained on them.
    """
    preset, recipe = job.preset, job.recipe
    num_sequences = preset.batch_size * job.num_steps
    first = preset.batch_size * first_step
    dataset: Any
    if preset.image is None:
        dataset = SyntheticText(preset, num_sequences=num_sequences, seed=job.seed, first=first)
    else:
        dataset = image_dataset(preset, recipe.data_dir, num_images=num_sequences, seed=job.seed, first=first)
    for injection in job.injections:
        dataset = injection.dataset(dataset, job=job, dp_rank=dp_rank)
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, num_replicas=job.plan.dp, rank=dp_rank, shuffle=False
    )
    return DataLoader(
        dataset,
        batch_size=preset.batch_size // job.plan.dp,
        sampler=sampler,
        num_workers=recipe.num_loader_workers(preset),
        prefetch_factor=recipe.loader_prefetch,
        worker_init_fn=functools.partial(die_with_rank, os.getpid()),
        pin_memory=job.device_type == "cuda" and recipe.loader_pins_memory,
    )


def batches(loader: Iterable[Any]) -> Iterator[Any]:
    """Batches of a workload's DataLoader; errors of its worker processes are raised as they were.

    torch raises a worker's error anew, of the same kind, with the worker's whole traceback for its text. That one's
    last line has kind and text of the error.
    """
    try:
        yield from loader
    except StepscopeError as error:
        if not error.what.startswith("Caught "):
            raise
        last_line = error.what.strip().splitlines()[-1]
        raise type(error)(last_line.partition(": ")[2]) from error


_NUM_POOLED = 32  # synthetic images in memory: drawing each anew would make the loader the limit
_MAX_CLASSES = 16  # that are made: the head may have more
_NUM_PER_CLASS = 16
_LANDSCAPE = (500 / 224, 375 / 224)  # ImageNet's usual file, in units of what is cut from it
_QUALITY = 90
_MIN_SHARE = 0.35  # of the file's shorter side that a crop takes, as the square root of the usual 8 % of its area
_SUFFIXES = {".jpg", ".jpeg"}


class SyntheticImages(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Synthetic training images: noise with stripes by class. Item i depends on the seed and i alone."""

    def __init__(self, preset: Preset, *, num_images: int, seed: int, first: int = 0) -> None:
        self._num_images = num_images
        self._first = first
        size = preset.image.size if preset.image is not None else 0
        generator = torch.Generator().manual_seed(seed)
        self._classes = torch.arange(_NUM_POOLED) % min(preset.vocab_size, _MAX_CLASSES)
        self._pool = torch.stack([_draw(int(label), size, size, generator) for label in self._classes])
        self._order = torch.randperm(_NUM_POOLED, generator=generator)

    def __len__(self) -> int:
        return self._num_images

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(image, class): (3, size, size) of uint8, and a whole number."""
        place = self._order[(self._first + index) % _NUM_POOLED]
        return self._pool[place], self._classes[place]


class JpegImages(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Training images from JPEG files, a folder a class; read, decoded, cropped, resized, perhaps mirrored."""

    def __init__(self, preset: Preset, folder: Path, *, num_images: int, seed: int, first: int = 0) -> None:
        _import_pillow()
        self._size = preset.image.size if preset.image is not None else 0
        self._num_images = num_images
        self._seed = seed
        self._first = first
        self._files = _labelled_files(preset, folder)

    def __len__(self) -> int:
        return self._num_images

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(image, class): (3, size, size) of uint8, and a whole number.

        Raises:
            DataError: the file cannot be read or decoded.
        """
        index += self._first
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        path, label = self._files[int(torch.randint(len(self._files), (), generator=generator))]
        share, left, top, mirror = torch.rand(4, generator=generator).tolist()
        pillow = _import_pillow()
        try:
            with pillow.open(path) as file:
                image = file.convert("RGB")
        except (OSError, SyntaxError) as error:
            raise DataError(
                f"is not an image that can be decoded ({error})", where=str(path), what_next="replace or remove it"
            ) from error
        side = min(image.size) * (_MIN_SHARE + (1 - _MIN_SHARE) * share)
        left, top = left * (image.width - side), top * (image.height - side)
        image = image.resize((self._size, self._size), pillow.Resampling.BILINEAR, (left, top, left + side, top + side))
        if mirror < 0.5:
            image = image.transpose(pillow.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return pixels.view(self._size, self._size, 3).permute(2, 0, 1), torch.tensor(label)


def image_dataset(
    preset: Preset, data_dir: str | None, *, num_images: int, seed: int, first: int = 0
) -> Dataset[tuple[torch.Tensor, torch.Tensor]]:
    """Training images of a folder, which is filled first where it is empty, or synthetic ones."""
    if data_dir is None:
        return SyntheticImages(preset, num_images=num_images, seed=seed, first=first)
    write_images(preset, Path(data_dir), seed=seed)
    return JpegImages(preset, Path(data_dir), num_images=num_images, seed=seed, first=first)


def _labelled_files(preset: Preset, folder: Path) -> list[tuple[Path, int]]:
    """The folder's JPEG files, each with the number of its class.

    Raises:
        DataError: there are none, or they cannot be listed.
        UsageError: there are more classes than the model has.
    """
    try:
        labels = sorted(path.name for path in folder.iterdir() if path.is_dir())
        files = [(path, number) for number, label in enumerate(labels) for path in _jpegs(folder / label)]
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=str(error.filename or folder)) from error
    if not files:
        raise DataError(
            "no JPEG files in folders named by their class", where=str(folder), what_next="name another folder"
        )
    if len(labels) > preset.vocab_size:
        raise UsageError(
            f"{counted(len(labels), 'class')}, but the model tells {preset.vocab_size} apart",
            where=str(folder),
            what_next="name another folder, or choose a larger preset",
        )
    return files


def check_images(preset: Preset, folder: Path) -> None:
    """Check before training that a folder of JPEG images can be used, or filled where it is empty.

    It is the ranks that fill it: drawing starts threads of torch, and a process that has some is not to be forked.

    Raises:
        DataError: it cannot be written, read, or holds no JPEG files.
        UsageError: Pillow is missing, or there are more classes than the model has.
    """
    _import_pillow()
    with naming_option(folder, "--data-dir"):
        if _is_empty(folder):
            with _beside(folder):
                return
    _labelled_files(preset, folder)


def write_images(preset: Preset, folder: Path, *, seed: int) -> None:
    """Fill an empty or missing folder with seeded JPEG training images; leave any other as it is.

    Several processes may do so at once: the folder appears whole.

    Raises:
        DataError: it cannot be written.
    """
    with naming_option(folder, "--data-dir"):
        if not _is_empty(folder):
            return
        with _beside(folder) as made:
            whole = made / "images"
            assert preset.image is not None
            width, height = (round(preset.image.size * times) for times in _LANDSCAPE)
            generator = torch.Generator().manual_seed(seed)
            for label in range(min(preset.vocab_size, _MAX_CLASSES)):
                (whole / f"{label:04d}").mkdir(parents=True)
                for number in range(_NUM_PER_CLASS):
                    pixels = _draw(label, height, width, generator).permute(1, 2, 0).contiguous()
                    # Without numpy, which torch does not need, these are the bytes of a tensor.
                    content = ctypes.string_at(pixels.data_ptr(), pixels.nbytes)
                    image = _import_pillow().frombytes("RGB", (width, height), content)
                    image.save(whole / f"{label:04d}" / f"{number:04d}.jpg", quality=_QUALITY)
            try:
                whole.replace(folder)
            except OSError:
                if not any(folder.iterdir()):  # else another process was faster
                    raise


def _is_empty(folder: Path) -> bool:
    """Or not there."""
    return not folder.exists() or not any(folder.iterdir())


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as made:
        yield Path(made)


def _draw(label: int, height: int, width: int, generator: torch.Generator) -> torch.Tensor:
    """(3, height, width) of uint8: stripes of the class's direction and colours, clouds, and a little noise."""
    rows = torch.linspace(0, 1, height)[:, None]
    columns = torch.linspace(0, 1, width)[None, :]
    angle = torch.tensor(label * torch.pi / _MAX_CLASSES)
    phases = torch.arange(3)[:, None, None] * (1 + label % 3)
    stripes = torch.sin(40 * (rows * angle.sin() + columns * angle.cos()) + phases)
    clouds = functional.interpolate(torch.randn(1, 3, 8, 8, generator=generator), (height, width), mode="bilinear")[0]
    noise = torch.randn(3, height, width, generator=generator)
    return (128 + 40 * stripes + 30 * clouds + 12 * noise).clamp(0, 255).to(torch.uint8)


def _jpegs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES)


def _import_pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError(
            "JPEG images need Pillow, which is not installed", what_next='pip install "stepscope[workloads]"'
        ) from error
    return Image
