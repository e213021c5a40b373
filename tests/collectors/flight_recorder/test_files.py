"""Are dumps found whatever they are called, and are other files left alone?"""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from stepscope.collectors.flight_recorder import DumpFile, find_dumps, read_dumps
from stepscope.core.errors import DataError

_EMPTY = {"version": "2.10", "entries": []}


def _write(path: Path) -> Path:
    path.write_bytes(json.dumps(_EMPTY).encode() if path.suffix == ".json" else pickle.dumps(_EMPTY, 2))
    return path


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("_dump_3", 3),
        ("nccl_trace_rank_12", 12),
        ("node-7.cluster2_fr_05", 5),
        ("rank0", 0),
        ("4.pkl", 4),
        ("r9.json", 9),
        ("rank3.host-a.pid4711", 3),
        ("fr_rank_5_20261128142155", 5),
    ],
)
def test_the_last_number_is_the_rank_whatever_comes_before(name: str, rank: int, tmp_path: Path) -> None:
    """pytorch#140879: a host's name in the prefix."""
    _write(tmp_path / name)
    files, notices = find_dumps([tmp_path])
    assert [(file.path.name, file.rank) for file in files] == [(name, rank)]
    assert notices == []


def test_other_files_of_the_folder_are_left_alone(tmp_path: Path) -> None:
    _write(tmp_path / "rank10")
    _write(tmp_path / "rank2")
    (tmp_path / "rank2.stuck.json").write_text('{"rank": 2}')
    (tmp_path / "rank2.stacks.txt").write_text("File train.py")
    (tmp_path / "fault_injection.log").write_text("Rank 2")
    (tmp_path / "log.3").write_text("entries of the log")
    (tmp_path / "folder4").mkdir()
    files, notices = find_dumps([tmp_path])
    assert [file.rank for file in files] == [2, 10]
    assert notices == []


def test_of_pickle_and_json_of_a_rank_the_pickle_counts_as_it_has_the_stacks(tmp_path: Path) -> None:
    _write(tmp_path / "trace_1.json")
    _write(tmp_path / "dump_1")
    files, notices = find_dumps([tmp_path])
    assert [file.path.name for file in files] == ["dump_1"]
    assert notices == []


def test_a_second_dump_of_a_rank_is_said_to_be_left_out(tmp_path: Path) -> None:
    _write(tmp_path / "a_1")
    _write(tmp_path / "b_1")
    files, notices = find_dumps([tmp_path])
    assert [file.path.name for file in files] == ["a_1"]
    assert [notice.code for notice in notices] == ["second_dump"]


def test_a_dump_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    _write(tmp_path / "dump_0")
    (tmp_path / "dump_1").touch()
    (tmp_path / "dump_2").write_bytes(pickle.dumps(_EMPTY)[:-3])
    dumps, notices = read_dumps(find_dumps([tmp_path])[0])
    assert [dump.rank for dump in dumps] == [0]
    assert [(notice.code, notice.message.rpartition("/")[2].split(":")[0]) for notice in notices] == [
        ("unusable_file", "dump_1"),
        ("unusable_file", "dump_2"),
    ]


def test_none_that_can_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "dump_1").touch()
    with pytest.raises(DataError, match="is empty"):
        read_dumps(find_dumps([tmp_path])[0])


@pytest.mark.parametrize(
    ("name", "said"), [("nothing", "does not exist"), ("text", "its name does not end with a rank")]
)
def test_a_path_that_will_not_do_is_an_error(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "text").touch()
    with pytest.raises(DataError, match=said):
        find_dumps([tmp_path / name])


def test_a_date_is_no_rank(tmp_path: Path) -> None:
    file = _write(tmp_path / "flight_20261128142155")
    assert find_dumps([tmp_path])[0] == []
    with pytest.raises(DataError, match="does not end with a rank"):
        find_dumps([file])


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dump_0")
    for path in (tmp_path / "dump_0", Path("/dev/zero")):
        with pytest.raises(DataError, match="is no file"):
            read_dumps([DumpFile(path, 0)])


def test_a_dump_knows_when_it_was_written(tmp_path: Path) -> None:
    file = _write(tmp_path / "dump_0")
    os.utime(file, ns=(5, 1_795_817_000_000_000_007))
    dumps, _ = read_dumps(find_dumps([tmp_path])[0])
    assert dumps[0].written_ns == 1_795_817_000_000_000_007
