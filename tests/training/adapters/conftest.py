"""Run directory as measured by an adapter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.core.documents.run_directory import StepReport
from stepscope.workflow.analyze import analyze
from stepscope.workflow.run_records import read_steps


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "WORLD_SIZE", "STEPSCOPE_DISABLE", "STEPSCOPE_RUN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def steps_of() -> Callable[[Path], StepReport]:
    """The steps of a run, whose capture is analysed too: its ledger must add up."""

    def read(run: Path) -> StepReport:
        analysis = analyze([str(run)]).analysis
        assert sum(analysis.ledger.values()) == pytest.approx(1)
        return read_steps(str(run))

    return read
