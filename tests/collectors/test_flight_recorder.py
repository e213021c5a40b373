"""Each form of a flight recorder dump is read; anything else is refused in one line."""

from __future__ import annotations

import json
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.flight_recorder import DumpFile, find_flight_dumps, read_flight_dump, read_flight_dumps
from stepscope.collectors.safe_pickle.loading import UnsafePickleError
from stepscope.core.documents.hang import GroupProgress, StackFrame
from stepscope.core.errors import DataError


def _entry(record: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "record_id": record,
        "pg_id": 1,
        "process_group": ("2", "TENSOR"),
        "collective_seq_id": 7,
        "p2p_seq_id": 0,
        "op_id": 7,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_795_817_000_000_000_000,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "input_sizes": [[4, 2]],
        "output_sizes": [[4, 2]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "retired": False,
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [{"name": "train", "filename": "train.py", "line": 7}],
        **more,
    }


def _dump(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
        "pg_status": {
            "0": {"last_enqueued_collective": 9, "last_started_collective": -1, "last_completed_collective": -1}
        },
        "entries": list(entries),
        **more,
    }


def test_pickle_and_json_say_the_same() -> None:
    told = _dump(_entry(1), _entry(0, frames=[]))
    by_pickle = read_flight_dump(pickle.dumps(told, 2), rank=3, where="here")
    assert read_flight_dump(json.dumps(told).encode(), rank=3, where="here") == by_pickle
    assert by_pickle.groups == {"0": (0, 1, 2)}
    assert by_pickle.descriptions == {"0": "default_pg"}
    assert by_pickle.progress == {0: GroupProgress(9, None)}
    assert [one.record for one in by_pickle.operations] == [0, 1]
    call = by_pickle.operations[1]
    assert (call.group, call.description, call.group_id, call.sequence) == ("2", "TENSOR", 1, 7)
    assert (call.backend, call.name, call.is_p2p, call.is_done, call.is_given_up) == (
        "nccl", "all_reduce", False, False, False,
    )  # fmt: skip
    assert call.frames == (StackFrame("train", "train.py", 7),)
    assert call.created_ns == 1_795_817_000_000_000_000


def test_the_text_of_members_is_never_run() -> None:
    told = {"1": "__import__('os').system('true')", "2": "(0,)", "3": "'[0]'", "4": "[0, 1, \x1e, 3]", "5": "[0,\n, 6]"}
    groups = {name: {"ranks": ranks} for name, ranks in told.items()}
    dump = read_flight_dump(pickle.dumps(_dump(pg_config=groups)), rank=0, where="here")
    assert dump.groups == {"1": None, "2": (0,), "3": None, "4": None, "5": None}


def test_members_as_a_list_and_a_nameless_group_of_gloo() -> None:
    groups = {"": {"ranks": "[0, 1]"}, "1": {"ranks": [2, 3]}, "2": {"ranks": ["a"]}, "3": {}}
    dump = read_flight_dump(pickle.dumps(_dump(pg_config=groups)), rank=0, where="here")
    assert dump.groups == {"1": (2, 3), "2": None, "3": None}


@pytest.mark.parametrize(
    ("told", "backend", "name"),
    [
        ("nccl:send 0->3", "nccl", "send 0->3"),
        ("gloo:all_reduce", "gloo", "all_reduce"),
        ("nccl2:all_reduce", "nccl2", "all_reduce"),
        ("nccl:coalesced", "nccl", "coalesced"),
        ("nccl:all_gather:coalesced", "nccl", "all_gather:coalesced"),
        ("all_reduce", "", "all_reduce"),
    ],
)
def test_any_backend_is_read(told: str, backend: str, name: str) -> None:
    dump = read_flight_dump(pickle.dumps(_dump(_entry(profiling_name=told))), rank=0, where="here")
    assert (dump.operations[0].backend, dump.operations[0].name) == (backend, name)


@pytest.mark.parametrize(
    ("state", "retired", "is_done", "is_given_up"),
    [
        ("completed", True, True, False),
        ("completed", False, True, False),
        ("scheduled", True, True, True),
        ("started", False, False, False),
    ],
)
def test_what_has_ended(state: str, retired: bool, is_done: bool, is_given_up: bool) -> None:
    dump = read_flight_dump(pickle.dumps(_dump(_entry(state=state, retired=retired))), rank=0, where="here")
    assert (dump.operations[0].is_done, dump.operations[0].is_given_up) == (is_done, is_given_up)


@pytest.mark.parametrize(
    ("seconds", "timeout_ms", "is_given_up"), [(15, 15_000, True), (14, 15_000, False), (15, None, False)]
)
def test_what_lasted_until_its_timeout_was_aborted(seconds: int, timeout_ms: int | None, is_given_up: bool) -> None:
    """NCCL says that it completed."""
    begin = 1_795_817_000_000_000_000
    ended = _entry(state="completed", timeout_ms=timeout_ms, time_discovered_completed_ns=begin + seconds * 10**9)
    (call,) = read_flight_dump(pickle.dumps(_dump(ended)), rank=0, where="here").operations
    assert (call.is_done, call.is_given_up) == (True, is_given_up)


def test_zero_is_a_time_that_is_not_known() -> None:
    dump = read_flight_dump(json.dumps(_dump(_entry(time_discovered_completed_ns=0))).encode(), rank=0, where="here")
    assert dump.operations[0].completed_ns is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"{}", "it has no entries"),
        (b"{", "is not complete JSON"),
        (b"{" * 100_000, "is not complete JSON"),
        (pickle.dumps([]), "it has no entries"),
        (pickle.dumps({"entries": {}}), "it has no entries"),
        (pickle.dumps({"entries": [{}]}), "KeyError"),
        (pickle.dumps(_dump(_entry(record_id="x"))), "ValueError"),
        (pickle.dumps(_dump(pg_status={"0": 7})), "AttributeError"),
        (b"\x89PNG", "is neither a pickle nor JSON"),
        (b"\x80\x04", "is not a complete pickle"),
    ],
)
def test_what_is_no_dump_is_refused_in_one_line(content: bytes, said: str) -> None:
    with pytest.raises(DataError, match=said) as refused:
        read_flight_dump(content, rank=0, where="dump_0")
    assert "\n" not in str(refused.value)


