"""Counters of a run: lines of metrics/rank{r}.jsonl, one for each message of the agent to `profile()`.

A line is the message as it came (`core.protocol.counters`): samples of the rank's own GPUs and host by the clock of its
machine, as its steps are. Lines of all attempts stand in one file, in the order in which they came.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from stepscope.core.protocol.counters import Counters


@dataclass(frozen=True, slots=True)
class RankCounters:
    """Counters of a run: the messages that the agent sent to one rank, in order."""

    rank: int
    messages: list[Counters] = field(default_factory=list)


def counters_line(message: Counters) -> bytes:
    """Line of a run's counters: one message, without what is unknown or empty.

    Raises:
        ValueError: it has a number that JSON does not know.
    """
    document = {name: value for name, value in asdict(message).items() if value not in (None, (), {})}
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode() + b"\n"
