"""The state files of stalled ranks are read, and nothing that only looks like them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from stepscope.core.documents.hang import LiveHangState, RankState
from stepscope.workflow.live_hang import read_live_hang


def _state(rank: int, *, is_in_collective: bool = True) -> RankState:
    now_ns = time.time_ns()
    where = "all_reduce" if is_in_collective else "load (train.py:7)"
    return RankState(rank, "h", 5, now_ns - 4_000_000_000, now_ns, 16.0, 12.0, True, "", where, is_in_collective)


def _run(folder: Path, *states: RankState, world_size: int = 3) -> Path:
    live = folder / "flight" / "live"
    live.mkdir(parents=True)
    (folder / "steps").mkdir()
    (folder / "run.json").write_text(json.dumps({"world_size": world_size}))
    for rank in range(world_size):
        (folder / "steps" / f"rank{rank}.jsonl").touch()
    for state in states:
        (live / f"rank{state.rank}.state").write_text(json.dumps(asdict(state)))
    return folder


def test_a_process_of_its_own_prints_the_answer_with_the_standard_library_alone(tmp_path: Path) -> None:
    run = _run(tmp_path, _state(0), _state(1, is_in_collective=False), _state(2))
    code = (
        "import sys; from stepscope.workflow.live_hang import main; main([sys.argv[1]]);"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'msgspec', 'torch', 'click')))"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True)
    told = json.loads(ended.stdout)
    assert (told["schema"], told["state"], told["kind"], told["ranks"]) == (
        "stepscope.live-hang/1",
        "hang",
        "host",
        [1],
    )


def test_a_rank_with_steps_and_without_a_word_is_suspected(tmp_path: Path) -> None:
    told = read_live_hang(_run(tmp_path, _state(0), _state(2)))
    assert (told.state, told.ranks, told.silent_ranks) == (LiveHangState.HANG, [1], [1])


def test_ranks_of_an_earlier_larger_start_are_not_missed(tmp_path: Path) -> None:
    run = _run(tmp_path, _state(0), _state(1, is_in_collective=False))
    (run / "run.json").write_text(json.dumps({"world_size": 2}))
    assert read_live_hang(run).ranks == [1]


def test_what_was_left_long_ago_says_nothing(tmp_path: Path) -> None:
    run = _run(tmp_path, _state(0), _state(1, is_in_collective=False), _state(2))
    assert read_live_hang(run, now_ns=time.time_ns() + 600_000_000_000).state is LiveHangState.NONE


def test_links_and_nonsense_count_as_no_file(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", _state(0), _state(2))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(json.dumps(asdict(_state(1))))
    live = run / "flight" / "live"
    (live / "rank1.state").symlink_to(elsewhere)
    assert read_live_hang(run).silent_ranks == [1]
    (live / "rank1.state").unlink()
    for nonsense in ("[" * 100_000, "[]", "{}", json.dumps(asdict(_state(0))), "\x80", '{"rank": 1e999}'):
        (live / "rank1.state").write_text(nonsense)
        assert read_live_hang(run).silent_ranks == [1]


def test_a_directory_that_is_not_there_tells_of_no_hang(tmp_path: Path) -> None:
    assert read_live_hang(tmp_path / "gone").state is LiveHangState.NONE


def test_files_of_other_users_count_as_none_where_the_user_is_told(tmp_path: Path) -> None:
    run = _run(tmp_path, _state(0), _state(1, is_in_collective=False), _state(2))
    assert read_live_hang(run, owner=os.geteuid()).ranks == [1]
    assert read_live_hang(run, owner=os.geteuid() + 1).state is LiveHangState.NONE


@pytest.mark.parametrize(
    "case", sorted(Path(__file__).with_name("recorded_hangs").glob("live_*")), ids=lambda case: case.name
)
def test_hangs_of_two_gpus_are_named_as_soon_as_the_ranks_report(case: Path, tmp_path: Path) -> None:
    """From `benchmarks.several_gpus --hangs`, set to an age at which nobody is blamed without proof.

    The call in which rank 1 waits for its GPU (`device`) was added by its line: states did not have it then.
    """
    truth = json.loads((case / "truth.json").read_text())
    shutil.copytree(case, run := tmp_path / case.name)
    newest_ns = 0
    for path in (run / "flight" / "live").glob("*.state"):
        state = json.loads(path.read_text()) | {"age_seconds": 17.0}
        newest_ns = max(newest_ns, state["seen_ns"])
        path.write_text(json.dumps(state | {"is_still": True}))
    live = read_live_hang(run, now_ns=newest_ns)
    assert (live.state, live.kind, live.ranks) == (LiveHangState.HANG, truth["kind"], truth["guilty"])
