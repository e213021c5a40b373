"""Targets of the fuzzer: processing of an input of each kind, as far as a user would take it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree as Xml

import msgspec
import numpy as np

from benchmarks.fuzz.documents import make_analysis, make_gates, make_manifest, make_steps, make_table, make_timeline
from benchmarks.fuzz.files import make_archive, make_foreign, make_names
from benchmarks.fuzz.jobs import base_jobs, make_events, make_job
from benchmarks.fuzz.traces import make_trace
from stepscope.analyzer.compare.comparison import compare_runs
from stepscope.analyzer.compare.gates import parse_gate_conditions
from stepscope.analyzer.compare.run_record import RunRecord
from stepscope.analyzer.job import analyse_job
from stepscope.analyzer.summaries import JobContext, timeline_document
from stepscope.analyzer.what_if.whole_job import what_if_job
from stepscope.cli.terminal.analysis import print_analysis
from stepscope.cli.terminal.comparison import print_comparison
from stepscope.core.documents.analysis import Analysis
from stepscope.core.documents.run_directory import RankTimeline
from stepscope.core.errors import DataError, StepscopeError
from stepscope.core.process import PURE_VARIABLE
from stepscope.store.documents import (
    decode_analysis,
    decode_manifest,
    decode_timelines,
    encode_document,
    encode_timelines,
)
from stepscope.store.step_records import read_pace, read_step_telemetry
from stepscope.trace.columns import TraceColumns
from stepscope.trace.file_names import MAX_RANK, ranks_by_name, read_file_name
from stepscope.trace.formats.kineto.reader import read_kineto
from stepscope.trace.reading import read_ranks_stream
from stepscope.workflow.fan_out.engine import FanOut
from stepscope.workflow.inputs.captures import captures_of, choose
from stepscope.workflow.inputs.trace_files import find_trace_files, open_ranks
from stepscope.workflow.job_input import read_job
from stepscope.workflow.junit import gates_as_junit
from stepscope.workflow.panels.report import render_report
from stepscope.workflow.panels.timeline import make_tile, make_track
from stepscope.workflow.run_records import read_steps
from stepscope.workflow.trace_info import describe_trace
from stepscope.workflow.what_if import what_if_of_table

LARGEST_REPORT_BYTES = 1_000_000
SHARE_BOTH_WAYS = 0.25
"""Of damaged text; nearly all of it is read in Python either way."""
SHARE_AS_RUN = 0.3
SHARE_IN_TERMINAL = 0.1
SHARE_SHOWN = 0.1
PATHS = ("rank0.json", "rank1.json.gz", "a.json", "r3t01.json", "worker_99999999999.json")
GATES = "step_time:+3%,mfu:-1%,busbw:-5%,heading:wait:+2%,kernel:nccl.*:+1ms,collective:all_reduce:+4%,data_loading:+1%"


def run_text(text: bytes, random: Random) -> str:
    """Read damaged text; of some of it with and without the accelerator."""
    traces = read_text(text, random, both_ways=random.random() < SHARE_BOTH_WAYS)
    for trace in traces:
        describe_trace(trace)
    return "read"


def run_events(text: bytes, random: Random) -> str:
    """Read wrong events with and without the accelerator."""
    traces = read_text(text, random, both_ways=True)
    for trace in traces:
        describe_trace(trace)
    return "read both ways"


def read_text(text: bytes, random: Random, *, both_ways: bool) -> list[TraceColumns]:
    """The traces in a text; an error or a difference between the two ways is raised."""
    path, block_bytes = random.choice(PATHS), random.choice((300, 2000, 1 << 19, 1 << 19))
    keep = random.random() < 0.1

    def read() -> list[TraceColumns] | StepscopeError:
        try:
            return read_kineto(
                io.BytesIO(text), path=path, file_bytes=len(text), block_bytes=block_bytes, keep_python_functions=keep
            )
        except StepscopeError as error:
            return error

    os.environ.pop(PURE_VARIABLE, None)
    found = read()
    if both_ways:
        os.environ[PURE_VARIABLE] = "1"
        pure = read()
        os.environ.pop(PURE_VARIABLE)
        _assert_same(found, pure)
    if isinstance(found, StepscopeError):
        raise found
    for trace in found:
        assert (trace.end_ns >= trace.start_ns).all()
        assert len(trace) <= trace.quality.num_events
    return found


def _assert_same(ours: Any, theirs: Any, where: str = "") -> None:
    assert type(ours) is type(theirs), f"{where}: {ours!r} is not {theirs!r}"
    if isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype, where
        assert np.array_equal(ours, theirs), where
    elif isinstance(theirs, StepscopeError):
        assert str(ours) == str(theirs)
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for mine, other in zip(ours, theirs, strict=True):
            _assert_same(mine, other, where)
    elif dataclasses.is_dataclass(theirs):
        for field in (field for field in dataclasses.fields(theirs) if field.compare):
            _assert_same(getattr(ours, field.name), getattr(theirs, field.name), f"{where}.{field.name}")
    else:
        assert ours == theirs, where


@cache
def _scratch() -> Path:
    """A folder of this process for what must be read from files."""
    where = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="stepscope-fuzz-", dir=where if os.access(where, os.W_OK) else None))


def remove_scratch() -> None:
    """Remove that folder."""
    shutil.rmtree(_scratch(), ignore_errors=True)
    _scratch.cache_clear()


@contextlib.contextmanager
def _folder() -> Any:
    folder = _scratch() / "one"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def run_job(files: Sequence[bytes], random: Random) -> str:
    """The whole way of `analyze`, `report`, `whatif` and `compare` over a folder or a run directory."""
    with _folder() as folder:
        is_run = random.random() < SHARE_AS_RUN
        traces = folder / "traces" / "step4" if is_run else folder
        traces.mkdir(parents=True, exist_ok=True)
        stem = random.choice(("rank{}", "rank{}", "t{}"))
        for place, text in enumerate(files):
            ending = ".json.gz" if text.startswith(b"\x1f\x8b") else ".json"
            (traces / f"{stem.format(place)}{ending}").write_bytes(text)
        if is_run:
            (folder / "run.json").write_bytes(make_manifest(random))
            (folder / "steps").mkdir()
            (folder / "steps" / "rank0.jsonl").write_bytes(make_steps(random))
        job = read_job([str(folder)], whole_file=random.random() < 0.2, fan_out=FanOut(num_workers=1))
    analysis, views = analyse_job(job.views, job.context)
    _check(analysis)
    timelines = [timeline_document(view) for view in views]
    assert decode_timelines(encode_timelines(timelines)) == timelines
    show(analysis, timelines, in_terminal=random.random() < SHARE_IN_TERMINAL)
    try:
        encode_document(what_if_job(job.views, job.context))
    except DataError:
        return "analysed and shown; no replay"
    return "analysed, shown and replayed"


def _check(analysis: Analysis) -> None:
    """Invariants of any analysis: the ledger adds up, shares are within 0 and 1, the document survives a round trip."""
    ledgers: list[dict[Any, float]] = [analysis.ledger, *(rank.ledger for rank in analysis.ranks)]
    ledgers += [step.ledger for rank in analysis.ranks for step in rank.steps]
    ledgers.append({row.cause: row.fraction for row in analysis.root_causes})
    for ledger in ledgers:
        assert abs(sum(ledger.values()) - 1) < 1e-6, ledger
        assert min(ledger.values()) >= 0, ledger
    assert 0 <= analysis.verdict.confidence <= 1
    content = encode_document(analysis)
    try:
        back = decode_analysis(content)
    except DataError as error:
        raise AssertionError(f"our own document is refused: {error}") from error
    assert back == analysis, "the document does not come back as it went"
    _assert_finite(msgspec.to_builtins(analysis), "")


def _assert_finite(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            if key != "missing_ranks":  # up to a million whole numbers
                _assert_finite(part, f"{where}.{key}")
    elif isinstance(value, list):
        for part in value:
            _assert_finite(part, where)
    else:
        assert not isinstance(value, float) or math.isfinite(value), f"{where} is {value}"


def show(analysis: Analysis, timelines: Sequence[RankTimeline], *, in_terminal: bool) -> None:
    """Report, terminal (slow) and comparison with another run, as they would be written."""
    page = render_report(analysis, timelines, title="a run", version="0").encode()
    assert len(page) < LARGEST_REPORT_BYTES, f"a report of {len(page)} bytes"
    for track in map(make_track, timelines):
        origin, length = int(track.edges_ns[0]), int(track.edges_ns[-1] - track.edges_ns[0])
        for first, width in ((0, 40), (length // 3, 2)):
            make_tile(track, origin_ns=origin, start_ns=first, end_ns=max(length, first + 1), width=width)
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")):
        if in_terminal:
            print_analysis(analysis)
        if not analysis.ranks:
            return  # without traces there is nothing to compare
        sides = [RunRecord("known", known_analysis())], [RunRecord("this", analysis)]
        found = compare_runs(
            *(sides if in_terminal else sides[::-1]), names=("a", "b"), conditions=parse_gate_conditions(GATES)
        )
        encode_document(found)
        Xml.fromstring(gates_as_junit(found))
        if in_terminal:
            print_comparison(found)


@cache
def known_analysis() -> Analysis:
    """The analysis of a job without faults."""
    from stepscope.analyzer.rank import view_rank

    texts = [json.dumps(document).encode() for document in json.loads(base_jobs()[0])]
    traces = [read_kineto(io.BytesIO(text), path="t.json", file_bytes=len(text))[0] for text in texts]
    return analyse_job([view_rank(trace, rank) for rank, trace in enumerate(traces)], JobContext())[0]


def run_analysis(content: bytes, random: Random) -> str:
    """Decode a stored analysis; show and compare it if it can be decoded."""
    analysis = decode_analysis(content)
    if random.random() > SHARE_SHOWN:
        return "decoded"
    show(analysis, [], in_terminal=random.random() < SHARE_IN_TERMINAL)
    return "decoded and shown"


def run_timeline(content: bytes, _: Random) -> str:
    """Decode stored timelines and draw them."""
    for line in decode_timelines(content):
        track = make_track(line)
        length = int(track.edges_ns[-1] - track.edges_ns[0])
        make_tile(track, origin_ns=int(track.edges_ns[0]), start_ns=0, end_ns=max(length, 1), width=30)
    return "decoded"


def run_manifest(content: bytes, _: Random) -> str:
    """Decode a run's manifest."""
    decode_manifest(content)
    return "decoded"


