"""What did the caller say of the job that cannot be, though it can be measured all the same?"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from math import prod

from stepscope.core.words import ranks_words
from stepscope.training.run.mesh import KNOWN_DIMENSIONS, MESH_VARIABLE, is_dimension
from stepscope.training.settings import Settings

_MOST_NAMED = 8

_DISJOINT = ("tp", "pp", "dp", "cp")
"""Dimensions that a rank has one place each in; expert parallelism lies across others."""


def doubts(settings: Settings, mesh: Mapping[str, int], world_size: int) -> list[str]:
    """One line each, for the log.

    Args:
        settings: as given.
        mesh: sizes by dimension, as understood.
        world_size: of the job.
    """
    found = []
    if isinstance(settings.ranks, Collection) and not isinstance(settings.ranks, str):
        absent = sorted(rank for rank in settings.ranks if isinstance(rank, int) and not 0 <= rank < world_size)
        if absent:
            more = f" and {len(absent) - _MOST_NAMED:,} more" if len(absent) > _MOST_NAMED else ""
            named = ranks_words(absent[:_MOST_NAMED]) + more
            found.append(f"ranks: the job has {world_size}, so that {named} will never be captured")
    if isinstance(settings.mesh, Mapping):
        unknown = [str(name) for name in settings.mesh if not is_dimension(str(name))]
        found += [f"mesh: {name!r} is none of {', '.join(KNOWN_DIMENSIONS)} and is left out" for name in unknown]
    size = prod(mesh.get(name, 1) for name in _DISJOINT)
    is_said = settings.mesh is not None or bool(os.environ.get(MESH_VARIABLE))
    if is_said and size and world_size % size:
        said = ", ".join(f"{name}={mesh[name]}" for name in _DISJOINT if name in mesh)
        found.append(f"mesh: {said} is {size} ranks, of which a job of {world_size} is not made")
    return found
