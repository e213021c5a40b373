"""Low parallelism: kernels that leave most of the GPU empty. Either they are short, or their grids have few blocks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.kernels.flags import Columns, SumColumn
from stepscope.analyzer.kernels.rank_kernels import RankKernels
from stepscope.analyzer.roofline.kernel_family import Family, family_of
from stepscope.core.documents.analysis import KernelTime, Roofline
from stepscope.core.vocabulary import CATEGORY_CODE, Evidence, Reason, TimeCategory

KIND_THRESHOLD = 0.20
"""Least share of latency-bound time for a kind to be named; the larger one always is."""

_LATENCY_BOUND = Columns.CATEGORIES.start + CATEGORY_CODE[TimeCategory.LATENCY_BOUND]
_PURE = 0.9
"""Least share of a row's time in such kernels for it to stand for them: one name may have large and small grids."""
_BATCH_NORM = re.compile(r"batch_?norm|\bbn_(fw|bw)", re.IGNORECASE)
_CHANNELS_LAST = re.compile(r"channels_last|nhwc", re.IGNORECASE)
_OPERATORS = (
    (re.compile(r"attention"), Family.ATTENTION),
    (re.compile(r"conv"), Family.CONVOLUTION),
    (re.compile(r"mm|matmul|linear|einsum"), Family.MATMUL),
)
_MORE_BLOCKS = {
    Family.MATMUL: "split the products' inner dimension (split-K: torch.compile mode='max-autotune'), or join several "
    "products into one (bmm, grouped)",
    Family.CONVOLUTION: "let cuDNN look for kernels that split the reduction (torch.backends.cudnn.benchmark=True)",
    Family.ATTENTION: "split the keys over blocks (flash-decoding, num_splits)",
}
_BESIDE = "fuse these kernels with their neighbours (torch.compile), or run independent work beside them (streams)"


class LowParallelism(NamedTuple):
    """Latency-bound time of a job by kind.

    Attributes:
        short, few_blocks: shares of that time in kernels under 20 us, and in longer ones of few blocks.
        largest: the kernels of few blocks, by name or call, with most time; None without any.
    """

    short: float
    few_blocks: float
    largest: KernelTime | None = None

    def reasons(self) -> tuple[list[Reason], list[Evidence]]:
        """The kinds, the larger first, with their numbers."""
        kinds = (
            (Reason.SHORT_KERNELS, Evidence("short_kernels_share", self.short, "ratio", KIND_THRESHOLD)),
            (Reason.FEW_BLOCKS, Evidence("few_blocks_share", self.few_blocks, "ratio", KIND_THRESHOLD)),
        )
        named = sorted((kind for kind in kinds if kind[1].value >= KIND_THRESHOLD), key=lambda kind: -kind[1].value)
        evidence = [share for _, share in named]
        if self.largest is not None and self.few_blocks >= KIND_THRESHOLD:
            evidence.append(Evidence("few_blocks_grid", prod(self.largest.grid), "blocks"))
            evidence.append(Evidence("few_blocks_duration", self.largest.mean_us or 0.0, "us"))
        return [reason for reason, _ in named], evidence

    @property
    def remedies(self) -> dict[Reason, str]:
        """What gives the largest of these kernels more blocks."""
        return {} if self.largest is None else {Reason.FEW_BLOCKS: more_blocks(self.largest)}


def low_parallelism(ranks: Sequence[RankKernels], roofline: Roofline) -> LowParallelism:
    """Tell the kinds apart, by the sums over each rank's kernels, and find the largest in the kernels tables."""
    total = np.sum([rank.total for rank in ranks], axis=0)
    time = float(total[_LATENCY_BOUND])
    short = float(total[SumColumn.SHORT_NS]) / time if time else 0.0
    few_ms: Counter[str] = Counter()
    for groups in (group for rank in ranks for group in (rank.by_name, rank.by_call)):
        for key, sums in zip(groups.keys, groups.sums, strict=True):
            few_ms[key] += (sums[_LATENCY_BOUND] - sums[SumColumn.SHORT_NS]) / 1e6
    rows = [row for row in (*roofline.kernels, *roofline.by_call) if row.grid and few_ms[row.name] > _PURE * row.ms]
    return LowParallelism(short, 1.0 - short if time else 0.0, max(rows, key=lambda row: row.ms, default=None))


def more_blocks(kernel: KernelTime | None) -> str:
    """What gives kernels of few blocks more of them; a larger batch does not where the grid is one block a channel."""
    if kernel is None:
        return _BESIDE
    if _BATCH_NORM.search(kernel.name) or _BATCH_NORM.search(kernel.operator or ""):
        if not _CHANNELS_LAST.search(kernel.name):
            return "use memory_format=torch.channels_last: in NCHW, batch norm launches one block a channel"
        return _BESIDE
    by_operator = (family for words, family in _OPERATORS if words.search(kernel.operator or ""))
    family = next((one for one in (family_of(kernel.name), *by_operator) if one in _MORE_BLOCKS), Family.OTHER)
    return _MORE_BLOCKS.get(family, _BESIDE)
