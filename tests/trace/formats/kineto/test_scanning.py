"""Scan in C: what it reads, what it leaves to Python, and what it must never read."""

from __future__ import annotations

import io
import json
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.process import PURE_VARIABLE
from stepscope.trace.formats.kineto import scanning
from stepscope.trace.formats.kineto.building import ColumnsBuilder
from stepscope.trace.formats.kineto.scanning import BatchScanner, has_accelerator
from tests.trace.formats.kineto.both_ways import read_both_ways
from tests.trace.one_rank import read_trace_stream

_EVENT: dict[str, Any] = {"ph": "X", "cat": "cpu_op", "name": "n", "pid": 1, "tid": 2, "ts": 1.5, "dur": 2}
_TEXT = json.dumps(_EVENT)


@pytest.fixture(name="scanner")
def _scanner() -> BatchScanner:
    scanner = ColumnsBuilder(keep_python_functions=False).scanner()
    if scanner is None:
        pytest.skip("the accelerator is not built here")
    return scanner


def test_is_built_where_a_compiler_is() -> None:
    installed = Path(scanning.__file__).parents[4].joinpath(".venv", ".stepscope-installed")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not (installed.exists() and shutil.which("cc") and header.exists()):
        pytest.skip("no compiler, or not installed by scripts/env.sh")
    assert has_accelerator()


def test_pure_variable_switches_it_off(monkeypatch: pytest.MonkeyPatch, scanner: BatchScanner) -> None:
    assert isinstance(scanner, BatchScanner)
    monkeypatch.setenv(PURE_VARIABLE, "1")
    assert not has_accelerator()
    assert ColumnsBuilder(keep_python_functions=False).scanner() is None


def test_clean_events_become_rows(scanner: BatchScanner) -> None:
    batch = scanner.scan(memoryview(f' {_TEXT} ,\n{{"ph": "M"}},{_TEXT}\n'.encode()))
    assert batch is not None
    assert (batch.num_events, batch.num_rows) == (3, 2)
    assert batch.columns["start_ns"].tolist() == [1500, 1500]
    assert batch.columns["duration_ns"].tolist() == [2000, 2000]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        f"{_TEXT},",
        f",{_TEXT}",
        f"{_TEXT} {_TEXT}",
        _TEXT[:-1],
        _TEXT.replace('"n"', '"\x01"'),
        _TEXT.replace('"n"', '"\\x"'),
        _TEXT.replace('"n"', '"\\ud800"'),
        _TEXT.replace('"n"', "null"),
        _TEXT.replace("1.5", "1.2345"),
        _TEXT.replace("1.5", "1e3"),
        _TEXT.replace("1.5", "01"),
        _TEXT.replace("1.5", "1."),
        _TEXT.replace("1.5", "NaN"),
        _TEXT.replace("1.5", "9223372036854775807"),
        _TEXT.replace('"dur": 2', '"dur": -2'),
        _TEXT.replace('"dur": 2', '"dur": 8796093022208'),
        _TEXT.replace(', "dur": 2', ""),
        _TEXT.replace('"pid": 1', '"pid": 1.0'),
        _TEXT.replace('"ph"', '"p\\u0068"'),
        _TEXT.replace("cpu_op", "Operator"),
        _TEXT.replace('"X"', '""'),
        _TEXT.replace("}", ', "args": {"correlation": null}}'),
        _TEXT.replace("}", ', "args": {"correlation": 9223372036854775808}}'),
        _TEXT.replace("}", ', "args": {"x": [1, 2,]}}'),
        _TEXT.replace("}", ', "args": {"x": [1 2]}}'),
        _TEXT.replace("}", ', "args": {"x": tru}}'),
        _TEXT.replace("}", ', "args": {"rank": 1}}'),
        _TEXT.replace("}", ', "args": ' + '{"x": ' * 99 + "1" + "}" * 100),
    ],
)
def test_whatever_is_not_plainly_right_is_left_to_python(text: str, scanner: BatchScanner) -> None:
    assert scanner.scan(memoryview(text.encode())) is None


@pytest.mark.parametrize("name", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"\x80"])
def test_invalid_utf8_is_left_to_python(name: bytes, scanner: BatchScanner) -> None:
    assert scanner.scan(memoryview(_TEXT.encode().replace(b'"n"', b'"' + name + b'"'))) is None


def test_refused_texts_leave_no_numbers_behind() -> None:
    builder = ColumnsBuilder(keep_python_functions=False)
    scanner = builder.scanner()
    if scanner is None:
        pytest.skip("the accelerator is not built here")
    assert scanner.scan(memoryview(f"{_TEXT},{{".encode())) is None
    assert not builder.names
    builder.names["first"]
    batch = scanner.scan(memoryview(_TEXT.encode()))
    assert batch is not None
    assert batch.columns["name"].tolist() == [1]


def test_what_follows_a_category_of_2021_is_read_as_of_2021() -> None:
    new = _TEXT.replace("}", ', "args": {"external id": 3}}')
    text = f"[{_TEXT.replace('cpu_op', 'Operator')},{','.join([new] * 30)}]".encode()
    trace = read_both_ways(
        lambda: read_trace_stream(io.BytesIO(text), path="t.json", file_bytes=len(text), block_bytes=300)
    )
    assert trace.external_id.tolist() == [-1, *[3] * 30]


def test_python_frames_are_read_but_for_built_in_functions_and_torchs_own_files() -> None:
    names = [
        "nn.Module: Linear_0",
        "train.py(40): forward",
        "Python GC",
        "<built-in function collect>",
        "torch/nn/modules/linear.py(125): forward",
        "<b",
        "t\u00f6rch/a.py(1): f",
        "",
    ]
    events = [_EVENT | {"cat": "python_function", "name": name} for name in names]
    text = json.dumps([_EVENT, *events]).encode()
    trace = read_both_ways(lambda: read_trace_stream(io.BytesIO(text), path="t.json", file_bytes=len(text)))
    assert [trace.names[name] for name in trace.name] == ["n", *names[:4], *names[6:]]
