"""Headroom of fused attention: products, mask, softmax and dropout on scores of queries x keys as one kernel.

Where a softmax over scores is found, every product that makes or takes such scores and every kernel on tensors of
their size is part of the same attention, forward and backward. What the fused kernel needs instead follows from the
sizes, at measured rates. Half of the scores of a causal mask are never computed; where the mask may be another one,
the step is an interval.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from stepscope.analyzer.headroom.changes import Changed, JobFacts
from stepscope.analyzer.headroom.matrix_work import Product, products
from stepscope.analyzer.headroom.step_kernels import StepKernels
from stepscope.analyzer.headroom.step_model import NO_TIME, Span, StepModel
from stepscope.analyzer.roofline.kernel_family import Family
from stepscope.analyzer.roofline.operator_call import Dims
from stepscope.core.vocabulary import Change
from stepscope.trace.columns import NONE

_FORWARD = re.compile(r"^aten::(_softmax|softmax|_safe_softmax)$")
_BACKWARD = re.compile(r"^aten::_softmax_backward_data$")
_MASKS = re.compile(r"^aten::(add|masked_fill|where)_?$")
_COMPARES = re.compile(r"^aten::(le|lt|ge|gt|tril|triu)_?$")
_ON_SCORES = (Family.POINTWISE, Family.COPY_LIKE, Family.SOFTMAX, Family.REDUCTION)
_MIN_LENGTH = 16
"""A softmax over fewer is not attention."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of one size: `heads` (of all sequences together) times queries x keys.

    Attributes:
        head: size of a head; None until a product gives it.
    """

    heads: int
    queries: int
    keys: int

    @property
    def elements(self) -> int:
        return self.heads * self.queries * self.keys

    def fits(self, dims: Dims | None) -> bool:
        """Whether a tensor has these scores' size, transposed or not."""
        if not dims or len(dims) < 2 or prod(dims) != self.elements:
            return False
        return (dims[-2], dims[-1]) in {(self.queries, self.keys), (self.keys, self.queries)}

    def head_of(self, product: Product) -> int | None:
        """Size of a head, of a product that makes or takes these scores; None for others."""
        b, m, n, k = product.batch, product.m, product.n, product.k
        for dims, rest in (((b, m, n), k), ((b, m, k), n), ((b, k, n), m)):
            if b == self.heads and self.fits(dims):
                return rest
        return None


def fused_attention(step: StepModel, _facts: JobFacts) -> Changed | None:
    """The step with fused attention instead of kernels on stored scores."""
    kernels, rates = step.kernels, step.rates
    if kernels is None or rates is None:
        return None
    new: dict[int, Span] = {}
    now_ns, sizes, fused = 0.0, [], []
    multiplied = list(products(step))
    for scores in _all_scores(step, kernels):
        own = [(product, head) for product in multiplied if (head := scores.head_of(product)) is not None]
        if not own:
            continue
        head = min(head for _, head in own)
        on_scores = [at for at in _kernels_on(step, kernels, scores) if at not in new]
        if any(kernels.operator_of(at) == "aten::sum" for at in on_scores):
            continue  # the gradient of a bias that is learned: torch has no fused kernel for it of its own choice
        gone = {int(at) for product, _ in own for at in product.kernels} | set(on_scores)
        gone |= _copies_beside(step, kernels, own, scores, head)
        kind = _mask_of(kernels, on_scores, scores)
        times = {
            mask: rates.attention_ns(
                own[0][0].dtype, mask, batch_heads=scores.heads, queries=scores.queries, keys=scores.keys, head=head
            )
            for mask in kind
        }
        known = [time for time in times.values() if time is not None]
        if len(known) < len(times):
            continue
        spans = [Span(min(ends), max(ends)) for ends in zip(*known, strict=True)]
        now_ns += float(step.most_ns[sorted(gone)].sum())
        new |= dict.fromkeys(gone, NO_TIME)
        for at in on_scores:
            name = kernels.operator_of(at)
            if _FORWARD.match(name) or _BACKWARD.match(name):
                new[at] = spans[0 if _FORWARD.match(name) else 1]
                fused.append(at)
        sizes.append(f"{scores.queries} x {scores.keys}")
    if not new:
        return None
    why = f"{now_ns / 1e6:,.1f} ms per step in kernels that store scores of {', '.join(dict.fromkeys(sizes))}"
    return Changed(step.after(Change.FUSED_ATTENTION, new, others=fused), why, rates.error)


def _all_scores(step: StepModel, kernels: StepKernels) -> Iterator[Scores]:
    """Sizes of the scores over which a softmax is taken, distinct."""
    seen = set()
    here = step.is_there
    for at in np.flatnonzero(kernels.is_of(Family.SOFTMAX)).tolist():
        call = kernels.call_of(at)
        dims = None if call is None else call.tensor(0)
        if not here[at] or not dims or len(dims) < 3 or not _FORWARD.match(kernels.operator_of(at)):
            continue
        scores = Scores(prod(dims[:-2]), dims[-2], dims[-1])
        if min(scores.queries, scores.keys) >= _MIN_LENGTH and scores not in seen:
            seen.add(scores)
            yield scores


def _kernels_on(step: StepModel, kernels: StepKernels, scores: Scores) -> list[int]:
    """Positions of the kernels that still run on tensors of the scores' size."""
    own = step.is_there & kernels.is_of(*_ON_SCORES) & (kernels.call != NONE)
    fitting = {
        call: any(map(scores.fits, parsed.dims))
        for call in np.unique(kernels.call[own]).tolist()
        if (parsed := kernels.call_of(int(np.flatnonzero(kernels.call == call)[0]))) is not None
    }
    return [at for at in np.flatnonzero(own).tolist() if fitting.get(int(kernels.call[at]), False)]


def _copies_beside(
    step: StepModel, kernels: StepKernels, own: list[tuple[Product, int]], scores: Scores, head: int
) -> set[int]:
    """Copies of queries, keys, values and results into the layout that the products need."""
    sizes = {scores.heads * scores.queries * head, scores.heads * scores.keys * head}
    copies = set()
    for product, _ in own:
        for direction in (-1, 1):
            at = int(product.kernels[0 if direction < 0 else -1]) + direction
            while 0 <= at < len(kernels) and kernels.family[at] == Family.COPY_LIKE and step.is_there[at]:
                call = kernels.call_of(at)
                if call is None or not any(dims and prod(dims) in sizes for dims in call.dims):
                    break
                copies.add(at)
                at += direction
    return copies


def _mask_of(kernels: StepKernels, on_scores: list[int], scores: Scores) -> tuple[str, ...]:
    """Masks that the attention may have: none where no kernel applies one; causal where positions are compared."""
    is_masked = any(
        _MASKS.match(kernels.operator_of(at)) and (call := kernels.call_of(at)) is not None and _is_joined(call.dims)
        for at in on_scores
    )
    if not is_masked:
        return ("none",)
    for at in range(len(kernels)):
        call = kernels.call_of(at)
        if call is None or not _COMPARES.match(kernels.operator_of(at)):
            continue
        dims = [own for own in call.dims if own]
        square = any(len(own) > 1 and own[-2:] == (scores.queries, scores.keys) for own in dims)
        crossed = {own[-1] for own in dims} == {1, scores.keys} and any(own[-2:-1] == (scores.queries,) for own in dims)
        if square or crossed:
            return ("causal",)
    return ("causal", "added")


def _is_joined(dims: tuple[Dims | None, ...]) -> bool:
    """Whether two tensors of different size are joined, as scores and a mask for all heads."""
    return len({prod(own) for own in dims if own}) > 1