def run_steps(content: bytes, _: Random) -> str:
    """Read step telemetry in all ways it is used, and as torchtitan's log."""
    with _folder() as folder:
        logs = folder / "structured_logs" / "training.global_rank_0.20260101-000000-ABCDEF.jsonl"
        for path in (folder / "steps" / "rank0.jsonl", logs):
            path.parent.mkdir()
            path.write_bytes(content)
        found = read_step_telemetry(folder)
        read_pace(folder, (1, 3))
        for place in (folder, logs.parent):
            with contextlib.suppress(DataError):
                encode_document(read_steps(str(place)))
    return "read" if found.step_ms else "read, no settled step"


def run_gates(text: str, _: Random) -> str:
    """Parse the conditions of `compare --fail-on`."""
    parse_gate_conditions(text)
    return "parsed"


def run_table(files: tuple[bytes, bytes | None], _: Random) -> str:
    """Read an operation table and its description, and replay it."""
    with _folder() as folder:
        (folder / "trace-1.parquet").write_bytes(files[0])
        if files[1] is not None:
            (folder / "meta-1.yaml").write_bytes(files[1])
        encode_document(what_if_of_table(folder / "trace-1.parquet"))
    return "replayed"


def run_archive(content: bytes, _: Random) -> str:
    """Find and read the traces of an archive."""
    with _folder() as folder:
        path = folder / "a.tar.gz"
        path.write_bytes(content)
        members = find_trace_files([str(path)], capture="all").paths
        for member in members:
            with contextlib.suppress(DataError):
                open_ranks(member)
        assert os.listdir(folder) == [path.name]
    return "read"


