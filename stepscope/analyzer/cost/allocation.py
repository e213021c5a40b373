"""Allocation of cards' time to jobs: each step of a card is divided exactly, and nothing of it counts twice.

A MIG instance of profile `3g.40gb` is 3 of the card's 7 slices (A30: of 4), `1c.3g.40gb` one; slices in no instance are
nobody's. Jobs that have a device at the same time have equal parts of it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Flags = npt.NDArray[np.bool_]
_PROFILE = re.compile(r"(?:(\d)c\.)?(\d)g\.")
_SLICES, _SLICES_OF_A30 = 7, 4


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """A card, or a MIG instance of one, over the steps of a span.

    Attributes:
        profile: of the instance, "1g.10gb"; empty for a whole card.
        present: whether the device was there, by step.
        idle: whether no kernel ran on it for minutes, although a job has it, by step.
        unknown: whether its use is not known, by step.
        holders: whether each job has it, by step.
    """

    profile: str
    present: Flags
    idle: Flags
    unknown: Flags
    holders: Mapping[str, Flags] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CardTime:
    """A card over the steps of a span.

    Attributes:
        model: the driver's name; empty where it is not known.
        devices: the card itself, its MIG instances, or first one and then the other.
        power_watts: by step; NaN where unknown.
    """

    card: str
    node: str
    model: str
    devices: Sequence[DeviceTime]
    power_watts: npt.NDArray[np.float64]


@dataclass(slots=True)
class Share:
    """Part of cards' time.

    Attributes:
        steps, idle_steps, unknown_steps: card-steps: whole steps of a whole card; exact.
        joules: energy of that part; None where power is never known.
    """

    steps: Fraction = Fraction(0)
    idle_steps: Fraction = Fraction(0)
    unknown_steps: Fraction = Fraction(0)
    joules: float | None = None

    def add(self, part: Fraction, *, is_idle: bool, is_unknown: bool, joules: float | None) -> None:
        """Add steps in one state."""
        self.steps += part
        self.idle_steps += part if is_idle else 0
        self.unknown_steps += part if is_unknown and not is_idle else 0
        if joules is not None:
            self.joules = (self.joules or 0.0) + joules * float(part)


Key = tuple[str | None, str, str]
"""Job (None: nobody), node, model of the card."""


def allocate(cards: Iterable[CardTime], step_seconds: float) -> dict[Key, Share]:
    """Divide the time of cards among jobs; all shares add up to the steps in which the cards were there.

    Args:
        step_seconds: length of a step, for energy.
    """
    shares: dict[Key, Share] = defaultdict(Share)
    for card in cards:
        for first, end in _constant_spans(card):
            parts = _divide(card, first)
            if not parts:
                continue
            power = card.power_watts[first:end]
            known = power[~np.isnan(power)]
            joules = float(known.mean()) * step_seconds if len(known) else None
            for job, is_idle, is_unknown, part in parts:
                key = (job, card.node, card.model)
                shares[key].add(part * (end - first), is_idle=is_idle, is_unknown=is_unknown, joules=joules)
    return dict(shares)


def _constant_spans(card: CardTime) -> list[tuple[int, int]]:
    """Spans of steps in which nothing of the card's use changes."""
    rows = [
        flags
        for device in card.devices
        for flags in (device.present, device.idle, device.unknown, *device.holders.values())
    ]
    if not rows or not len(rows[0]):
        return []
    table = np.stack(rows)
    changes = np.flatnonzero((table[:, 1:] != table[:, :-1]).any(axis=0)) + 1
    edges = [0, *changes.tolist(), table.shape[1]]
    return list(pairwise(edges))


def _divide(card: CardTime, step: int) -> list[tuple[str | None, bool, bool, Fraction]]:
    """Job, whether idle, whether unknown, and part of the card in one step; empty where the card is not there."""
    there = [device for device in card.devices if device.present[step]]
    if not there:
        return []
    instances = [device for device in there if slices_of(device.profile, card.model)]
    parts: list[tuple[str | None, bool, bool, Fraction]] = []
    rest = Fraction(1)
    for device in instances or there[:1]:
        size = min(slices_of(device.profile, card.model), rest) if instances else Fraction(1)
        rest -= size
        holders = [job for job, has in device.holders.items() if has[step]]
        is_idle, is_unknown = bool(device.idle[step]), bool(device.unknown[step])
        if not holders:
            parts.append((None, False, is_unknown, size))
        parts += [(job, is_idle, is_unknown, size / len(holders)) for job in holders]
    if rest > 0:
        parts.append((None, False, False, rest))
    return parts


def slices_of(profile: str, model: str) -> Fraction:
    """Part of the card's slices that a MIG instance has; none of a profile that is not known."""
    match = _PROFILE.match(profile)
    all_slices = _SLICES_OF_A30 if "A30" in model.split() else _SLICES
    return Fraction(min(int(match[1] or match[2]), all_slices), all_slices) if match else Fraction(0)
