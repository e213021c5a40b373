"""Real ranks on gloo that hang under profile(): the analysis of their run names the rank that they wait for."""

from __future__ import annotations

import datetime
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.core.vocabulary import Cause, Reason
from stepscope.training import background_loop
from stepscope.workflow.analyze import analyze
from tests.training.processes import Training, fork

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("no_job")

_LIMIT = 1.0
_WORLD = 3
_GUILTY = 1
_NUM_STEPS = 12
_WAITS_WITHIN_SECONDS = 40


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_loop, "_EVERY_SECONDS", 0.05)
    monkeypatch.delenv("STEPSCOPE_STUCK_AFTER", raising=False)


def _ranks(out: Path, hold_up: Callable[[], object]) -> list[Training]:
    """Processes that train together; one of them is held up before a collective of its tenth step."""

    def train(rank: int, _: Any) -> None:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{out}/meet",
            rank=rank,
            world_size=_WORLD,
            timeout=datetime.timedelta(minutes=10),
        )
        with stepscope.profile("r", out, stuck_after=_LIMIT) as prof:
            for step in range(_NUM_STEPS):
                if rank == _GUILTY and step == 10:
                    hold_up()
                torch.distributed.all_reduce(torch.ones(2))
                prof.step()
        torch.distributed.barrier()

    return [fork(lambda tell, rank=rank: train(rank, tell)) for rank in range(_WORLD)]  # type: ignore[misc]


def _dumps(out: Path) -> list[Path]:
    return [out / "r" / "flight" / f"rank{rank}" for rank in range(_WORLD)]


def test_a_job_that_hung_is_told_so_with_the_rank_it_waits_for(tmp_path: Path) -> None:
    ranks = _ranks(tmp_path, lambda: threading.Event().wait(2 * _WAITS_WITHIN_SECONDS))
    deadline = time.monotonic() + _WAITS_WITHIN_SECONDS
    while time.monotonic() < deadline and not all(path.exists() for path in _dumps(tmp_path)):
        time.sleep(0.05)
    time.sleep(0.2)
    for rank in ranks:
        os.kill(rank.process_id, signal.SIGKILL)
        rank.end()
    verdict = analyze([str(tmp_path / "r")]).analysis.verdict
    assert (verdict.cause, verdict.reasons, verdict.ranks) == (Cause.HANG, [Reason.HOST], [_GUILTY])


def test_a_job_that_went_on_after_a_stuck_step_did_not_hang(tmp_path: Path) -> None:
    def hold_up() -> None:
        deadline = time.monotonic() + _WAITS_WITHIN_SECONDS
        while time.monotonic() < deadline and not all(path.exists() for path in _dumps(tmp_path)):
            threading.Event().wait(0.5)

    assert [rank.end() for rank in _ranks(tmp_path, hold_up)] == [0] * _WORLD
    assert all(path.exists() for path in _dumps(tmp_path))
    analysis = analyze([str(tmp_path / "r")]).analysis
    assert analysis.verdict.cause is not Cause.HANG
    assert any("after which the job trained on" in notice.message for notice in analysis.warnings)
