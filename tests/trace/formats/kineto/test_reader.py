"""Reader: accepts every layout and age, repairs or counts every damage, and rejects what is not a trace."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.core.errors import DataError, NotATraceError, TruncatedTraceError
from stepscope.trace.columns import NONE, Category, KernelLaunch, Lane, ProcessGroup, TraceColumns, TraceDevice
from tests.trace.one_rank import read_trace, read_trace_stream


def _read(
    content: bytes | str, *, path: str = "trace.json", block_bytes: int = 1 << 20, **options: Any
) -> TraceColumns:
    content = content.encode() if isinstance(content, str) else content
    stream = io.BytesIO(content)
    return read_trace_stream(stream, path=path, file_bytes=len(content), block_bytes=block_bytes, **options)


def _event(number: int = 0, **changes: Any) -> dict[str, Any]:
    event = {
        "ph": "X",
        "cat": "cpu_op",
        "name": f"aten::op{number}",
        "pid": 7,
        "tid": 7,
        "ts": 100.125 + 10 * number,
        "dur": 2.5,
        "args": {"External id": number, "Input Dims": [[number, 2], []]},
    }
    return {name: value for name, value in (event | changes).items() if value is not ...}


def _kernel(number: int = 0, **changes: Any) -> dict[str, Any]:
    args = {"correlation": number, "grid": [4, 2, 1], "stream": 7, "device": 0}
    return _event(number, cat="kernel", name=f"kernel{number}", pid=0, tid=7, args=args) | changes


def _pretty(events: list[str]) -> str:
    """Kineto's own layout."""
    return (
        '{\n  "schemaVersion": 1,\n  "traceEvents": [\n  ' + ",\n  ".join(events) + '\n  ],\n  "traceName": "t.json"\n}'
    )


def _pretty_event(event: dict[str, Any]) -> str:
    head = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in event.items() if k != "args")
    return "{\n    " + head + ',\n    "args": {\n      ' + json.dumps(event.get("args", {}))[1:-1] + "\n    }\n  }"


def _document(events: list[dict[str, Any]]) -> str:
    return _pretty([_pretty_event(event) for event in events])


def _with_damage(bad: str | bytes, *, good: int = 40) -> bytes:
    """A trace of good events with one broken text amid them."""
    texts = [_pretty_event(_event(number)).encode() for number in range(good)]
    texts.insert(good // 2, bad.encode() if isinstance(bad, str) else bad)
    return b'{"traceEvents": [\n  ' + b",\n  ".join(texts) + b'\n  ],\n  "traceName": "t.json"\n}'


LAYOUTS: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "kineto": _document,
    "compact": lambda events: json.dumps({"traceEvents": events}, separators=(",", ":")),
    "dump": lambda events: json.dumps({"schemaVersion": 1, "traceEvents": events, "traceName": "x"}),
    "indented": lambda events: json.dumps({"traceEvents": events}, indent=1),
    "sorted": lambda events: json.dumps(
        {"traceEvents": events, "deviceProperties": [{}, {}]}, sort_keys=True, indent=4
    ),
    "metadata_after": lambda events: json.dumps({"traceEvents": events, "zz": [{"a": 1}, {"b": [{"c": 1}]}]}),
    "list": lambda events: json.dumps(events),
    "windows_lines": lambda events: json.dumps({"traceEvents": events}, indent=2).replace("\n", "\r\n"),
}


@pytest.mark.parametrize("block_bytes", [64, 1000, 1 << 20])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_gives_the_same_rows(layout: str, block_bytes: int, rows: Any) -> None:
    nested = {"x": [{"a": 1}, {"b": [{"c": "},{"}]}], "text": '"}, {"ph": "X"}]', "deep": {"y": [[], {}]}}
    events = [_event(i, args=nested | {"External id": i}) if i % 3 else _kernel(i) for i in range(30)]
    text = LAYOUTS[layout](events)
    trace = _read(text, block_bytes=block_bytes)
    assert rows.actual(trace) == rows.expected(text)
    assert (trace.quality.num_events, trace.quality.repaired, trace.quality.dropped) == (30, 0, 0)
    assert not trace.quality.truncated