def test_a_dump_that_would_run_something_is_refused() -> None:
    with pytest.raises(UnsafePickleError, match="GLOBAL"):
        read_flight_dump(pickle.dumps(_dump(_entry(state=print))), rank=0, where="dump_0")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=9,
)


@given(st.dictionaries(st.sampled_from(sorted(_entry())), _JSON, max_size=4), st.data())
def test_any_values_are_read_or_refused(changed: dict[str, Any], data: st.DataObject) -> None:
    more = data.draw(st.dictionaries(st.sampled_from(["pg_config", "pg_status", "version"]), _JSON, max_size=2))
    with suppress(DataError):
        read_flight_dump(json.dumps(_dump(_entry(**changed), **more)).encode(), rank=0, where="here")


@pytest.mark.parametrize(
    "ranks", ["[1 2]", "[01, x]", "[,]", "[" + "1" * 5000 + "]", "__import__('os')", [0, 10**30], {"a": 1}]
)
def test_members_that_are_no_ranks_are_not_known(ranks: object) -> None:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    for content in (
        pickle.dumps(_dump(_entry(), pg_config=config)),
        json.dumps(_dump(_entry(), pg_config=config)).encode(),
    ):
        assert read_flight_dump(content, rank=0, where="dump_0").groups == {"0": None}


@pytest.mark.parametrize("key", ["record_id", "pg_id", "collective_seq_id", "time_created_ns"])
def test_numbers_that_no_counter_reaches_are_refused(key: str) -> None:
    with pytest.raises(DataError, match="more than 64 bits"):
        read_flight_dump(pickle.dumps(_dump(_entry(**{key: 1 << 80}))), rank=0, where="dump_0")


def test_shared_stacks_stay_shared() -> None:
    entry = _entry()
    dump = read_flight_dump(pickle.dumps(_dump(*[entry] * 1000)), rank=0, where="dump_0")
    assert len({id(one.frames) for one in dump.operations}) == 1


def test_what_nccl_is_told_at_once_is_as_far_as_its_last_entry() -> None:
    """Its parts stay "scheduled" for ever."""
    parts = [_entry(record, profiling_name="nccl:_all_gather_base") for record in range(3)]
    done = _entry(3, profiling_name="nccl:coalesced", state="completed", retired=True)
    operations = read_flight_dump(pickle.dumps(_dump(*parts, done)), rank=0, where="dump_0").operations
    assert [(one.name, one.is_done, one.is_given_up) for one in operations] == [("_all_gather_base", True, False)] * 3
    still = _entry(3, profiling_name="nccl:coalesced", state="started", time_discovered_started_ns=7)
    operations = read_flight_dump(pickle.dumps(_dump(*parts, still)), rank=0, where="dump_0").operations
    assert [(one.is_done, one.started_ns) for one in operations] == [(False, 7)] * 3