def run_foreign(content: bytes, random: Random) -> str:
    """Read a file of another tool; what is read is a trace of a known device, or of one that is named."""
    path = random.choice((*PATHS, "a.nsys-rep", "a.xplane.pb", "a.csv"))
    for trace in read_ranks_stream(io.BytesIO(content), path=path, file_bytes=len(content)):
        describe_trace(trace)
    return "read"


def run_names(names: list[str], _: Random) -> str:
    """Order file names, and find ranks and captures in them."""
    read = [read_file_name(name) for name in names]
    assert all(rank is None or 0 <= rank <= MAX_RANK for rank in ranks_by_name(read))
    captures = captures_of(names)
    assert sorted(name for capture in captures for name in capture.files) == sorted(names)
    for number in range(1, len(captures) + 1):
        choose(captures, number, [])
    return "ordered"


TARGETS: dict[str, tuple[float, Callable[[Random], Any], Callable[[Any, Random], str]]] = {
    "job": (0.005, make_job, run_job),
    "trace events": (0.1, make_events, run_events),
    "trace text": (0.09, make_trace, run_text),
    "operation table": (0.005, make_table, run_table),
    "analysis.json": (0.16, make_analysis, run_analysis),
    "timeline.json": (0.16, make_timeline, run_timeline),
    "run.json": (0.16, make_manifest, run_manifest),
    "steps.jsonl": (0.12, make_steps, run_steps),
    "gates": (0.16, make_gates, run_gates),
    "archive": (0.01, make_archive, run_archive),
    "foreign file": (0.02, make_foreign, run_foreign),
    "file names": (0.01, make_names, run_names),
}
"""Kind of input -> its share of all, how one is made, what is done with it."""
