"""What is one process being asked, how far is it, and what is it stuck in?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stepscope.agent.isolation.process import Probe
from stepscope.core.readings import Collection
from stepscope.core.readings_wire import StreamReader

NAMELESS = "index:"
"""Begin of the key of a GPU that has not told its place yet; its index follows."""


@dataclass(slots=True)
class Lane:
    """A process and the GPUs that it reads; at most one request is open.

    Attributes:
        keys: of the GPUs.
        is_shared: whether it reads all GPUs that have no process of their own.
        probe: the process; None while there is none.
        is_fresh: whether it has not answered a whole request yet.
        is_looking, is_sweeping: what it is asked.
        pending: keys, or indices as "index:3", that it has still to answer for; the first is what it is at. None: it
            has not said yet how many GPUs there are.
        asked_at, progress_at: when it was asked, and when it last answered.
        due, look_due, retry_at: when it is asked next, when for the GPUs that are there, when it is started again.
        failures: in a row.
        healthy_since: when it began to answer well.
        found: keys of the GPUs that the look found so far.
        streams: what this process has told of each GPU and part, which its next message builds on.
    """

    keys: list[str]
    is_shared: bool
    probe: Probe | None = None
    is_fresh: bool = True
    is_looking: bool = False
    is_sweeping: bool = False
    pending: list[str] | None = None
    asked_at: float = 0.0
    progress_at: float = 0.0
    due: float = 0.0
    look_due: float = 0.0
    retry_at: float = 0.0
    failures: int = 0
    healthy_since: float | None = None
    found: set[str] = field(default_factory=set)
    streams: dict[tuple[str, str], StreamReader] = field(default_factory=dict)

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is to come."""
        return self.is_looking or self.is_sweeping

    @property
    def suspect(self) -> str | None:
        """What it is at; None: nothing in particular."""
        if self.is_waiting and self.pending:
            return self.pending[0]
        return None if self.is_shared or not self.is_waiting else self.keys[0]

    def next_request(self, now: float, apart: list[int]) -> dict[str, Any] | None:
        """What to ask now; None: nothing, until the next look.

        Args:
            now: monotonic time, seconds.
            apart: indices of the GPUs that have processes of their own.
        """
        self.asked_at = self.progress_at = now
        is_nameless = bool(self.keys) and self.keys[0].startswith(NAMELESS)
        if (self.is_shared and now >= self.look_due) or (not self.is_shared and is_nameless):
            self.is_looking, self.pending, self.found = True, None, set()
            if self.is_shared:
                return {"do": "look", "skip": apart}
            return {"do": "look", "skip": [], "only": [int(self.keys[0].removeprefix(NAMELESS))]}
        if self.keys:
            self.is_sweeping, self.pending = True, list(self.keys)
            return {"do": "sweep", "keys": self.keys}
        return None

    def read(self, key: str, part: str, message: dict[str, Any]) -> Collection:
        """What the process told of a part of a GPU.

        Raises:
            WireError: nonsense.
        """
        stream = self.streams.get((key, part))
        if stream is None:
            stream = self.streams[key, part] = StreamReader()
        return stream.read(message)

    def stop(self) -> Probe | None:
        """Forget the process; it."""
        probe, self.probe = self.probe, None
        self.is_fresh, self.is_looking, self.is_sweeping, self.pending = True, False, False, None
        self.healthy_since = None
        self.streams = {}
        return probe
