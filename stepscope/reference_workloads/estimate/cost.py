"""What does a whole training cost: FLOPs by 6ND, GPU-hours, and money?

6ND counts six FLOPs a parameter and token (Kaplan et al. 2020, arXiv:2001.08361) and leaves attention out, which takes
its time all the same: hours are those of the tokens. 30 billion parameters and 2 trillion tokens are 360 ZFLOP: 200,000
GPU-hours at 500 TFLOP/s of these FLOPs, 2,778 tokens a second and GPU.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from stepscope.core.errors import UsageError

FLOPS_PER_PARAMETER_AND_TOKEN = 6
_SECONDS_PER_HOUR = 3600
_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """A whole training.

    Attributes:
        flops: by 6ND.
        gpu_hours: at the pace that was given.
        days: on the job's GPUs.
        money: in the price's currency; None without a price.
    """

    num_tokens: float
    flops: float
    gpu_hours: float
    days: float
    money: float | None


def training_cost(
    *,
    num_parameters: float,
    num_tokens: float,
    tokens_per_second: float,
    num_gpus: int = 1,
    price_per_gpu_hour: float | None = None,
) -> TrainingCost:
    """Cost at a pace that the whole job keeps up.

    Raises:
        UsageError: the price is below nothing or no number, or the cost is beyond all numbers.
    """
    if price_per_gpu_hour is not None and not 0 <= price_per_gpu_hour < math.inf:
        raise UsageError(f"a GPU-hour costs nothing or more, not {price_per_gpu_hour}", where="--price-per-gpu-hour")
    flops = FLOPS_PER_PARAMETER_AND_TOKEN * num_parameters * num_tokens
    gpu_hours = num_gpus * num_tokens / tokens_per_second / _SECONDS_PER_HOUR
    money = None if price_per_gpu_hour is None else gpu_hours * price_per_gpu_hour
    if not all(map(math.isfinite, (flops, gpu_hours, money or 0.0))):
        raise UsageError("so many tokens cost more than any number says", where="--tokens")
    return TrainingCost(num_tokens, flops, gpu_hours, gpu_hours / num_gpus / 24, money)


def parse_amount(text: str, *, option: str = "") -> float:
    """A number as people write it: 2T, 1.5B, 300e9.

    Args:
        option: where it was given, for errors.

    Raises:
        UsageError: it is none, or not above zero.
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)([KMBGT]?)", text.strip().upper())
    amount = float(match[1]) * _SUFFIXES[match[2]] if match else 0.0
    if not 0 < amount < math.inf:
        raise UsageError(
            f"{text!r} is no number above 0", where=option, what_next="give an amount like 2T, 1.5B or 300e9"
        )
    return amount
