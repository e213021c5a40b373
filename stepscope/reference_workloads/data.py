"""What does the model learn? A seeded language whose next token is mostly a fixed function of the last."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from stepscope.core.errors import StepscopeError
from stepscope.reference_workloads.images import image_dataset
from stepscope.reference_workloads.job import TrainingJob
from stepscope.reference_workloads.orphans import die_with_rank
from stepscope.reference_workloads.presets import Preset

_SURPRISE = 0.1  # share of tokens that follow no rule, so that the loss has a floor above zero


class SyntheticText(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Sequences of token ids. Item i depends on the seed and i alone, so every layout trains on the same batches.

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
    """A DataLoader of this data-parallel rank's batches; together the ranks see each sequence once.

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
    """The loader's batches; what one of its workers refuses is raised in its own words.

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
