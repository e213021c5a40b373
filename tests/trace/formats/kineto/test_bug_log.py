"""Reading traces with the defects that users of other tools reported. Entry n: docs/explanation/trace-quality.md."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from stepscope.core.errors import DataError, NotATraceError
from stepscope.trace.columns import NONE, Category, Lane, TraceColumns
from stepscope.trace.formats.kineto import repair
from stepscope.trace.formats.kineto.repair import repairs
from tests.trace.one_rank import read_trace_stream

GOOD = '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":9,"tid":9,"ts":1.0,"dur":2.0}'


def _read(text: str | bytes, *, path: str = "t.json", **options: Any) -> TraceColumns:
    content = text.encode() if isinstance(text, str) else text
    return read_trace_stream(io.BytesIO(content), path=path, file_bytes=len(content), **options)


def _among(event: str | bytes, *, head: str = "") -> TraceColumns:
    """The trace of three good events with this one as the third."""
    raw = event.encode() if isinstance(event, str) else event
    good = GOOD.encode()
    return _read(b"{" + head.encode() + b'"traceEvents":[' + b",".join((good, good, raw, good)) + b"]}")


def _kernel(**changes: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.0, "dur": 2.0} | changes


def _names(trace: TraceColumns) -> list[str]:
    return [trace.names[name] for name in trace.name]


def test_decimal_commas_of_a_french_locale_are_points() -> None:  # entry 1
    trace = _among(
        '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1.0,"dur":2.0,"args":{"blocks per SM": 7,757576,'
        '"warps per SM": 31,030304,"correlation": 5}}'
    )
    assert (trace.correlation[2], trace.quality.repaired, trace.quality.dropped) == (5, 1, 0)


@pytest.mark.parametrize("name", [b"a\x01\xff", b"torch/_inductor/config.py(0): \x92", b"\xb2\xe2\xca\xd4"])
def test_control_characters_and_wrong_encodings_in_names_keep_the_event(name: bytes) -> None:  # entries 2 and 5
    trace = _among(b'{"ph":"X","cat":"cpu_op","name":"%s","pid":9,"tid":9,"ts":1.0,"dur":2.0}' % name)
    assert (len(trace), trace.quality.repaired) == (4, 1)
    assert "�" in _names(trace)[2]


def test_quotes_that_were_not_escaped_are_part_of_the_name() -> None:  # entry 3
    trace = _among(GOOD.replace("aten::mm", 'Library("x","IMPL") (1): <module>'))
    assert _names(trace)[2] == 'Library("x","IMPL") (1): <module>'
    assert trace.quality.repaired == 1


def test_windows_backslashes_that_were_not_escaped_are_part_of_the_name() -> None:  # entry 4
    trace = _among(GOOD.replace("aten::mm", r"torch\cuda\__init__.py(219): _lazy_init"))
    assert _names(trace)[2] == r"torch\cuda\__init__.py(219): _lazy_init"


def test_a_lost_quote_is_put_back_and_the_place_is_told() -> None:  # entry 6
    head = '"schemaVersion": 1, '
    trace = _among(GOOD.replace('"tid"', 'tid"'), head=head)
    assert trace.lanes[trace.lane[2]] == Lane(9, 9, False)
    assert (trace.quality.repaired, trace.quality.damaged_at_byte) == (1, 1 + len(head) + 15 + 2 * (len(GOOD) + 1))
    whole = _read(f"[{GOOD}]")
    assert whole.quality.damaged_at_byte is None


def test_the_place_of_damage_is_told_in_a_large_file_of_many_blocks() -> None:  # entry 6
    events = [GOOD] * 500
    events[300] = GOOD.replace('"pid":9', '"pid" 9')
    trace = _read("[" + ",\n".join(events) + "]", block_bytes=1000)
    assert trace.quality.damaged_at_byte is not None
    assert abs(trace.quality.damaged_at_byte - 300 * (len(GOOD) + 2)) <= 1000


def test_kernels_at_time_zero_do_not_stretch_the_span_to_1970() -> None:  # entry 7
    trace = _read(json.dumps([_kernel(ts=0, dur=0), _kernel(ts=100)]))
    assert (trace.start_ns.tolist(), trace.quality.dropped) == ([100_000], 1)


def test_durations_that_overrun_the_next_kernel_are_cut_on_rocm_and_the_cut_time_is_told() -> None:  # entry 9
    events = [_kernel(ts=0, dur=1e6), _kernel(ts=10, dur=5)]
    trace = _read(json.dumps({"hip_runtime_version": 60000, "traceEvents": events}))
    assert (trace.end_ns - trace.start_ns).tolist() == [10_000, 5_000]
    assert (trace.quality.clipped, trace.quality.clipped_ns) == (1, 10**9 - 10_000)


def test_rows_that_overlap_on_one_stream_are_all_kept() -> None:  # entry 10
    trace = _read(json.dumps([_kernel(ts=3, dur=3.776), _kernel(ts=5, dur=2)]))
    assert trace.end_ns.tolist() == [6776, 7000]


def test_stream_synchronizations_have_no_stream_of_their_own_and_occupy_no_device() -> None:  # entry 11
    trace = _read(json.dumps([_kernel(cat="cuda_sync", tid=1000007, dur=500), _kernel()]))
    assert [trace.lanes[lane] for lane in trace.lane] == [Lane(0, 7, True)] * 2
    assert trace.rows_of(Category.KERNEL).tolist() == [1]


@pytest.mark.parametrize(
    ("name", "rank"), [("rank0.json", 0), ("worker0.1.pt.trace.json", 0), ("r1t03.json", 1), ("any.json", None)]
)
@pytest.mark.parametrize("info", [None, {"backend": "nccl"}])
def test_without_a_told_rank_the_file_name_tells_it(
    name: str, rank: int | None, info: dict[str, Any] | None
) -> None:  # entries 16 and 17
    head = {} if info is None else {"distributedInfo": info}
    assert _read(json.dumps(head | {"traceEvents": [_kernel()]}), path=name).header.rank == rank


def test_python_frames_are_skipped_unless_asked_for() -> None:  # entry 30
    frame = GOOD.replace("cpu_op", "python_function").replace("aten::mm", "torch/nn/modules/module.py(1): __call__")
    assert len(_among(frame)) == 3
    assert len(_read(f"[{GOOD},{frame}]", keep_python_functions=True)) == 2


@pytest.mark.parametrize("key", ["Comms Id", "Seq", "correlation", "External id", "bytes", "unknown"])
def test_unsigned_64_bit_numbers_are_numbers(key: str) -> None:  # entry 31
    trace = _among(GOOD[:-1] + f', "args": {{"{key}": 18446744073709551615, "Collective name": "allreduce"}}}}')
    assert (len(trace), trace.quality.repaired, trace.quality.dropped) == (4, 0, 0)
    assert len(trace.communication.row) == 1


def test_metadata_behind_the_events_is_used() -> None:  # entry 32
    info = {"rank": 3, "world_size": 8}
    text = json.dumps({"traceEvents": [_kernel()], "baseTimeNanoseconds": 10**18, "distributedInfo": info})
    trace = _read(text, block_bytes=64)
    assert (trace.header.rank, int(trace.start_ns[0])) == (3, 10**18 + 1000)


def test_a_trace_of_metadata_events_only_is_refused_in_one_line() -> None:  # entry 33
    with pytest.raises(DataError, match=r'holds no complete event \("ph": "X"\) among 1 entry'):
        _read('{"traceEvents":[{"ph":"M","name":"process_name","pid":1,"args":{"name":"x"}}]}')


def test_host_triton_operators_that_name_a_stream_are_host_operators() -> None:  # entry 34
    trace = _among(GOOD[:-1] + ', "args": {"stream": 0, "kernel_backend": "triton"}}')
    assert (trace.category[2], trace.lanes[trace.lane[2]].on_device) == (Category.CPU_OP, False)


@pytest.mark.parametrize("tid", [-5, -(2**63), 2**63 - 1, 2**64])
def test_thread_ids_may_be_negative_or_overflowed(tid: int) -> None:  # entry 36
    trace = _among(GOOD.replace('"tid":9', f'"tid":{tid}'))
    assert (len(trace), trace.quality.dropped) == (4, 0)
    assert len(trace.lanes) == 2


def test_the_profilers_own_span_with_an_overflowed_duration_is_no_event() -> None:  # entry 37
    trace = _among('{"ph":"X","cat":"Trace","name":"PyTorch Profiler (0)","pid":"Spans","tid":"x","ts":1,"dur":9.2e15}')
    assert (len(trace), trace.quality.dropped) == (3, 0)


def test_counters_and_profiler_ranges_disturb_nothing() -> None:  # entry 41
    counter = '{"ph":"C","cat":"hardware_counters","name":"sm","pid":"GPU 0 Counters","ts":1,"args":{"":0.5}}'
    trace = _read(f"[{GOOD},{counter},{GOOD.replace('cpu_op', 'cuda_profiler_range')}]")
    assert trace.category.tolist() == [Category.CPU_OP, Category.OTHER]


FOREIGN: dict[str, tuple[str | bytes, str]] = {
    "viztracer": ('[{"ph":"X","cat":"FEE","name":"f","pid":1,"tid":1,"ts":1,"dur":2}]', 'of the kinds "FEE"'),
    "xla": ('{"displayTimeUnit":"ns","traceEvents":[{"ph":"X","name":"f","pid":1,"tid":1,"ts":1,"dur":2}]}', "no kind"),
    "chrome": ('{"traceEvents":[{"ph":"B","cat":"toplevel","name":"f","pid":1,"ts":1}]}', "no complete event"),
    "speedscope": ('{"$schema":"x","shared":{"frames":[]},"profiles":[]}', "speedscope"),
    "execution trace": ('{"schema":"1.1.1-chakra.0.0.4","nodes":[{"id":1}]}', "execution trace"),
    "memory timeline": ("[[1, 2, 3], [[4, 5], [6, 7]]]", "memory timeline"),
    "raw memory timeline": ("[[-1, 0, 1024, 3], [5, 1, 512, 2]]", "memory timeline"),
    "flight recorder": ('{"version":"2.10","pg_status":{},"entries":[]}', "flight-recorder dump"),
    "memory snapshot": ('{"segments":[],"device_traces":[]}', "memory snapshot"),
    "pickle": (b"\x80\x05\x95\x10\x00", "Python pickle"),
    "nsys": (b"SQLite format 3\x00\x10\x00", "SQLite database"),
    "zstd": (b"\x28\xb5\x2f\xfd\x04\x00", "compressed with zstd"),
    "page": ("<!DOCTYPE html><html>", "HTML"),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_not_pytorchs_trace_is_named_in_one_line(kind: str, packed: bool) -> None:  # entry 45
    content, says = FOREIGN[kind]
    raw = content.encode() if isinstance(content, str) else content
    with pytest.raises(DataError, match=says) as refused:
        _read(gzip.compress(raw) if packed else raw)
    assert isinstance(refused.value, NotATraceError) or kind == "chrome"
    assert "\n" not in str(refused.value)


def test_of_doubled_keys_the_last_counts() -> None:
    trace = _among(GOOD[:-1] + ', "args": {"External id": 1, "External id": 2}}')
    assert (trace.external_id.tolist(), trace.quality.repaired) == ([NONE, NONE, 2, NONE], 0)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_duration_that_is_no_number_loses_its_event_alone(value: str) -> None:
    trace = _among(GOOD.replace('"dur":2.0', f'"dur":{value}'))
    assert (len(trace), trace.quality.dropped) == (3, 1)


def test_an_exponent_beyond_all_numbers_loses_its_event_alone() -> None:
    for key in ("ts", "dur"):
        trace = _among(GOOD.replace(f'"{key}":', f'"{key}":1e99999999999999999999, "was":'))
        assert (len(trace), trace.quality.dropped) == (3, 1)
    kept = _among(GOOD[:-1] + ', "args": {"correlation": 1e99999999999999999999}}')
    assert (len(kept), kept.quality.dropped) == (4, 0)


def test_an_impossible_rank_is_not_told() -> None:
    head = {"distributedInfo": {"rank": 2**40, "world_size": 2**62}}
    header = _read(json.dumps(head | {"traceEvents": [_kernel()]}), path="rank99999999999.json").header
    assert (header.rank, header.world_size) == (None, None)


@pytest.mark.parametrize("value", [2**63, -1, "9" * 5000, True, 1.5, None])
def test_impossible_device_figures_are_not_told(value: Any) -> None:
    device = {"id": 0, "name": "x", "numSms": value, "regsPerMultiprocessor": value, "totalGlobalMem": "85000000000"}
    (found,) = _read(json.dumps({"deviceProperties": [device], "traceEvents": [_kernel()]})).header.devices
    assert (found.num_sms, found.registers_per_sm, found.memory_bytes) == (None, None, 85_000_000_000)


@pytest.mark.parametrize("filler", ['}]{"a":', '{"args":[', '}],"', '"},{"ph'])
def test_hopeless_text_is_given_up_in_reasonable_time(filler: str) -> None:
    """Mending may not try all ends of a long text for all of its beginnings."""
    trace = _read(f"[{GOOD}," + filler * 5_000 + f",{GOOD}]", block_bytes=100_000)
    assert trace.quality.dropped + trace.quality.repaired > 0


HARD_TO_MEND = {
    "nested too deep": "[" * 1100 + "]" * 1100,
    "objects nested too deep": '[{"a":' * 600 + "1" + "}]" * 600,
    "nested too deep and never closed": "[" * 1100,
    "many ends of arrays": "[" + '[{"a":1}],' * 40 + "tru]",
    "nested, and no JSON": "[" * 500 + "tru" + "]" * 500,
}


@pytest.mark.parametrize("kind", HARD_TO_MEND)
def test_what_cannot_be_mended_costs_a_few_times_its_text(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One event of such a kind once cost some 40 ms, thousands of times what reading it does."""
    tried: list[int] = []

    def counted(text: bytes) -> Iterator[bytes]:
        for meant in repairs(text):
            tried.append(len(meant))
            yield meant

    monkeypatch.setattr(repair, "repairs", counted)
    damaged = GOOD[:-1] + f', "args": {{"x": {HARD_TO_MEND[kind]}}}}}'
    trace = _read("[" + ",".join([GOOD, *[damaged] * 20]) + "]")
    assert (len(trace), trace.quality.repaired, trace.quality.dropped) == (1, 0, 20)
    most_times = 1.2 if "too deep" in kind else 9
    assert sum(tried) <= most_times * 20 * len(damaged)
