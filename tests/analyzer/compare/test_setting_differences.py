"""Settings that differ: each is found by its name, and what acts on the part that got slower comes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepscope.analyzer.compare.setting_differences import compare_settings
from stepscope.core.documents.comparison import Change, Difference, RecordedDifference
from stepscope.core.documents.run_directory import RunManifest
from stepscope.core.documents.training_settings import (
    BackwardSettings,
    DdpSettings,
    LoaderSettings,
    OptimizerSettings,
    TrainerSettings,
    TrainingSettings,
)
from tests.analyzer.compare.runs import make_run

_SETTINGS = TrainingSettings(
    anomaly_mode=False,
    gc_thresholds=[700, 10, 10],
    gc_frozen=10,
    loaders=[LoaderSettings(True, 2), LoaderSettings(False, 1)],
    optimizers=[OptimizerSettings("AdamW", False, None)],
    ddp=[DdpSettings(25.0)],
    backward=BackwardSettings(1),
    trainer=TrainerSettings("transformers", "5", {"save_steps": 500}),
)


def _run(settings: TrainingSettings | None, **environment: str) -> Any:
    manifest = RunManifest("r", "h", 1, {}, 8, {}, environment, [], settings=settings)
    return make_run(10.0, 10.0, manifest=manifest)


def _slower(name: str, by_ms: float) -> RecordedDifference:
    return RecordedDifference(name, Difference(1.0, 1.0 + by_ms, by_ms, state=Change.SLOWER))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"anomaly_mode": True}, "anomaly_mode"),
        ({"gc_thresholds": [50, 2, 2]}, "gc_thresholds"),
        ({"loaders": [LoaderSettings(True, 0), LoaderSettings(False, 1)]}, "loaders.num_workers"),
        ({"optimizers": [OptimizerSettings("AdamW", True, None)]}, "optimizers.fused"),
        ({"ddp": [DdpSettings(100.0)]}, "ddp.bucket_cap_mb"),
        ({"backward": BackwardSettings(4)}, "backward.passes"),
        ({"autocast": {"cuda": "bfloat16"}}, "autocast"),
        ({"trainer": TrainerSettings("transformers", "5", {"save_steps": 10})}, "trainer.save_steps"),
    ],
)
def test_each_setting_that_differs_is_listed(change: dict[str, Any], name: str) -> None:
    sides = ([_run(_SETTINGS)], [_run(replace(_SETTINGS, **change))])
    assert [row.name for row in compare_settings(sides, [], [])] == [name]
    assert compare_settings((sides[0], sides[0]), [], []) == []


def test_a_loader_that_does_not_train_and_what_differs_by_chance_are_left_out() -> None:
    other = replace(_SETTINGS, loaders=[LoaderSettings(True, 2), LoaderSettings(False, 9)], gc_frozen=99)
    assert compare_settings(([_run(_SETTINGS)], [_run(other)]), [], []) == []


def test_a_graph_that_was_looked_at_in_part_tells_the_passes_alone() -> None:
    part = replace(_SETTINGS, backward=BackwardSettings(1, num_softmax=3, is_whole=False))
    assert compare_settings(([_run(_SETTINGS)], [_run(part)]), [], []) == []


def test_the_setting_that_acts_on_what_got_slower_comes_first() -> None:
    other = replace(_SETTINGS, anomaly_mode=True, loaders=[LoaderSettings(True, 0), LoaderSettings(False, 1)])
    sides = ([_run(_SETTINGS)], [_run(other, NCCL_ALGO="Ring")])
    rows = compare_settings(sides, [_slower("data_loading", 20.0), _slower("rest", 2.0)], [])
    assert [row.name for row in rows] == ["loaders.num_workers", "anomaly_mode", "NCCL_ALGO"]
    assert (rows[0].a, rows[0].b, rows[0].explains_ms) == ("2", "0", 20.0)
    assert (rows[2].a, rows[2].b) == (None, "Ring")
    rows = compare_settings(sides, [_slower("rest", 20.0)], [])
    assert rows[0].name == "anomaly_mode"


def test_of_a_faster_step_the_setting_that_acts_on_what_got_faster_comes_first() -> None:
    other = replace(_SETTINGS, anomaly_mode=True, loaders=[LoaderSettings(True, 8), LoaderSettings(False, 1)])
    sides = ([_run(_SETTINGS)], [_run(other)])
    faster = RecordedDifference("data_loading", Difference(30.0, 10.0, -20.0, state=Change.FASTER))
    rows = compare_settings(sides, [faster, _slower("rest", 2.0)], [], is_faster=True)
    assert [(row.name, row.explains_ms) for row in rows] == [("loaders.num_workers", 20.0), ("anomaly_mode", 0.0)]


def test_runs_without_settings_are_compared_by_what_they_have() -> None:
    assert compare_settings(([_run(None)], [_run(_SETTINGS)]), [], []) == []
    assert compare_settings(([make_run(1.0)], [make_run(1.0)]), [], []) == []
