"""In how many of the last minutes did something happen? Once is a passing thing, every other minute is not."""

from __future__ import annotations

_MINUTE_NS = 60 * 10**9


class Minutes:
    """Minutes of the clock in which something was seen, and what."""

    def __init__(self, wanted: int) -> None:
        """
        Args:
            wanted: over how many of the newest minutes.
        """
        self._wanted = wanted
        self._seen: dict[int, set[str]] = {}

    def add(self, time_ns: int, seen: set[str]) -> None:
        """Take a sample.

        Args:
            time_ns: of the sample, ns since the epoch.
            seen: what was so in it; empty: nothing.
        """
        newest = time_ns // _MINUTE_NS
        if seen:
            self._seen.setdefault(newest, set()).update(seen)
        self._seen = {minute: names for minute, names in self._seen.items() if -self._wanted < minute - newest <= 0}

    @property
    def count(self) -> int:
        """In how many minutes anything was seen."""
        return len(self._seen)

    @property
    def share(self) -> float:
        """The same as a share of all."""
        return self.count / self._wanted

    @property
    def names(self) -> set[str]:
        """All that was seen."""
        return set().union(*self._seen.values())
