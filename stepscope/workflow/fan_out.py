"""Where are a job's files viewed? In processes here, or on a cluster that is there already; none is ever started."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from stepscope.core.errors import UsageError
from stepscope.workflow.file_views import FileMap
from stepscope.workflow.processes import file_map


class Engine(StrEnum):
    """Who runs the per-rank half."""

    LOCAL = "local"
    DASK = "dask"
    RAY = "ray"


@dataclass(frozen=True, slots=True)
class FanOut:
    """Where to view files.

    Attributes:
        num_workers: processes here; None for as many as pay.
        address: of the cluster's scheduler or head; None to find it as Dask and Ray themselves do.

    Raises:
        UsageError: an option of one engine was given to another.
    """

    engine: Engine = Engine.LOCAL
    num_workers: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if self.engine is Engine.LOCAL and self.address is not None:
            raise UsageError("--scheduler is a cluster's address", what_next="add --engine dask or --engine ray")
        if self.engine is not Engine.LOCAL and self.num_workers is not None:
            what_next = "leave it out: a cluster has the workers it has"
            raise UsageError("--workers counts processes on this machine", what_next=what_next)


HERE = FanOut()
"""As many processes on this machine as pay."""


def task_paths(paths: Sequence[str], fan_out: FanOut) -> list[str]:
    """The paths by which the files are found where they are viewed: a worker elsewhere has its own current folder."""
    if fan_out.engine is Engine.LOCAL:
        return list(paths)
    return [path if "://" in path else os.path.abspath(path) for path in paths]


def map_for(paths: Sequence[str], fan_out: FanOut) -> FileMap:
    """How to view these files.

    Args:
        paths: local files or URLs.
        fan_out: where.

    Raises:
        UsageError: fewer than one process.
    """
    if fan_out.engine is Engine.DASK:
        from stepscope.workflow.dask_cluster import in_dask

        return partial(in_dask, address=fan_out.address)
    if fan_out.engine is Engine.RAY:
        from stepscope.workflow.ray_cluster import in_ray

        return partial(in_ray, address=fan_out.address)
    return file_map(paths, fan_out.num_workers)