@pytest.mark.parametrize("cut", [0, 1, 5, 9])
def test_truncated_gzip_keeps_all_that_was_inflated(cut: int) -> None:
    packed = gzip.compress(_document([_event(i) for i in range(2000)]).encode(), 1)
    trace = _read(packed[: len(packed) * (10 - cut) // 10 if cut else len(packed)])
    assert trace.quality.truncated == bool(cut)
    assert len(trace) >= 2000 * (10 - cut) // 10 - 400
    assert trace.names[trace.name[len(trace) - 1]] == f"aten::op{len(trace) - 1}"


@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
@pytest.mark.parametrize("kept", [1, 2, 10, 20, 40, 100, 150, 200])
def test_a_gzip_stream_cut_before_the_first_event_ends_too_early(kept: int, block_bytes: int) -> None:
    names = {f"key {i}": hashlib.sha256(b"%d" % i).hexdigest() for i in range(4)}  # what takes space once compressed
    packed = gzip.compress(json.dumps({"schemaVersion": 1, **names, "traceEvents": [_event(args=names)]}).encode())
    with pytest.raises(TruncatedTraceError, match="ends too early, before its first event; copy it whole"):
        _read(packed[:kept], block_bytes=block_bytes)


@pytest.mark.parametrize("text", ['{"traceEvents": [', '{"traceEvents": [{"ph": "X", "cat": "cpu'])
def test_a_plain_text_cut_in_the_first_event_ends_too_early(text: str) -> None:
    with pytest.raises(TruncatedTraceError, match="ends too early"):
        _read(text)


def test_a_cut_file_of_another_kind_is_told_as_such() -> None:
    packed = gzip.compress(json.dumps({"pg_status": {}, "rest": list(range(3000))}).encode())
    with pytest.raises(NotATraceError, match="flight-recorder dump"):
        _read(packed[:-100])


def test_gzip_is_known_by_content_and_may_have_several_members() -> None:
    text = _document([_event(i) for i in range(50)]).encode()
    packed = gzip.compress(text[:700]) + gzip.compress(text[700:]) + b"\0" * 512
    trace = _read(packed, path="trace.json")
    assert (len(trace), trace.header.text_bytes, trace.quality.truncated) == (50, len(text), False)


BASE = 1751410836000000000


@pytest.mark.parametrize(
    ("ts", "dur", "start_ns", "end_ns"),
    [
        ("4956637219772.625", "194362.815", 4956637219772625, 4956637414135440),
        ("4499999999999.999", "0.001", 4499999999999999, 4500000000000000),
        ("8796093022207.999", "1", 8796093022207999, 8796093022208999),
        ("1712195495519689.123", "63.813", 1712195495519689123, 1712195495519752936),
        ("1661203462598738", "19", 1661203462598738000, 1661203462598757000),
        ("1e3", "1E-3", 1000000, 1000001),
        ("-5.001", "0", -5001, -5001),
    ],
)
@pytest.mark.parametrize("quoted", [False, True])
def test_timestamps_are_exact_nanoseconds(ts: str, dur: str, start_ns: int, end_ns: int, quoted: bool) -> None:
    ts, dur = (f'"{ts}"', f'"{dur}"') if quoted else (ts, dur)
    event = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":TS,"dur":DUR}'.replace("TS", ts).replace(
        "DUR", dur
    )
    trace = _read("[" + event + "]")
    assert (int(trace.start_ns[0]), int(trace.end_ns[0])) == (start_ns, end_ns)


def test_base_time_after_the_events_is_added() -> None:
    trace = _read(json.dumps({"traceEvents": [_event()], "baseTimeNanoseconds": BASE}))
    assert (int(trace.start_ns[0]), trace.header.base_time_ns) == (BASE + 100125, BASE)


DAMAGE_THAT_CAN_BE_MENDED: dict[str, str | bytes] = {
    "invalid UTF-8": _pretty_event(_event(99)).encode().replace(b"aten::", b"\x92\xff"),
    "control character": _pretty_event(_event(99)).encode().replace(b"aten::", b"a\x01\n"),
    "Windows backslashes": _pretty_event(_event(99)).replace("aten::", r"torch\cuda\__init__.py(219): "),
    "backslash before the closing quote": _pretty_event(_event(99)).replace("aten::op99", "C:\\\\dir\\q\\"),
    "unescaped quotes": _pretty_event(_event(99)).replace("aten::op99", 'Library("x","IMPL") (1): <module>'),
    "decimal comma": _pretty_event(_kernel(99)).replace(
        '"stream": 7', '"blocks per SM": 7,757576,"warps per SM": 31,0303'
    ),
    "decimal comma in dur": _pretty_event(_event(99)).replace('"dur": 2.5', '"dur": 2,500'),
    "NaN": _pretty_event(_kernel(99)).replace('"stream": 7', '"blocks per SM": NaN, "x": -Infinity, "y": -nan'),
    "empty value": _pretty_event(_kernel(99)).replace('"stream": 7', '"stream": , "y": '),
    "double comma": _pretty_event(_event(99)).replace(', "pid"', ',, "pid"'),
    "trailing comma": _pretty_event(_event(99)).replace("\n    }\n  }", ",\n    },\n  }"),
    "lost quote of a key": _pretty_event(_event(99)).replace('"tid":', 'tid":'),
    "lone surrogate": _pretty_event(_event(99)).replace("aten::", r"a\ud800b"),
    "zero inside a name": _pretty_event(_event(99)).encode().replace(b"aten::", b"a\x00\x00"),
}


@pytest.mark.parametrize("block_bytes", [300, 1 << 20])
@pytest.mark.parametrize("damage", DAMAGE_THAT_CAN_BE_MENDED)
def test_damaged_event_is_mended_and_counted(damage: str, block_bytes: int) -> None:
    trace = _read(_with_damage(DAMAGE_THAT_CAN_BE_MENDED[damage]), block_bytes=block_bytes)
    quality = trace.quality
    assert (len(trace), quality.num_events, quality.repaired, quality.dropped) == (41, 41, 1, 0)
    assert (int(trace.end_ns[20]) - int(trace.start_ns[20]), quality.truncated) == (2500, False)


def test_mended_names_read_as_they_were_meant() -> None:
    bad = DAMAGE_THAT_CAN_BE_MENDED
    assert 'Library("x","IMPL") (1): <module>' in _read(_with_damage(bad["unescaped quotes"])).names
    assert r"torch\cuda\__init__.py(219): op99" in _read(_with_damage(bad["Windows backslashes"])).names


DAMAGE_THAT_LOSES_ONE_EVENT = {
    "dur NaN": _pretty_event(_event(99)).replace("2.5", "NaN"),
    "dur empty": _pretty_event(_event(99)).replace("2.5", ""),
    "dur null": _pretty_event(_event(99, dur=None)),
    "dur missing": _pretty_event(_event(99, dur=...)),
    "dur negative": _pretty_event(_event(99, dur=-1)),
    "dur overflowed": _pretty_event(_event(99, dur=18446744073709551.615)),
    "ts beyond int64": _pretty_event(_event(99)).replace("1090.125", "9" * 40),
    "ts word": _pretty_event(_event(99, ts="soon")),
    "kernel at time zero": _pretty_event(_kernel(99, ts=0, dur=0)),
    "no event": "null",
    "broken off": '{"ph": "X", "cat": "cpu_op", "na',
    "no colon": _pretty_event(_event(99)).replace('"pid":', '"pid" =').replace('"tid":', '"tid" ='),
}


@pytest.mark.parametrize("block_bytes", [300, 1 << 20])
@pytest.mark.parametrize("damage", DAMAGE_THAT_LOSES_ONE_EVENT)
def test_impossible_event_is_dropped_and_counted(damage: str, block_bytes: int) -> None:
    quality = _read(_with_damage(DAMAGE_THAT_LOSES_ONE_EVENT[damage]), block_bytes=block_bytes).quality
    assert (quality.num_events, quality.repaired, quality.dropped, quality.truncated) == (41, 0, 1, False)


def test_every_event_damaged_is_every_event_mended() -> None:
    bad = [_pretty_event(_event(i)).replace('"dur": 2.5', '"dur": 2,500') for i in range(300)]
    trace = _read(_pretty(bad), block_bytes=4096)
    assert (len(trace), trace.quality.repaired, trace.quality.dropped) == (300, 300, 0)


@pytest.mark.parametrize("kept", [1, 17, 20])
def test_truncated_file_keeps_the_events_before(kept: int) -> None:
    text = _document([_event(i) for i in range(20)])
    end = text.index(f'aten::op{kept}"') if kept < 20 else text.rindex("}\n  ]") + 1
    trace = _read(text[:end])
    assert (len(trace), trace.quality.truncated, trace.quality.dropped) == (kept, True, int(kept < 20))


def test_truncation_in_the_metadata_behind_the_events_is_told() -> None:
    text = _document([_event(i) for i in range(20)])
    trace = _read(text[: text.index("traceName") + 4])
    assert (len(trace), trace.quality.truncated, trace.quality.dropped) == (20, True, 0)


@pytest.mark.parametrize("hole_bytes", [700, 100_000])
def test_events_lost_in_a_hole_of_zeros_are_estimated(hole_bytes: int) -> None:
    text = bytearray(_document([_event(i) for i in range(1000)]).encode())
    start = text.index(b'op400"')
    text[start : start + hole_bytes] = b"\0" * hole_bytes
    trace = _read(bytes(text), block_bytes=8192)
    lost = 1000 - len(trace)
    assert abs(trace.quality.dropped - lost) <= max(1, lost // 20)
    assert trace.quality.num_events == len(trace) + trace.quality.dropped


def test_byte_order_mark_is_no_damage() -> None:
    trace = _read(b"\xef\xbb\xbf" + _document([_event()]).encode())
    assert (len(trace), trace.quality.repaired) == (1, 0)


def test_duplicate_keys_keep_the_last_as_json_does() -> None:
    trace = _read(json.dumps([_event(1)]).replace('"External id": 1', '"External id": 1, "External id": 2'))
    assert int(trace.external_id[0]) == 2


def test_unsigned_and_larger_integers_are_no_obstacle() -> None:
    args = {"Comms Id": 2**64 - 1, "correlation": 2**63, "External id": 10**30}
    trace = _read(_document([_event(args=args), _kernel(1)]))
    assert (trace.correlation.tolist(), trace.external_id.tolist()) == ([NONE, 1], [NONE, NONE])
    assert trace.quality.dropped == 0


def test_ids_may_be_negative_quoted_or_words() -> None:
    ids = [(7, -3), ("7", "9"), (0, "stream 7"), ("Spans", 0), ("Spans", "PyTorch"), (5.0, None)]
    trace = _read(_document([_event(i, pid=pid, tid=tid, cat="overhead") for i, (pid, tid) in enumerate(ids)]))
    lanes = [trace.lanes[i] for i in trace.lane]
    assert lanes[:3] == [Lane(7, -3, False), Lane(7, 9, False), Lane(0, 7, False)]
    assert lanes[3].process == lanes[4].process < -(2**31)
    assert len(set(lanes)) == 6


def test_missing_name_and_category_are_kept_as_unknown() -> None:
    trace = _read(_document([_event(1, name=..., cat=...), _event(2, name=5, args=...)]))
    assert [trace.names[i] for i in trace.name] == ["", "5"]
    assert trace.category.tolist() == [Category.OTHER, Category.CPU_OP]


def test_the_profilers_own_span_is_ignored() -> None:
    span = _event(1, cat="Trace", pid="Spans", tid="PyTorch Profiler", dur=9.2e15)
    trace = _read(_document([_event(0), span]))
    assert (len(trace), trace.quality.dropped) == (1, 0)


def test_python_functions_are_kept_on_request() -> None:
    text = _document([_event(0), _event(1, cat="python_function", name="torch/optim/adam.py(9): step")])
    assert len(_read(text)) == 1
    kept = _read(text, keep_python_functions=True)
    assert kept.category.tolist() == [Category.CPU_OP, Category.PYTHON_FUNCTION]
    assert kept.header.with_stacks


def test_frames_of_modules_and_of_the_scripts_own_files_are_always_kept() -> None:
    names = ("nn.Module: Linear_0", "train.py(7): step", "<built-in function len>")
    frames = [_event(1, cat="python_function", name=name) for name in names]
    trace = _read(_document([*frames, _event(2, name="nn.Module: no frame")]))
    assert trace.category.tolist() == [Category.PYTHON_FUNCTION, Category.PYTHON_FUNCTION, Category.CPU_OP]
    assert [trace.names[name] for name in trace.name[:2]] == list(names[:2])


def test_launches_are_numbered_as_they_first_appear() -> None:
    full = {"grid": [4, 2, 1], "block": [128, 1, 1], "registers per thread": 40, "shared memory": 0}
    events = [_kernel(0, args=full), _kernel(1), _event(2, args=full), _kernel(3, args={}), _kernel(4, args=full)]
    trace = _read(_document(events))
    assert trace.launch.tolist() == [0, 1, NONE, NONE, 0]
    assert trace.launches == (
        KernelLaunch((4, 2, 1), (128, 1, 1), 40, 0),
        KernelLaunch((4, 2, 1), (), None, None),
    )
    assert trace.num_blocks(np.arange(5)).tolist() == [8, 8, NONE, NONE, 8]
    assert (trace.launches[0].threads_per_block, trace.launches[1].threads_per_block) == (128, None)


@pytest.mark.parametrize("amount", [2**32, 10**60])
def test_a_launch_with_more_than_any_device_has_is_not_known(amount: int) -> None:
    """Such a figure would stand in the analysis, whose document nothing could then read."""
    args = {"grid": [4, 2, 1], "block": [128, 1, 1], "registers per thread": amount, "shared memory": amount}
    trace = _read(_document([_kernel(0, args=args)]))
    assert trace.launches == (KernelLaunch((4, 2, 1), (128, 1, 1), None, None),)


def test_the_limits_of_a_device_are_read() -> None:
    limits = {"computeMajor": 9, "computeMinor": 0, "warpSize": 32, "maxThreadsPerMultiprocessor": 2048}
    limits |= {"numSms": 132, "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 233472}
    trace = _read(json.dumps({"deviceProperties": [limits, {"id": 1}], "traceEvents": [_event()]}))
    assert trace.header.devices == (
        TraceDevice(0, "", 132, None, (9, 0), 32, 2048, 65536, 233472),
        TraceDevice(1, "", None, None),
    )


def test_stream_synchronizations_return_to_their_stream_and_are_no_device_work() -> None:
    trace = _read(_document([_kernel(1, cat="cuda_sync", tid=1000007, dur=500), _kernel(2)]))
    assert [trace.lanes[i] for i in trace.lane] == [Lane(0, 7, True)] * 2
    assert trace.rows_of(Category.KERNEL).tolist() == [1]


def test_synchronization_records_tell_which_event_is_waited_for() -> None:
    told = {"correlation": 9, "wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": 5, "wait_on_cuda_event_id": 3}
    unknown = told | {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1}
    trace = _read(
        _document(
            [
                _kernel(1, cat="cuda_sync", name="Stream Wait Event", tid=24, args=told),
                _kernel(2, args=told),  # no record
                _kernel(3, cat="cuda_sync", name="Event Sync", tid=-1, args=unknown),
                _kernel(4, cat="cuda_sync", name="Stream Sync", tid=1000007, args={"correlation": 11}),
                _kernel(5, cat="cuda_sync", tid=7, args=told | {"wait_on_stream": "x", "Collective name": "allreduce"}),
            ]
        )
    )
    assert trace.waits.row.tolist() == [0, 2, 4]
    assert trace.waits.stream.tolist() == [20, NONE, NONE]
    assert trace.waits.record.tolist() == [5, NONE, 5]
    assert not len(trace.communication.row)


def test_host_side_triton_launchers_stay_operators() -> None:
    trace = _read(_document([_event(args={"stream": 0, "kernel_backend": "triton"})]))
    assert (trace.category[0], trace.lanes[0].on_device) == (Category.CPU_OP, False)


def test_names_of_2021_are_understood() -> None:
    old = {"tid": "stream 7", "args": {"correlation": 5, "external id": 3, "bytes": 8, "grid": [2, 1, 1]}}
    names = ["Operator", "Runtime", "Kernel", "Memcpy", "Memset"]
    events = [_event(i, cat=cat, **old) for i, cat in enumerate(names)]
    trace = _read(_document([*events, _event(6, cat="Operator", name="ProfilerStep#6")]))
    expected = [Category.CPU_OP, Category.RUNTIME, Category.KERNEL, Category.MEMCPY, Category.MEMSET]
    assert trace.category.tolist() == [*expected, Category.USER_ANNOTATION]
    assert trace.external_id.tolist() == [3, 3, 3, 3, 3, 6]
    assert trace.num_bytes.tolist() == [NONE, NONE, NONE, 8, 8, NONE]


def _overrunning() -> list[dict[str, Any]]:
    return [_kernel(1, ts=0, dur=1e6), _kernel(2, ts=10, dur=5), _kernel(3, ts=10, dur=5, tid=8)]


def test_rocm_overruns_are_cut_at_the_next_start_of_the_stream() -> None:
    trace = _read(json.dumps({"hip_runtime_version": 6, "traceEvents": _overrunning()}))
    assert (trace.end_ns - trace.start_ns).tolist() == [10000, 5000, 5000]
    assert trace.quality.clipped == 1


def test_overlap_on_an_nvidia_stream_is_left_alone() -> None:
    trace = _read(json.dumps({"cupti_version": 28, "traceEvents": _overrunning()}))
    assert (trace.end_ns[0] - trace.start_ns[0], trace.quality.clipped) == (10**9, 0)


def test_collectives_carry_what_their_arguments_say() -> None:
    args = {
        "Collective name": "_allgather_base",
        "In msg nelems": 10,
        "Out msg nelems": 20,
        "dtype": "BFloat16",
        "Process Group Name": "1",
        "Process Group Description": "tp",
        "Process Group Ranks": "[0, 1, ...]",
        "Src Rank": 1,
        "Dst Rank": 0,
        "Seq": 42,
        "Comms Id": 2**64 - 1,
    }
    other = {"Collective name": "send", "Process Group Ranks": "[4, 5]", "dtype": "", "Rank": 1}
    listed = {"pg_name": "1", "pg_desc": "mesh_tp", "ranks": [0, 1, 2, 3]}
    events = [_event(0), _kernel(1, args=args), _event(2, name="record_param_comms", args=other)]
    trace = _read(json.dumps({"traceEvents": events, "distributedInfo": {"pg_config": [listed]}}))
    calls = trace.communication
    assert (calls.row.tolist(), calls.kinds, calls.dtypes) == ([1, 2], ("_allgather_base", "send"), ("BFloat16",))
    assert trace.groups == (ProcessGroup("1", "mesh_tp", (0, 1, 2, 3)), ProcessGroup("", "", (4, 5)))
    assert trace.header.groups == trace.groups[:1]
    assert calls.group.tolist() == [0, 1]
    assert (calls.in_elements.tolist(), calls.out_elements.tolist()) == ([10, NONE], [20, NONE])
    assert (calls.source_rank.tolist(), calls.destination_rank.tolist()) == ([1, NONE], [0, NONE])
    assert (calls.sequence.tolist(), calls.dtype.tolist()) == ([42, NONE], [0, NONE])
    assert (calls.communicator.tolist(), calls.root_rank.tolist()) == ([2**63 - 1, NONE], [NONE, 1])


def test_group_cut_short_and_not_listed_has_unknown_members() -> None:
    args = {"Collective name": "allreduce", "Process Group Name": "3", "Process Group Ranks": "[0, 1, ...]"}
    assert _read(_document([_kernel(1, args=args)])).groups == (ProcessGroup("3", "", None),)


def test_cuda_graph_kernels_share_their_launchs_correlation() -> None:
    launch = _event(0, cat="cuda_runtime", name="cudaGraphLaunch", args={"correlation": 9})
    kernels = [_kernel(i, args={"correlation": 9, "graph id": 1, "graph node id": i}) for i in (1, 2, 3)]
    assert _read(_document([launch, *kernels])).correlation.tolist() == [9, 9, 9, 9]


def test_header_tells_who_and_where() -> None:
    metadata = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85, "numSms": 132}],
        "record_shapes": 1,
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "nccl_version": "2.28.9"},
        "cuda_driver_version": 13000,
        "host_name": "node7",
        "traceEvents": [_event()],
    }
    header = _read(json.dumps(metadata)).header
    assert (header.rank, header.world_size, header.backend, header.host_name) == (3, 8, "nccl", "node7")
    assert header.versions == {"nccl_version": "2.28.9", "cuda_driver_version": "13000"}
    assert (header.devices[0].name, header.devices[0].num_sms, header.devices[0].memory_bytes) == (
        "NVIDIA H100",
        132,
        85,
    )
    assert (header.with_shapes, header.with_stacks) == (True, False)


