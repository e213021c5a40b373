"""Headroom of memory to spare: no recomputation of activations, more samples a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.analyzer.headroom.changes import Changed, JobFacts
from stepscope.analyzer.headroom.matrix_work import products
from stepscope.analyzer.headroom.rates import KernelRates
from stepscope.analyzer.headroom.step_kernels import StepKernels
from stepscope.analyzer.headroom.step_model import Span, StepModel
from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.operator_call import Floats
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


MOST_TIMES = 4
"""Larger batches than this many times the present one are not modelled."""


def larger_batch(step: StepModel, facts: JobFacts) -> Changed | None:
    """The time of as many samples as a step has now, in steps of several times as many.

    Kernels with fewer blocks than the GPU has multiprocessors take as long for more samples, and so do the optimizer,
    the reduction of gradients and the host. Products and element-wise kernels grow as measured rates do with size; of
    others no more is known than that they grow in proportion at most.
    """
    kernels, rates, free_bytes = step.kernels, step.rates, facts.free_memory_bytes
    if kernels is None or rates is None or free_bytes is None or not facts.batch_bytes:
        return None
    if float(step.most_ns[kernels.work == NONE].sum()) > _MOST_UNKNOWN * float(step.most_ns.sum()):
        return None  # what a graph launched: nobody knows what is the optimizer's
    times = min(MOST_TIMES, 2 ** int(np.log2(1.0 + free_bytes / facts.batch_bytes)))
    if times < _FEWEST_TIMES:
        return None
    growth = _growth(step, kernels, rates, times)
    spared_ns = float(((1.0 - growth / times) * step.most_ns).sum())
    if spared_ns < _MIN_SPARED * float(step.most_ns.sum()):
        return None
    after = replace(
        step,
        least_ns=step.least_ns * growth / times,
        most_ns=step.most_ns * growth / times,
        host_ms=Span(*(host / times for host in step.host_ms)),
        exposed_ms=Span(step.exposed_ms.least / times, step.exposed_ms.most),
        done=step.done | {Change.LARGER_BATCH},
    )
    why = f"kernels spare {spared_ns / 1e6:,.1f} ms of each step's worth of samples, {free_bytes / 2**30:,.0f} GiB free"
    return Changed(after, why, knob=f"{times} times the batch (time of the present batch's samples)")


def _growth(step: StepModel, kernels: StepKernels, rates: KernelRates, times: int) -> Floats:
    """By kernel, how many times as long it takes for several times the samples."""
    growth = np.full(len(kernels), float(times))
    blocks = kernels.num_blocks
    is_few = (blocks != NONE) & (blocks < rates.num_sms)
    growth[is_few] = np.maximum(blocks[is_few] * times / rates.num_sms, 1.0)
    sized = kernels.is_of(Family.POINTWISE, Family.COPY_LIKE) & ~np.isnan(kernels.num_bytes)
    for num_bytes in np.unique(kernels.num_bytes[sized]).tolist():
        alike = sized & (kernels.num_bytes == num_bytes)
        ratio = rates.elementwise_ns(times * num_bytes) / rates.elementwise_ns(num_bytes)
        growth[alike] = np.minimum(growth[alike], ratio)
    for one in products(step):
        larger = replace(one, k=times * one.k) if one.layout == "tn" else replace(one, m=times * one.m)
        now_ns, then_ns = one.time_ns(rates, one.dtype), larger.time_ns(rates, one.dtype)
        if now_ns and then_ns:
            growth[one.kernels] = np.minimum(growth[one.kernels], then_ns / now_ns)
    growth[kernels.by_optimizer] = 1.0
    bounded: Floats = np.clip(growth, 1.0, float(times))
    return bounded


_FEWEST_TIMES = 2
_MOST_UNKNOWN = 0.5
"""Largest share of the time in kernels without a known operator."""
_MIN_SPARED = 0.15
"""Least share of the kernels' time that a larger batch has to spare."""
