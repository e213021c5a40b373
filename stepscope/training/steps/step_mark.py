"""What does `prof.step()` return? Something that may stand in a with statement without hurting training.

A step is marked by a call at its end. `with prof.step():` cannot mean more: the call comes before the block, when
nobody knows yet that a block follows, so it has to end the step that ran.
"""

from __future__ import annotations

import logging
from types import TracebackType

logger = logging.getLogger(__name__)


class StepMark:
    """The call has ended the step; a with block around it adds nothing, which is said once."""

    __slots__ = ("_is_quiet",)

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet

    def __enter__(self) -> StepMark:
        if not self._is_quiet:
            self._is_quiet = True
            logger.warning(
                "`with prof.step():` ended the step before its block, not the block: steps now run from one such call"
                " to the next; call prof.step() once after each optimizer step instead"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing: exceptions pass through unchanged."""