def test_damaged_metadata_does_not_lose_the_events() -> None:
    text = '{"host_name": "a\x01", "distributedInfo": {"rank": 2, "world_size": 4}, "x": }, "traceEvents": [%s]}'
    header = _read(text % json.dumps(_event())).header
    assert (header.rank, header.world_size) == (2, 4)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("tp.rank0.json.gz", 0),
        ("/runs/rank7/rank_12.json", 12),
        ("worker3_step_12.1694128201557.pt.trace.json", 3),
        ("r1t03.json", 1),
        ("sampled_rank-1.json", 1),
        ("a100_16rank_rank5_x.json", 5),
        ("trace.json", None),
        ("frank.json", None),
    ],
)
def test_rank_is_taken_from_the_name_when_the_trace_does_not_tell(name: str, rank: int | None) -> None:
    assert _read(_document([_event()]), path=name).header.rank == rank


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"  \n",
        gzip.compress(b"", mtime=0),
        b"hello",
        b"\x80\x04\x95",
        b"{}",
        b"[1, 2]",
        b'[{"a": 1}, {"b": 2}]',
        b'{"nodes": [{"id": 1}], "schema": "1.1.1"}',
        b'{"traceEvents": {}}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(content: bytes) -> None:
    with pytest.raises(NotATraceError) as refused:
        _read(content, path="odd.json")
    assert str(refused.value).startswith("odd.json: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", ["[]", '{"traceEvents": []}', '[{"ph": "M", "name": "x", "pid": 1}]'])