def test_messages_that_nccl_is_told_at_once_are_no_collective() -> None:
    """Their last entry has the number of the collective before them, which is another one on each rank."""
    before = _entry(0)
    messages = [
        _entry(record, profiling_name=name, is_p2p=True, p2p_seq_id=4)
        for record, name in ((1, "nccl:send 0->1"), (2, "nccl:recv 0<-1"))
    ]
    last = _entry(3, profiling_name="nccl:coalesced", p2p_seq_id=4, state="completed", retired=True)
    operations = read_flight_dump(pickle.dumps(_dump(before, *messages, last)), rank=0, where="dump_0").operations
    assert [(one.name, one.is_p2p, one.is_done) for one in operations] == [
        ("all_reduce", False, False),
        ("send 0->1", True, True),
        ("recv 0<-1", True, True),
    ]


def test_groups_that_share_their_many_members_are_refused() -> None:
    one = {"name": "x", "desc": "", "ranks": "[" + "1, " * 100_000 + "1]"}
    content = pickle.dumps(_dump(_entry(), pg_config={str(number): one for number in range(200)}))
    with pytest.raises(DataError, match="too many members"):
        read_flight_dump(content, rank=0, where="dump_0")


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
    files, notices = find_flight_dumps([tmp_path])
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
    files, notices = find_flight_dumps([tmp_path])
    assert [file.rank for file in files] == [2, 10]
    assert notices == []


def test_of_pickle_and_json_of_a_rank_the_pickle_counts_as_it_has_the_stacks(tmp_path: Path) -> None:
    _write(tmp_path / "trace_1.json")
    _write(tmp_path / "dump_1")
    files, notices = find_flight_dumps([tmp_path])
    assert [file.path.name for file in files] == ["dump_1"]
    assert notices == []


def test_a_second_dump_of_a_rank_is_said_to_be_left_out(tmp_path: Path) -> None:
    _write(tmp_path / "a_1")
    _write(tmp_path / "b_1")
    files, notices = find_flight_dumps([tmp_path])
    assert [file.path.name for file in files] == ["a_1"]
    assert [notice.code for notice in notices] == ["second_dump"]


def test_a_dump_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    _write(tmp_path / "dump_0")
    (tmp_path / "dump_1").touch()
    (tmp_path / "dump_2").write_bytes(pickle.dumps(_EMPTY)[:-3])
    dumps, notices = read_flight_dumps(find_flight_dumps([tmp_path])[0])
    assert [dump.rank for dump in dumps] == [0]
    assert [(notice.code, notice.message.rpartition("/")[2].split(":")[0]) for notice in notices] == [
        ("unusable_file", "dump_1"),
        ("unusable_file", "dump_2"),
    ]


def test_none_that_can_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "dump_1").touch()
    with pytest.raises(DataError, match="is empty"):
        read_flight_dumps(find_flight_dumps([tmp_path])[0])


@pytest.mark.parametrize(
    ("name", "said"), [("nothing", "does not exist"), ("text", "its name does not end with a rank")]
)
def test_a_path_that_will_not_do_is_an_error(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "text").touch()
    with pytest.raises(DataError, match=said):
        find_flight_dumps([tmp_path / name])


def test_a_date_is_no_rank(tmp_path: Path) -> None:
    file = _write(tmp_path / "flight_20261128142155")
    assert find_flight_dumps([tmp_path])[0] == []
    with pytest.raises(DataError, match="does not end with a rank"):
        find_flight_dumps([file])


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dump_0")
    for path in (tmp_path / "dump_0", Path("/dev/zero")):
        with pytest.raises(DataError, match="is not a file"):
            read_flight_dumps([DumpFile(path, 0)])


def test_a_dump_knows_when_it_was_written(tmp_path: Path) -> None:
    file = _write(tmp_path / "dump_0")
    os.utime(file, ns=(5, 1_795_817_000_000_000_007))
    dumps, _ = read_flight_dumps(find_flight_dumps([tmp_path])[0])
    assert dumps[0].written_ns == 1_795_817_000_000_000_007


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("snapshot.pickle", pickle.dumps({"segments": [], "device_traces": []}), "is a memory snapshot.*memory"),
        ("job.log", b"start\nnode1:7:7 [0] NCCL INFO Bootstrap\n", "is a log with NCCL's lines.*stepscope nccl"),
        ("trace.json", b'{"traceEvents": []}', "is a trace of torch.profiler.*stepscope analyze"),
    ],
)
def test_another_file_is_named_with_the_command_that_reads_it(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        find_flight_dumps([tmp_path / name])
