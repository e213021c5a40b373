"""How does a collection get from one process to another? As a line of JSON; each set of labels is written once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.core.readings import Collection, Finding, Labels, Missing, MissingReason, Reading


class WireError(Exception):
    """What came is no collection."""


def encode(collection: Collection) -> dict[str, Any]:
    """What `decode` reads, of numbers, texts and lists."""
    numbers: dict[Labels, int] = {}

    def number(labels: Labels) -> int:
        return numbers.setdefault(labels, len(numbers))

    return {
        "readings": [[one.metric, one.value, number(one.labels), one.time_ns] for one in collection.readings],
        "missing": [[one.metric, number(one.labels), one.reason, one.detail] for one in collection.missing],
        "findings": [[one.code, one.message, number(one.labels), one.time_ns] for one in collection.findings],
        "labels": list(numbers),
    }


def decode(message: Mapping[str, Any]) -> Collection:
    """The collection that `encode` was given.

    Raises:
        WireError: it is none.
    """
    try:
        labels = [labels_from(pairs) for pairs in message["labels"]]
        return Collection(
            tuple(Reading(metric, value, labels[who], time) for metric, value, who, time in message["readings"]),
            tuple(
                Missing(metric, labels[who], MissingReason(reason), detail)
                for metric, who, reason, detail in message["missing"]
            ),
            tuple(Finding(code, text, labels[who], time) for code, text, who, time in message["findings"]),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise WireError(f"{type(error).__name__}: {error}") from error


def labels_from(pairs: list[list[str]]) -> Labels:
    """Labels as JSON has them."""
    return tuple((name, value) for name, value in pairs)
