"""Headroom of memory to spare: no recomputation of activations, more samples a step."""

from __future__ import annotations

import numpy as np

from stepscope.analyzer.headroom.changes import Changed, JobFacts
from stepscope.analyzer.headroom.step_model import Span, StepModel
from stepscope.core.vocabulary import Change


def no_recomputation(step: StepModel, facts: JobFacts) -> Changed | None:
    """The step without the second forward pass, or with as much of it as memory allows to leave out."""
    kernels = step.kernels
    if kernels is None:
        return None
    repeated = np.flatnonzero(kernels.repeats_forward & step.is_there)
    if not len(repeated):
        return None
    now_ns = float(step.most_ns[repeated].sum())
    kept_bytes = float(np.nansum(kernels.num_bytes[repeated])) / 2  # at most: the half that is written
    free_bytes = facts.free_memory_bytes
    fits = 1.0 if free_bytes is None else min(free_bytes / max(kept_bytes, 1.0), 1.0)
    if fits <= 0:
        return None
    kept = np.array([1.0 - fits, 1.0 if free_bytes is None else 1.0 - fits])
    new = {at: Span(*(kept * (step.least_ns[at], step.most_ns[at]))) for at in repeated.tolist()}
    memory = "memory not recorded" if free_bytes is None else f"{free_bytes / 2**30:,.0f} GiB free"
    why = f"{now_ns / 1e6:,.1f} ms per step repeat the forward pass, {memory}"
    return Changed(step.after(Change.NO_RECOMPUTATION, new), why, 0.05)
