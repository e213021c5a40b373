"""Allocation of cards' time: exact, and each moment of a card once."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.cost.allocation import CardTime, DeviceTime, Share, allocate, slices_of
from stepscope.analyzer.cost.report import CostedJob, RateCard, cost_rows, figures

_STEPS = 12
_flags = st.lists(st.booleans(), min_size=_STEPS, max_size=_STEPS).map(lambda flags: np.array(flags, np.bool_))


@st.composite
def _devices(draw: st.DrawFn, profile: str) -> DeviceTime:
    jobs = draw(st.dictionaries(st.sampled_from(["slurm 1", "slurm 2", "slurm 3"]), _flags, max_size=3))
    return DeviceTime(profile, draw(_flags), draw(_flags), draw(_flags), jobs)


@st.composite
def _cards(draw: st.DrawFn) -> list[CardTime]:
    cards = []
    for number in range(draw(st.integers(1, 3))):
        profiles = draw(st.lists(st.sampled_from(["", "1g.10gb", "2g.20gb", "3g.40gb", "1c.3g.40gb", "?"]), max_size=5))
        model = draw(st.sampled_from(["NVIDIA H100 80GB HBM3", "NVIDIA A30"]))
        devices = [draw(_devices(profile)) for profile in profiles]
        cards.append(CardTime(f"n{number}/0", f"n{number}", model, devices, np.full(_STEPS, 360.0)))
    return cards


@given(_cards())
def test_shares_add_up_to_the_time_in_which_cards_were_there(cards: list[CardTime]) -> None:
    shares = allocate(cards, 60.0)
    there = sum(
        int(np.any([device.present for device in card.devices], axis=0).sum()) for card in cards if card.devices
    )
    assert sum((share.steps for share in shares.values()), start=Fraction(0)) == there
    assert sum(share.joules or 0.0 for share in shares.values()) == pytest.approx(there * 60.0 * 360.0)
    for share in shares.values():
        assert 0 <= share.idle_steps + share.unknown_steps <= share.steps


@given(_cards(), st.sampled_from(["job", "user", "team", "node"]))
def test_rows_and_what_nobody_had_add_up_to_the_cards(cards: list[CardTime], by: str) -> None:
    shares = allocate(cards, 60.0)
    jobs = {f"slurm {n}": CostedJob({"job_kind": "slurm", "job_id": str(n)}, user=f"u{n % 2}") for n in (1, 2, 3)}
    rates = RateCard("USD", {"NVIDIA A30": 1.0, "default": 2.0}, kwh=0.5, pue=1.2)
    rows = cost_rows(shares, jobs, by, 1 / 60, rates)
    free = figures({key: share for key, share in shares.items() if key[0] is None}, 1 / 60, rates)
    total = figures(shares, 1 / 60, rates)
    assert sum(row.figures.gpu_hours for row in rows) + free.gpu_hours == pytest.approx(total.gpu_hours)
    assert sum(row.figures.money or 0.0 for row in rows) + (free.money or 0.0) == pytest.approx(total.money or 0.0)
    hours = [row.figures.gpu_hours for row in rows]
    assert hours == sorted(hours, reverse=True)


def _constant(profile: str, *jobs: str, idle: bool = False) -> DeviceTime:
    yes, no = np.ones(_STEPS, np.bool_), np.zeros(_STEPS, np.bool_)
    return DeviceTime(profile, yes, yes if idle else no, no, dict.fromkeys(jobs, yes))


def _shares(*devices: DeviceTime, model: str = "NVIDIA H100 80GB HBM3") -> dict[str | None, Share]:
    card = CardTime("n/0", "n", model, devices, np.full(_STEPS, np.nan))
    return {job: share for (job, _, _), share in allocate([card], 60.0).items()}


def test_mig_instances_are_parts_of_the_card() -> None:
    shares = _shares(_constant("3g.40gb", "a"), _constant("2g.20gb", "b"), _constant("1g.10gb"))
    parts = {job: share.steps / _STEPS for job, share in shares.items()}
    assert parts == {"a": Fraction(3, 7), "b": Fraction(2, 7), None: Fraction(2, 7)}


def test_jobs_that_share_a_device_in_turns_have_equal_parts() -> None:
    shares = _shares(_constant("", "a", "b", "c"))
    assert {job: share.steps for job, share in shares.items()} == dict.fromkeys("abc", Fraction(_STEPS, 3))


def test_idle_time_of_a_held_card_is_the_jobs() -> None:
    shares = _shares(_constant("", "a", idle=True))
    assert shares["a"].idle_steps == _STEPS
    assert shares["a"].joules is None


@pytest.mark.parametrize(
    ("profile", "model", "part"),
    [
        ("7g.80gb", "NVIDIA H100 80GB HBM3", Fraction(1)),
        ("1g.10gb+me", "NVIDIA H100 80GB HBM3", Fraction(1, 7)),
        ("1c.3g.40gb", "NVIDIA H100 80GB HBM3", Fraction(1, 7)),
        ("2g.12gb", "NVIDIA A30", Fraction(1, 2)),
        ("odd", "NVIDIA H100 80GB HBM3", Fraction(0)),
    ],
)
def test_slices_of_profiles(profile: str, model: str, part: Fraction) -> None:
    assert slices_of(profile, model) == part
