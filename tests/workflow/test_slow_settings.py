"""A run whose process had a slow setting: its analysis names it, with a trace and without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepscope
from stepscope.analyzer.slow_settings import SLOW_SETTING
from stepscope.training.captures.schedule import once
from stepscope.workflow.analyze import analyze

torch = pytest.importorskip("torch")


def _train(folder: Path, *, is_captured: bool) -> Path:
    model = torch.nn.Linear(2, 1)
    with (
        torch.autograd.set_detect_anomaly(True),
        stepscope.profile(
            run="r", out=folder, ranks="all" if is_captured else [], schedule=once(wait=4, active=3)
        ) as prof,
    ):
        for _ in range(12):
            model(torch.ones(4, 2)).sum().backward()
            prof.step()
    return folder / "r"


@pytest.mark.parametrize("is_captured", [False, True])
def test_the_analysis_names_the_setting(tmp_path: Path, is_captured: bool) -> None:
    run = _train(tmp_path, is_captured=is_captured)
    analysis = analyze([str(run)]).analysis
    assert bool(analysis.ranks) is is_captured
    (notice,) = [notice for notice in analysis.warnings if notice.code == SLOW_SETTING]
    assert notice.message.startswith("torch.autograd.set_detect_anomaly(False) (now True)")


def test_a_manifest_without_settings_is_read_as_before(tmp_path: Path) -> None:
    run = _train(tmp_path, is_captured=False)
    manifest = json.loads((run / "run.json").read_bytes())
    del manifest["settings"]
    (run / "run.json").write_text(json.dumps(manifest))
    codes = [notice.code for notice in analyze([str(run)]).analysis.warnings]
    assert SLOW_SETTING not in codes
    assert "unusable_file" not in codes
