"""What was read of the machine, as it comes."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.collectors.host.files import Unread
from stepscope.core.readings import Collection, Finding, Missing, MissingReason, Reading, labels_of


class Gathering:
    """Readings, what is missing, findings."""

    def __init__(self, time_ns: int) -> None:
        """
        Args:
            time_ns: now, ns since the epoch.
        """
        self.time_ns = time_ns
        self._readings: list[Reading] = []
        self._missing: list[Missing] = []
        self._findings: list[Finding] = []

    def add(self, name: str, value: float, **labels: str | int) -> None:
        """One value in base units; `name` is whole."""
        self._readings.append(Reading(name, value, labels_of(**labels), self.time_ns))

    def miss(self, names: Iterable[str], why: Unread, **labels: str | int) -> None:
        """These metrics have no value."""
        self._missing += [Missing(name, labels_of(**labels), why.reason, why.detail) for name in names]

    def miss_line(self, name: str, path: str, what: str, **labels: str | int) -> None:
        """A file is there and says nothing of this."""
        self.miss([name], Unread(MissingReason.NOT_SUPPORTED, f"/{path}: without {what}"), **labels)

    def note(self, code: str, message: str, **labels: str | int) -> None:
        """One finding."""
        self._findings.append(Finding(code, message, labels_of(**labels), self.time_ns))

    def collection(self) -> Collection:
        """All of it."""
        return Collection(tuple(self._readings), tuple(self._missing), tuple(self._findings))
