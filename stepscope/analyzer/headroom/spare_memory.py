"""Headroom of memory to spare: no recomputation of activations, more samples a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.analyzer.headroom.changes import Changed, JobFacts
from stepscope.analyzer.headroom.step_model import Span, StepModel
from stepscope.core.vocabulary import Change
from stepscope.trace.columns import NONE


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


MOST_TIMES = 8
"""Larger batches than this many times the present one are not modelled."""
_FROM_TIMES = 2


def larger_batch(step: StepModel, facts: JobFacts) -> Changed | None:
    """The time of as many samples as a step has now, in steps of twice as many samples or more.

    Kernels with fewer blocks than the GPU has multiprocessors take as long for more samples, and so do the optimizer,
    the reduction of gradients and the host. Where kernels fill the GPU the model knows no more than that they take
    proportionally longer at most, and no longer at least by what measured rates gain with size.
    """
    kernels, rates, free_bytes = step.kernels, step.rates, facts.free_memory_bytes
    if kernels is None or rates is None or free_bytes is None or not facts.batch_bytes:
        return None
    if float(step.most_ns[kernels.work == NONE].sum()) > _MOST_UNKNOWN * float(step.most_ns.sum()):
        return None  # what a graph launched: nobody knows what is the optimizer's
    times = min(MOST_TIMES, 2 ** int(np.log2(1.0 + free_bytes / facts.batch_bytes)))
    if times < _FROM_TIMES:
        return None
    fills = kernels.num_blocks * times > rates.num_sms
    grows = fills & ~kernels.by_optimizer
    is_few = (kernels.num_blocks != NONE) & (kernels.num_blocks < rates.num_sms)
    most = np.where(grows, times, 1.0)
    least = np.where(grows & is_few, np.maximum(kernels.num_blocks * times / rates.num_sms, 1.0), most)
    sums = Span(float((least * step.least_ns).sum()), float((most * step.most_ns).sum()))
    if sums.middle >= times * (1.0 - _MIN_SPARED) * float(step.most_ns.sum()):
        return None
    after = replace(
        step,
        least_ns=step.least_ns * least / times,
        most_ns=step.most_ns * most / times,
        added=Span(*step.added),
        host_ms=Span(*(host / times for host in step.host_ms)),
        exposed_ms=Span(step.exposed_ms.least / times, step.exposed_ms.most),
        outside_ms=Span(*(end / times for end in step.outside_ms)),
        done=step.done | {Change.LARGER_BATCH},
    )
    spared_ms = float(step.most_ns[~grows].sum()) / 1e6
    why = f"{spared_ms:,.1f} ms per step do not grow with the batch, {free_bytes / 2**30:,.0f} GiB free"
    return Changed(after, why, knob=f"{times} times the batch (time of the present batch's samples)")


_MOST_UNKNOWN = 0.5
"""Largest share of the time in kernels without a known operator."""
_MIN_SPARED = 0.05
"""Least share of the kernels' time that a larger batch has to spare."""
