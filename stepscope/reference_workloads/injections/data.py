"""Which faults lie in the way data comes?"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

from stepscope.core.causes import Cause
from stepscope.reference_workloads.injections.injection import Injection


@dataclass(frozen=True, slots=True)
class SlowLoader(Injection):
    """Every sequence takes longer to make than a step has time for."""

    name: ClassVar[str] = "slow_loader"
    cause: ClassVar[Cause] = Cause.DATA_LOADING
    shows: ClassVar[str] = "the GPU idles at the start of each step while the loop is inside the loader's next()"
    fix: ClassVar[Cause | None] = Cause.DATA_LOADING

    milliseconds_per_item: float = 20.0

    def dataset(self, dataset: Any, *, dp_rank: int) -> Any:
        return _Slow(dataset, self.milliseconds_per_item / 1e3)


class _Slow:
    """A map-style dataset whose items come after a pause."""

    def __init__(self, dataset: Any, seconds: float) -> None:
        self._dataset = dataset
        self._seconds = seconds

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        time.sleep(self._seconds)
        return self._dataset[index]
