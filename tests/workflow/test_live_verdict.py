"""The process of the live verdict: what it writes, when, and how much it may take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.core.documents.run_directory import LIVE_VERDICT_FILE, RankFile
from stepscope.core.protocol.verdicts import LiveVerdict, read_live_verdict
from stepscope.workflow import live_verdict as module
from stepscope.workflow.live_verdict import LiveVerdictLoop, live_verdict
from tests.workflow.written_runs import STEP_NS, write_run


def _add_step(run: Path) -> None:
    with (run / RankFile.STEPS.path(0)).open("a") as file:
        file.write(json.dumps({"index": 10**6, "start_ns": 2 * 10**18, "end_ns": 2 * 10**18 + STEP_NS}) + "\n")


def test_it_is_of_the_latest_steps_and_saves_nothing_else(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", num_steps=1000, waits_ns=lambda step: 60_000_000 if step >= 980 else 0)
    verdict = live_verdict(run, 2.0)
    assert (verdict.run, verdict.cause, verdict.bottleneck, verdict.num_steps) == ("r", "data_loading", True, 20)
    assert verdict.share == pytest.approx(0.6, abs=0.05)
    assert verdict.step_ms == pytest.approx(100.0)
    assert verdict.fixed_step_ms == pytest.approx(40.0, abs=5.0)
    assert sorted(path.name for path in run.iterdir()) == ["run.json", "steps"]


def test_a_turn_without_new_steps_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "r", num_steps=50)
    loop = LiveVerdictLoop(run, 3.0)
    assert loop.turn() >= 3.0
    first = read_live_verdict(json.loads((run / LIVE_VERDICT_FILE).read_bytes()))
    monkeypatch.setattr(module, "live_verdict", lambda *_: pytest.fail("it has read"))
    assert loop.turn() == 3.0
    monkeypatch.undo()
    _add_step(run)
    loop.turn()
    assert read_live_verdict(json.loads((run / LIVE_VERDICT_FILE).read_bytes())).time_ns > first.time_ns


def test_what_takes_long_or_fails_waits_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "r", num_steps=1)
    spent = [0.0]

    def costs(seconds: float) -> None:
        def judge(*_: object) -> LiveVerdict:
            spent[0] += seconds
            return LiveVerdict("r", 1, "idle", 0.5)

        monkeypatch.setattr(module, "live_verdict", judge)

    loop = LiveVerdictLoop(run, 60.0, cpu_seconds=lambda: spent[0])
    waits = []
    for seconds in (1.0, 30.0, 1000.0):
        costs(seconds)
        _add_step(run)
        waits.append(loop.turn())
    assert waits == [60.0, 600.0, 3600.0]
    monkeypatch.setattr(module, "live_verdict", lambda *_: 1 / 0)
    waits = []
    for _ in range(8):
        _add_step(run)
        waits.append(loop.turn())
    assert waits == [120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0, 3600.0]
    costs(0.0)
    _add_step(run)
    assert loop.turn() == 60.0


def test_a_run_that_has_not_begun_is_tried_again(tmp_path: Path) -> None:
    loop = LiveVerdictLoop(tmp_path, 5.0)
    assert loop.turn() == 5.0
    assert not (tmp_path / LIVE_VERDICT_FILE).exists()
