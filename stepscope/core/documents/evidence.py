"""Evidence and notices: parts of several documents."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.core.errors import printable


@dataclass(frozen=True, slots=True)
class Notice:
    """A note on the input or the numbers, for programs (`code`) and people (`message`)."""

    code: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", printable(self.message))


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number that supports a statement. `span` is (start ns, end ns) on the job's clock."""

    metric: str
    value: float
    unit: str
    threshold: float | None = None
    ranks: list[int] = field(default_factory=list)
    span: tuple[int, int] | None = None
