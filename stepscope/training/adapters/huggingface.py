"""Hugging Face Trainer adapter: `Trainer(..., callbacks=[StepscopeCallback(run="my-run")])`.

A step is an optimizer step, whatever the gradient accumulation. What Trainer logs for a step (loss, grad_norm,
learning_rate) is kept with it; evaluation and checkpoints between two steps are phases of the later one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from transformers import TrainerCallback

from stepscope.training.entry_points import profile
from stepscope.training.profiling_session import Profile


class StepscopeCallback(TrainerCallback):
    """Callback of the Hugging Face Trainer that measures every `train()` of it.

    Args:
        options: as of `stepscope.profile`.

    Attributes:
        prof: the profile of the training under way, or of the last one; None before the first.
    """

    def __init__(self, **options: Any) -> None:
        self.prof: Profile | None = None
        self._options = options
        self._phase: AbstractContextManager[None] | None = None
        self._awaits_log = False
        self._tokens_seen = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._close(Exception)  # only a failed training has not ended itself
        self.prof = profile(**{"first_step": state.global_step} | self._options)
        self.prof.optimizer_seen(more.get("optimizer"))
        self.prof.__enter__()
        self._awaits_log = False
        self._tokens_seen = state.num_input_tokens_seen

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """The optimizer has stepped; what is logged of the step comes right after."""
        self._awaits_log = control.should_log
        if not self._awaits_log:
            self._end_step(state, control, {})

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **more: Any) -> None:
        """The step's figures; Trainer also logs evaluations and a closing summary, which belong to no step."""
        if self._awaits_log:
            self._awaits_log = False
            figures = {name: value for name, value in (logs or {}).items() if name.isidentifier()}
            self._end_step(state, control, figures)

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Evaluated; a checkpoint may follow."""
        self._enter("checkpoint" if control.should_save else None)

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._enter(None)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._close(None)

    def _close(self, kind: type[BaseException] | None) -> None:
        self._enter(None)
        if self.prof is not None:
            self.prof.__exit__(kind, None, None)

    def _end_step(self, state: Any, control: Any, figures: dict[str, Any]) -> None:
        if self.prof is None:
            return
        tokens, self._tokens_seen = state.num_input_tokens_seen - self._tokens_seen, state.num_input_tokens_seen
        self.prof.step(**figures, **({"tokens": tokens} if tokens else {}))
        self._enter("evaluation" if control.should_evaluate else "checkpoint" if control.should_save else None)

    def _enter(self, phase: str | None) -> None:
        """Leave the phase that is open, and open this one."""
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
        self._phase = None if phase is None or self.prof is None else self.prof.phase(phase)
        if self._phase is not None:
            self._phase.__enter__()
