"""Placement: the process that prints, and the ranks started without a launcher."""

from __future__ import annotations

import pytest

from stepscope.core.errors import UsageError
from stepscope.reference_workloads.placement import is_main_rank, refuse_launcher


@pytest.mark.parametrize(
    ("variables", "speaks"),
    [
        ({}, True),
        ({"RANK": "0", "WORLD_SIZE": "2"}, True),
        ({"RANK": "1", "WORLD_SIZE": "2"}, False),
        ({"RANK": "1"}, True),  # nobody else is there to speak
    ],
    ids=str,
)
def test_the_first_of_a_launchers_ranks_speaks(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], speaks: bool
) -> None:
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert is_main_rank() is speaks


def test_a_rank_that_is_no_number_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "x")
    with pytest.raises(UsageError, match="RANK: is not a rank or size: 'x'"):
        is_main_rank()


def test_what_starts_its_own_ranks_is_refused_under_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    refuse_launcher("a suite")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UsageError, match="RANK: is set by a launcher"):
        refuse_launcher("a suite")
