"""What is the loss scale of torch.amp.GradScaler, and which steps did it skip? Found without help of the loop."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable
from typing import Any

from stepscope.training.steps.late_figures import LateFigures, LateReader
from stepscope.training.steps.telemetry import StepRecord
from stepscope.training.steps.wrapping import Wrapping

logger = logging.getLogger(__name__)

_CALLED_BY_UPDATE = "_check_scale_growth_tracker"
"""The method that every GradScaler's `update` calls first, FSDP's ShardedGradScaler's too, and only when it is enabled;
until then the scale is that of this step's loss, and what the optimizers found has not been cleared."""


class LossScale:
    """Adds `loss_scale`, by which the step's loss was multiplied, and `overflow` (1 when gradients were not finite).

    Neither is read from the GPU before its work is done, or at all where only waiting would tell (XPU, MPS).
    Where several scalers are updated in a step, the last counts.
    """

    def __init__(self, late_reader: LateReader) -> None:
        self._late_reader = late_reader
        self._figures: dict[str, int | float] = {}
        self._late: list[LateFigures] = []
        self._is_on = True
        torch: Any = sys.modules["torch"]
        self._wrapping = Wrapping(torch.amp.GradScaler, _CALLED_BY_UPDATE, self._watched)

    def step_ended(self, record: StepRecord) -> None:
        """Add what the update of this step said; figures that the training loop gave stay."""
        if self._late:
            record.late += reversed(self._late)  # of two by one name the first stays
            self._late = []
        if self._figures:
            record.figures = self._figures | record.figures
            self._figures = {}

    def close(self) -> None:
        """Leave torch's class as it was."""
        self._is_on = False
        self._wrapping.leave()

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        reference = weakref.ref(self)  # a run that is never ended is forgotten

        def check(scaler: Any, name: str) -> Any:
            listener = reference() if name == "update" else None
            if listener is not None:
                listener._updating(scaler)
            return original(scaler, name)

        return check

    def _updating(self, scaler: Any) -> None:
        """A scaler is about to change its scale; called from inside training, so it never raises."""
        if not self._is_on:
            return
        try:
            scale: Any = scaler._scale
            found = [
                tensor
                for state in scaler._per_optimizer_states.values()
                for tensor in state["found_inf_per_device"].values()
            ]
            tensors = {"loss_scale": scale} | {f"found {i}": tensor for i, tensor in enumerate(found)}
            if any(self._late_reader.takes(tensor) for tensor in tensors.values()):
                late = self._late_reader.take(tensors, _named)
                self._late += [] if late is None else [late]
            elif all(tensor.device.type == "cpu" for tensor in tensors.values()):  # else reading would wait
                self._figures = _named({name: tensor.item() for name, tensor in tensors.items()})
        except Exception as error:  # training must never be hurt
            self._is_on = False
            logger.warning("stepscope goes on without the loss scale: %s: %s", type(error).__name__, error)


def _named(numbers: dict[str, int | float]) -> dict[str, int | float]:
    found = [number for name, number in numbers.items() if name != "loss_scale"]
    return {"loss_scale": numbers["loss_scale"]} | ({"overflow": int(any(found))} if found else {})
