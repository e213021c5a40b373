"""Lightning adapter: `Trainer(..., callbacks=[StepscopeCallback(run="my-run")])`.

A step is a training batch after which an optimizer has stepped, so accumulated batches are one step. Validation between
two steps is a phase of the later one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from lightning.pytorch.callbacks import Callback

from stepscope.training.entry_points import profile
from stepscope.training.profiling_session import Profile


class StepscopeCallback(Callback):
    """Callback of the Lightning Trainer that measures every `fit` of it.

    Args:
        options: as of `stepscope.profile`.

    Attributes:
        prof: the profile of the training under way, or of the last one; None before the first.
    """

    def __init__(self, **options: Any) -> None:
        self.prof: Profile | None = None
        self._options = options
        self._phase: AbstractContextManager[None] | None = None
        self._steps_seen = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.prof = profile(**{"first_step": trainer.global_step} | self._options)
        for optimizer in trainer.optimizers:
            self.prof.optimizer_seen(optimizer)
        self.prof.__enter__()
        self._steps_seen = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Lightning counts the steps of all optimizers; one batch may have several, and an accumulated one none."""
        if self.prof is None or trainer.global_step == self._steps_seen:
            return
        self._steps_seen = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self.prof.step(**({} if loss is None else {"loss": loss}))

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Between two steps; not the sanity check before training."""
        if self.prof is not None and not trainer.sanity_checking:
            self._phase = self.prof.phase("evaluation")
            self._phase.__enter__()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Back to training."""
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.__exit__(None, None, None)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._leave(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop measuring; the exception is the reason for the attempt's end."""
        self._leave(exception)

    def _leave(self, error: BaseException | None) -> None:
        if self.prof is not None:
            self.prof.__exit__(None if error is None else type(error), error, None)
