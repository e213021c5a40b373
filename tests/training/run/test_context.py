"""Settings: invalid ones are reported, and optional ones may be left out."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from stepscope.training.run.context import ProfileSettings
from stepscope.training.run.mesh import mesh_sizes


def _doubts(world_size: int, **said: Any) -> list[str]:
    unsaid: dict[str, Any] = dict.fromkeys(field.name for field in fields(ProfileSettings))
    settings = ProfileSettings(**(unsaid | {"ranks": "auto"} | said))
    return settings.warnings(mesh_sizes(settings.mesh, world_size), world_size)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"ranks": "all"},
        {"ranks": [0, 7]},
        {"mesh": {"tp": 2, "dp": 4}},
        {"mesh": {"dp": 4}},  # the rest is not told
        {"mesh": {"dp_replicate": 2, "dp_shard": 4, "ep": 8}},
    ],
    ids=str,
)
def test_what_can_be_is_not_doubted(said: dict[str, Any]) -> None:
    assert _doubts(8, **said) == []


def test_ranks_that_there_are_not() -> None:
    assert _doubts(1, ranks=[7]) == ["ranks: the job has 1, so that rank 7 will never be captured"]
    assert _doubts(4, ranks=(0, 4, 5)) == ["ranks: the job has 4, so that ranks 4–5 will never be captured"]


def test_a_mesh_that_is_not_this_jobs() -> None:
    assert _doubts(1, mesh={"zz": 3}) == ["mesh: 'zz' is none of tp, pp, dp, ep, cp and is left out"]
    assert _doubts(8, mesh={"tp": 2, "dp": 3}) == ["mesh: tp=2, dp=3 is 6 ranks, which do not divide a job of 8"]


def test_many_absent_ranks_make_one_short_line() -> None:
    (line,) = _doubts(2, ranks=range(0, 100_000, 7))
    assert line.endswith(" and 14,277 more will never be captured")
    assert len(line) < 150
