"""What does `stepscope run` ask of the processes that it starts? It travels in one environment variable."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from dataclasses import asdict, dataclass

from stepscope.training.captures.schedule import Schedule

VARIABLE = "STEPSCOPE_ZERO_CODE"
"""Without it nothing is measured: the process that measures takes it out of its own environment, so that what it
starts in turn (compilers, tools, another training) does not write into the same run."""


@dataclass(frozen=True, slots=True)
class Order:
    """How to measure; `stepscope.profile` says what each means.

    Attributes:
        out: absolute, as a script may change its directory.
    """

    out: str
    run: str | None
    ranks: str | list[int]
    schedule: Schedule
    with_stack: bool

    def as_text(self) -> str:
        """The value of the variable."""
        return json.dumps(asdict(self))


def take_order(environment: MutableMapping[str, str]) -> Order | None:
    """The order in this environment, which no longer has it; None when there is none.

    Raises:
        ValueError, TypeError: it was written by a stepscope of another version.
    """
    text = environment.pop(VARIABLE, None)
    if text is None:
        return None
    fields = json.loads(text)
    return Order(**fields | {"schedule": Schedule(**fields["schedule"])})
