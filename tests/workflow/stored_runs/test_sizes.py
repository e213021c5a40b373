"""Sizes of a run by kind of file, and which of its files tell when it was written."""

from __future__ import annotations

import pytest

from stepscope.core.documents.run_directory import RankFile, trace_path, view_path
from stepscope.core.documents.stored_runs import RunBytes
from stepscope.workflow.stored_runs.sizes import RunSizes, kind_of_file

_RECORDS = {RankFile.STEPS, RankFile.COUNTERS, RankFile.PLACE}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        *((str(each.path(3, 7)), "telemetry" if each in _RECORDS else "dumps") for each in RankFile),
        (str(trace_path(7, 3)), "traces"),
        (str(trace_path(7, 3, is_light=True)), "traces"),
        (str(view_path(trace_path(7, 3))), "views"),
        ("analysis.json", "views"),
        ("timeline.json", "views"),
        ("run.json", "telemetry"),
        (".run.json.12.part", "telemetry"),
        ("verdict.json", "telemetry"),
        ("uploads/node7-0a1b.json", "telemetry"),
        ("nccl/nccl.log", "dumps"),
        ("checkpoints/step100/rank0.pt", "checkpoints"),
        ("model.safetensors", "other"),
        ("wandb/run-1/files/config.yaml", "other"),
        (".git", "other"),
    ],
)
def test_each_file_has_a_kind(path: str, kind: str) -> None:
    assert kind_of_file(path) == kind


def test_views_do_not_make_a_run_younger() -> None:
    sizes = RunSizes()
    sizes.add("run.json", 10, 100)
    sizes.add("traces/step4/rank0.json.gz", 1000, 90)
    sizes.add("analysis.json", 5, 999)
    sizes.add("views/step4/rank0.view", 7, 999)
    assert (sizes.written_ns, sizes.num_files, sizes.is_timed) == (100, 4, True)
    assert sizes.bytes == RunBytes(traces=1000, views=12, telemetry=10)
    assert sizes.bytes.total == 1022


def test_a_file_without_a_time_makes_the_age_unknown() -> None:
    sizes = RunSizes()
    sizes.add("run.json", 10, None)
    assert not sizes.is_timed


def test_files_of_others_are_named() -> None:
    sizes = RunSizes()
    for number in range(9):
        sizes.add(f"model{number}.pt", 1, 1)
    sizes.add("checkpoints/step1/x", 2, 1)
    assert sizes.other_files == [f"model{number}.pt" for number in range(5)]
    assert (sizes.bytes.other, sizes.bytes.checkpoints) == (9, 2)