def test_trace_without_complete_events_is_refused(content: str) -> None:
    with pytest.raises(DataError, match="no complete event") as refused:
        _read(content)
    assert not isinstance(refused.value, NotATraceError)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(DataError, match=path.name):
            read_trace(path)


def test_file_is_read_from_its_path(tmp_path: Path) -> None:
    path = tmp_path / "rank4.json"
    path.write_text(_document([_event()]))
    header = read_trace(path).header
    assert (header.path, header.rank, header.file_bytes, header.text_bytes) == (
        str(path),
        4,
        path.stat().st_size,
        path.stat().st_size,
    )


@pytest.mark.parametrize(("told", "read"), [("[4, 5]", (4, 5)), ('"4"', None), ("[4, null]", None), ("{}", None)])
def test_the_whole_steps_that_profile_wrote_down_are_read(
    tmp_path: Path, told: str, read: tuple[int, ...] | None
) -> None:
    path = tmp_path / "rank0.json"
    event = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}'
    path.write_text(f'{{"stepscope_whole_steps": {told}, "traceEvents": [{event}]}}')
    assert read_trace(path).header.whole_steps == read


def test_a_number_beyond_all_floats_where_nobody_reads_leaves_exact_timestamps_readable() -> None:
    """The first pass skips the field, the one that keeps every decimal cannot."""
    text = json.dumps({"traceEvents": [_event(ts=1700000000000258.5), {"ph": "M", "name": "?"}]})
    columns = _read(text.replace('"?"', "1e999"))
    assert len(columns.start_ns) == 1


@pytest.mark.parametrize("half", [rb"\ud800", b"\xed\xa0\x80", b"\xff"])
def test_no_half_character_gets_in_through_the_files_own_keys(tmp_path: Path, half: bytes) -> None:
    path = tmp_path / "rank0.json"
    group = b'{"pg_name": "HALF", "pg_desc": "HALF", "ranks": [0]}'
    metadata = b'"host_name": "HALF", "HALF_version": "HALF", "deviceProperties": [{"id": 0, "name": "HALF"}], '
    metadata += b'"distributedInfo": {"rank": 0, "world_size": 1, "pg_config": [' + group + b"]}, "
    events = b'"traceEvents": [' + json.dumps(_event(1)).encode() + b"]"
    path.write_bytes((b"{" + metadata + events + b"}").replace(b"HALF", half))
    header = read_trace(path).header
    (found,), (device,) = header.groups, header.devices
    texts = [header.host_name, found.name, found.description, device.name, *header.versions, *header.versions.values()]
    assert all("\ufffd" in str(text) for text in texts)
    "".join(map(str, texts)).encode()  # which half a character is not
