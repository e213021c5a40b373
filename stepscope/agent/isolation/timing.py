"""How long is waited for what, and how often is it tried again?"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Timing:
    """All times in seconds.

    Attributes:
        interval: between two readings of a GPU.
        seldom: between two readings of what changes slowly.
        deadline: for one GPU's answer. A driver without persistence mode takes up to 3 s to wake a GPU.
        start_deadline: for a new process's first answer: it loads the driver's library.
        look: between two looks which GPUs are there.
        slow: what a GPU may take of a round that others wait for; slower ones get a process of their own.
        first_retry, last_retry: the first wait after a failure, which doubles up to the last.
        healthy: how long a GPU must answer well before it is read with the others again.
        stale: age from which a sample is dropped.
        grace: for processes to end in when the agent ends.
    """

    interval: float = 1.0
    seldom: float = 10.0
    deadline: float = 5.0
    start_deadline: float = 30.0
    look: float = 60.0
    slow: float = 0.5
    first_retry: float = 1.0
    last_retry: float = 300.0
    healthy: float = 600.0
    stale: float = 60.0
    grace: float = 5.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be more than 0 seconds, not {getattr(self, name)}")
        if self.stale <= max(self.seldom, self.interval) + self.deadline:
            raise UsageError(
                f"samples would be stale ({self.stale:g} s) before the next ones come",
                what_next=f"make stale longer than {max(self.seldom, self.interval) + self.deadline:g} s",
            )

    def retry_after(self, failures: int) -> float:
        """The wait after so many failures in a row, at least one."""
        return min(self.last_retry, self.first_retry * 2.0 ** min(failures - 1, 30))
