"""Samples on their way into the metric history: wide rows, one an entity and time, with a column for each metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.store.history.questions import Labels


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """Samples of entities (a GPU, a host, a link, a job on a node) whose labels have the same names.

    Attributes:
        entities: labels of each, those of its target among them ("instance", "rack").
        entity: index into `entities` of each row; shape (rows,).
        times_ns: ns since the epoch of each row; shape (rows,).
        columns: values by metric name, NaN where the page had none; shape (rows,) each.
    """

    entities: tuple[Labels, ...]
    entity: NDArray[np.int32]
    times_ns: NDArray[np.int64]
    columns: Mapping[str, NDArray[np.float64]]
