"""A pool of ranks serves case after case, whatever becomes of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.several_gpus.pool import Pool
from benchmarks.several_gpus.rank import RankPlace, Task

_TABLE = "tests.benchmarks.several_gpus.jobs:JOBS"


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    folder = tmp_path_factory.mktemp("pool")
    place = RankPlace(0, 2, "cpu", _TABLE, folder, ("json", "no_such_module"), is_tiny=True)
    pool = Pool(place, {"SEVERAL_GPUS_TEST": "pool", "GLOO_SOCKET_IFNAME": "lo"})
    assert pool.start().trouble is None
    yield pool
    pool.close()
    assert not pool.is_running


def _blocks(pool: Pool, folder: Path, name: str = "plain", seconds: float = 60.0) -> str | None:
    return pool.run(Task("blocks", name, folder / name, sets=(frozenset(),)), seconds).trouble


def test_what_cannot_be_imported_is_told(pool: Pool) -> None:
    assert ["no_such_module" in line for line in pool.missing] == [True]


def test_a_case_that_fails_on_every_rank_leaves_the_pool_as_it_is(pool: Pool, tmp_path: Path) -> None:
    before = [process.pid for process in pool._ranks]
    trouble = _blocks(pool, tmp_path, "fails_everywhere")
    assert trouble is not None
    assert "on no rank" in trouble
    assert _blocks(pool, tmp_path) is None
    assert [process.pid for process in pool._ranks] == before


def test_a_case_that_fails_on_one_rank_starts_the_pool_anew(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.several_gpus.pool._GRACE_SECONDS", 0.5)
    trouble = _blocks(pool, tmp_path, "fails_on_one")
    assert trouble is not None
    assert "not on rank 1" in trouble
    assert not pool.is_running
    assert _blocks(pool, tmp_path) is None


def test_a_rank_that_hangs_is_killed_and_says_where_it_was(pool: Pool, tmp_path: Path) -> None:
    trouble = _blocks(pool, tmp_path, "hangs", seconds=2.0)
    assert trouble is not None
    assert "rank 1 did not answer within 2 s" in trouble
    assert "jobs.py" in trouble
    assert not pool.is_running
