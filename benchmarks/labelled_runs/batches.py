"""Batches of the labelled runs: a DataLoader of synthetic token ids or images, whose work and speed are known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

_POOL = 64
"""Samples that are made once; a larger data set would only cost memory."""


def tokens(length: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (_POOL, length))


def images(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (_POOL, 3, size, size), dtype=torch.uint8)


class Batches(Dataset[torch.Tensor]):
    """Data set whose items are whole batches.

    Args:
        work: what each batch costs besides, given its index.
    """

    def __init__(self, pool: torch.Tensor, batch_size: int, num_batches: int, work: Callable[[int], None]) -> None:
        self._pool, self._batch_size, self._num_batches, self._work = pool, batch_size, num_batches, work

    def __len__(self) -> int:
        return self._num_batches

    def __getitem__(self, index: int) -> torch.Tensor:
        self._work(index)
        return batch_of(self._pool, index, self._batch_size)


def batch_of(pool: torch.Tensor, first: int, size: int) -> torch.Tensor:
    """So many samples of a pool, the first of them again after its last."""
    return pool[torch.arange(first, first + size) % len(pool)]


def _nothing(_index: int) -> None:
    """No work besides."""


@dataclass(slots=True)
class Source:
    """Where a job's batches come from."""

    pool: torch.Tensor
    batch_size: int

    def batch(self) -> torch.Tensor:
        """One batch, made at once."""
        return batch_of(self.pool, 0, self.batch_size)

    def loader(
        self, num_batches: int, work: Callable[[int], None] | None = None, num_workers: int = 2, **options: Any
    ) -> Iterable[torch.Tensor]:
        """A DataLoader into pinned memory; `work` is done for each batch, where the batch is made."""
        data = Batches(self.pool, self.batch_size, num_batches, work or _nothing)
        is_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return DataLoader(data, batch_size=None, num_workers=num_workers, pin_memory=is_cuda, **options)


def sleeping(seconds: float, period: int = 1) -> Callable[[int], None]:
    """Work that waits, as for a disk, in the last of every so many batches."""
    return lambda index: time.sleep(seconds) if index % period == period - 1 else None
