"""How large are the gradients after they were reduced? Where the loop clips them, torch has computed it already."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

from stepscope.training.steps.figures import sorted_out
from stepscope.training.steps.late_figures import LateReader
from stepscope.training.steps.telemetry import StepRecord
from stepscope.training.steps.wrapping import Wrapping

logger = logging.getLogger(__name__)

FIGURE = "grad_norm"
_COMPUTED_BY_CLIPPING = "_get_total_norm"
"""What torch.nn.utils.clip_grad_norm_ computes the norm with, since torch 2.6."""


class ClippedNorm:
    """Adds `grad_norm` to steps in which gradients were clipped once by their 2-norm, where the loop does not tell it.

    A norm that lies in parts on several ranks, as that of `fully_shard`, is left out: it is known only once those are
    summed.
    """

    def __init__(self, late_reader: LateReader) -> None:
        self._late_reader = late_reader
        self._norms: list[Any] = []
        self._wrapping: Wrapping | None = None
        import torch.nn.utils.clip_grad as module

        if hasattr(module, _COMPUTED_BY_CLIPPING):
            self._wrapping = Wrapping(module, _COMPUTED_BY_CLIPPING, self._watched)

    def step_ended(self, record: StepRecord) -> None:
        """Add the norm."""
        if not self._norms:
            return
        norms, self._norms = self._norms, []
        if len(norms) != 1 or FIGURE in record.figures or any(FIGURE in late.names for late in record.late):
            return  # clipped part by part, or told by the loop
        plain, on_device, _ = sorted_out({FIGURE: norms[0]}, self._late_reader.takes)
        record.figures |= plain
        late = self._late_reader.take(on_device) if on_device else None
        record.late += [] if late is None else [late]

    def close(self) -> None:
        """Leave torch as it was."""
        wrapping, self._wrapping = self._wrapping, None
        if wrapping is not None:
            wrapping.leave()

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from torch.compiler import is_compiling

        reference = weakref.ref(self)  # a run that is never ended is forgotten

        def total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
            norm = original(tensors, norm_type, *args, **kwargs)
            if is_compiling():  # first, so that a compiled loop knows nothing of us
                return norm
            listener = reference()
            if listener is not None and norm_type == 2.0:
                listener._note(norm)
            return norm

        return total_norm

    def _note(self, norm: Any) -> None:
        if self._wrapping is not None and len(self._norms) < 2:
            self._norms.append(norm)
