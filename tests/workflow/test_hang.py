"""The culprits of recorded hangs are named, and nobody in a healthy run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.workflow.run_records import read_hang


@pytest.mark.parametrize(
    ("folder", "cause", "kind", "ranks"),
    [
        ("diag/fr_nvrx/gpu_error_1st", "hang", "device", [12, 14]),
        ("diag/fr_nvrx/lock_gil_1st", "hang", "host", [9, 14]),
        ("diag/fr_gloo_torch214/hang", "hang", "host", [2]),
        ("diag/fr_h100x2/host_sleep0", "hang", "host", [0]),
        ("diag/fr_h100x2/order", "hang", "desync", [0, 1]),
        ("diag/fr_h100x2/healthy", "none", None, []),
        ("h100x2/ddp", "none", None, []),
    ],
)
def test_recorded_hangs(folder: str, cause: str, kind: str | None, ranks: list[int], shared_traces: Path) -> None:
    begin = time.process_time()
    report = read_hang([str(shared_traces / folder)])
    seconds = time.process_time() - begin
    assert (report.verdict.cause, report.verdict.kind, report.verdict.ranks) == (cause, kind, ranks)
    assert report.warnings == []
    assert seconds < 1


def test_json_dumps_give_the_same_answer(shared_traces: Path) -> None:
    files = sorted((shared_traces / "diag/fr_gloo_torch214/hang").glob("fr_trace_*.json"))
    report = read_hang([str(file) for file in files])
    assert (report.verdict.kind, report.verdict.ranks) == ("host", [2])


def test_without_the_guilty_rank_s_dump_it_is_the_first_suspect(shared_traces: Path) -> None:
    folder = shared_traces / "diag/fr_gloo_torch214/hang"
    report = read_hang([str(folder / f"_dump_{rank}") for rank in (0, 1, 3)])
    assert report.verdict.ranks == [2]
    assert report.missing_ranks == [2]


def test_a_folder_without_dumps_is_said_to_have_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no flight recorder dump; set TORCH_FR_BUFFER_SIZE"):
        read_hang([str(tmp_path)])


def test_of_a_folder_whose_dumps_are_one_level_down_that_level_is_named(tmp_path: Path, shared_traces: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "hang").symlink_to(shared_traces / "diag/fr_gloo_torch214/hang")
    with pytest.raises(DataError, match=rf"hold some: hang; run: stepscope hang {tmp_path}/hang$"):
        read_hang([str(tmp_path)])


def test_while_ranks_have_only_begun_to_stand_their_dumps_of_now_are_read(tmp_path: Path, shared_traces: Path) -> None:
    live = tmp_path / "flight" / "live"
    live.mkdir(parents=True)
    (tmp_path / "flight" / "rank0.stacks.txt").touch()
    for rank in range(4):
        dump = (shared_traces / f"diag/fr_gloo_torch214/hang/_dump_{rank}").read_bytes()
        (live / f"rank{rank}").write_bytes(dump)
        (live / f"rank{rank}.state").write_text("{}")
    assert read_hang([str(tmp_path)]).verdict.ranks == [2]
    (tmp_path / "flight" / "rank0").write_bytes((live / "rank0").read_bytes())  # the watchdog's come first
    assert read_hang([str(tmp_path)]).ranks == [0]


@pytest.mark.parametrize(
    "case", sorted(Path(__file__).with_name("recorded_hangs").iterdir()), ids=lambda case: case.name
)
def test_hangs_of_two_gpus(case: Path) -> None:
    """Made by `benchmarks.accuracy.hang --backend nccl`; `-ahead`: hosts that run ahead of their GPUs. `uneven_data` is
    the suite's: the rank without data waits in another group until NCCL aborts that call, which it calls completed."""
    truth = json.loads((case / "truth.json").read_text())
    verdict = read_hang([str(case)]).verdict
    assert (verdict.kind, verdict.ranks) == (truth["kind"], truth["guilty"])
