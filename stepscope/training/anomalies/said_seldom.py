"""Which events are said in the log, where one kind keeps happening? Every one stays in its step's line."""

from __future__ import annotations

from collections import Counter, defaultdict, deque

NUM_SAID = 5
WITHIN_STEPS = 10_000
"""So many of a kind are said within so many steps: what happens more often is how this training is, not news."""

_Key = tuple[str, str]


class SaidSeldom:
    """Counts what is not said, by kind and figure."""

    def __init__(self) -> None:
        self.unsaid: Counter[_Key] = Counter()
        self._said_at: defaultdict[_Key, deque[int]] = defaultdict(lambda: deque(maxlen=NUM_SAID))

    def takes(self, key: _Key, step: int) -> int | None:
        """How many like it were not said since the last that was, when this one is to be said; else None."""
        said_at = self._said_at[key]
        if len(said_at) == NUM_SAID and step - said_at[0] < WITHIN_STEPS:
            self.unsaid[key] += 1
            return None
        said_at.append(step)
        return self.unsaid.pop(key, 0)
