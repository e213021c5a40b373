"""SQLite exports of Nsight Systems, written after the documented schema from recorded traces."""

from __future__ import annotations

import gzip
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import DataError, NotATraceError
from stepscope.trace.columns import DEVICE_CATEGORIES, Category, TraceColumns
from stepscope.trace.formats.nsight import step_names
from stepscope.trace.reading import read_ranks, read_ranks_stream
from stepscope.workflow.analyze import analyze
from tests.trace.formats.nsight_export import TABLES, write_export

_RECORDED = Path(__file__).parents[2] / "reference_workloads/suite/recorded"
_FILES = sorted((_RECORDED / "ddp-straggler").rglob("traces/step*/rank*.json.gz"))


@pytest.fixture(scope="module")
def recorded() -> list[TraceColumns]:
    """Traces of two H200s."""
    return [trace for path in _FILES for trace in read_ranks(path)]


@pytest.fixture(scope="module")
def export(recorded: list[TraceColumns], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of the first."""
    path = tmp_path_factory.mktemp("nsight") / "report_rank3.sqlite"
    write_export(path, recorded[:1])
    return path


def test_device_work_is_read_as_it_was_recorded(recorded: list[TraceColumns], export: Path) -> None:
    (trace,) = read_ranks(export)
    assert trace.header.rank == 3
    assert (trace.header.host_name, trace.header.process_id) == ("node7", 4711)
    assert trace.header.devices[0].name == recorded[0].header.devices[0].name
    assert _device_work(trace) == _device_work(recorded[0])
    assert trace.quality.dropped == 0


def _device_work(trace: TraceColumns) -> Counter[tuple[object, ...]]:
    rows = trace.rows_of(*DEVICE_CATEGORIES)
    columns = (trace.category, trace.start_ns, trace.end_ns, trace.correlation, trace.num_bytes)
    names = [trace.names[name] for name in trace.name[rows].tolist()]
    lanes = [trace.lanes[lane][:3] for lane in trace.lane[rows].tolist()]
    launches = [trace.launches[one] if one >= 0 else None for one in trace.launch[rows].tolist()]
    return Counter(zip(*(column[rows].tolist() for column in columns), names, lanes, launches, strict=True))


def test_operators_calls_and_steps_are_read(recorded: list[TraceColumns], export: Path) -> None:
    (trace,) = read_ranks(export)
    for category in (Category.CPU_OP, Category.USER_ANNOTATION, Category.RUNTIME):
        assert _names(trace, category) == _names(recorded[0], category)
    shapes = {shape.input_dims for shape in recorded[0].shape_table if shape.input_dims}
    assert {shape.input_dims for shape in trace.shape_table} <= shapes | {"[]"}


def _names(trace: TraceColumns, category: Category) -> Counter[str]:
    return Counter(trace.names[name] for name in trace.name[trace.rows_of(category)].tolist())


def test_the_breakdown_is_that_of_the_profilers_trace(export: Path) -> None:
    of_export = analyze([str(export)], keep=False).analysis
    of_trace = analyze([str(_FILES[0])], keep=False).analysis
    for category, share in of_trace.ledger.items():
        assert of_export.ledger[category] == pytest.approx(share, abs=0.02), category
    assert of_export.job.step_ms == pytest.approx(of_trace.job.step_ms)


def test_each_process_with_a_gpu_is_a_rank(recorded: list[TraceColumns], tmp_path: Path) -> None:
    write_export(tmp_path / "node.sqlite", recorded)
    traces = read_ranks(tmp_path / "node.sqlite")
    assert [(trace.header.rank, trace.header.part) for trace in traces] == [(0, "process 4711"), (1, "process 4712")]
    assert [len(trace.rows_of(Category.KERNEL)) for trace in traces] == [
        len(trace.rows_of(Category.KERNEL)) for trace in recorded
    ]


def test_a_stream_is_read_as_the_file(export: Path) -> None:
    (of_file,) = read_ranks(export)
    with export.open("rb") as stream:
        (of_stream,) = read_ranks_stream(stream, path="s3://bucket/report_rank3.sqlite", file_bytes=1)
    assert _device_work(of_stream) == _device_work(of_file)


@pytest.mark.parametrize("table", [name for name in TABLES if name not in ("StringIds", "CUPTI_ACTIVITY_KIND_KERNEL")])
def test_tables_that_a_report_did_not_need_may_be_absent(export: Path, tmp_path: Path, table: str) -> None:
    path = tmp_path / "less.sqlite"
    path.write_bytes(export.read_bytes())
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"DROP TABLE {table}")
        database.commit()
    (trace,) = read_ranks(path)
    assert len(trace.rows_of(Category.KERNEL)) > 0


def test_an_export_without_gpu_work_says_how_to_record_it(export: Path, tmp_path: Path) -> None:
    path = tmp_path / "cpu.sqlite"
    path.write_bytes(export.read_bytes())
    with closing(sqlite3.connect(path)) as database:
        for kind in ("KERNEL", "MEMCPY", "MEMSET"):
            database.execute(f"DROP TABLE CUPTI_ACTIVITY_KIND_{kind}")
        database.commit()
    with pytest.raises(NotATraceError, match="--trace=cuda,nvtx"):
        read_ranks(path)


def test_a_damaged_export_is_refused_in_one_line(export: Path, tmp_path: Path) -> None:
    content = export.read_bytes()
    (tmp_path / "cut.sqlite").write_bytes(content[: len(content) // 2])
    (tmp_path / "words.sqlite").write_bytes(content)
    with closing(sqlite3.connect(tmp_path / "words.sqlite")) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon' WHERE rowid = 5")
        database.commit()
    for name in ("cut.sqlite", "words.sqlite"):
        with pytest.raises(DataError) as caught:
            read_ranks(tmp_path / name)
        assert "\n" not in str(caught.value)


@given(st.binary(max_size=200))
def test_anything_behind_the_magic_is_no_traceback(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("nsight") / "a.sqlite"
    path.write_bytes(b"SQLite format 3\0" + content)
    with pytest.raises(DataError):
        read_ranks(path)


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["step 1", "step 2", "step 3"], [1, 2, 3]),
        (["iteration5", "iteration6"], [5, 6]),
        (["layer 0", "layer 1", "step_7", "step_8"], [7, 8]),
        (["step 1", "step 3"], []),
        (["forward", "backward"], []),
        (["step 9"], [9]),
        (["optimizer step 9", "layer 4"], []),
    ],
)
def test_ranges_that_count_are_steps(names: list[str], steps: list[int]) -> None:
    ranges = [(10 * place, 10 * place + 9, name) for place, name in enumerate(names)]
    assert list(step_names(ranges).values()) == [f"ProfilerStep#{step}" for step in steps]


def test_ranges_that_overlap_are_no_steps() -> None:
    assert step_names([(0, 10, "step 1"), (5, 15, "step 2")]) == {}


def test_a_graph_recorded_as_a_whole_keeps_the_gpu_busy(export: Path, tmp_path: Path) -> None:
    """nsys records graphs so by default: their kernels are in no table."""
    path = tmp_path / "graphs.sqlite"
    path.write_bytes(export.read_bytes())
    columns = "start, end, deviceId, streamId, correlationId, globalPid"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE ({columns}, graphId, graphExecId)")
        spans = f"SELECT {columns}, 4, 5 FROM CUPTI_ACTIVITY_KIND_KERNEL"
        database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE {spans}")
        lost = (0, 0, 0, 7, 1, 1 << 56 | 4711 << 24, 4, 5)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?, ?, ?, ?, ?, ?, ?, ?)", lost)
        database.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
        database.commit()
    (trace,), (whole,) = read_ranks(path), read_ranks(export)
    kernels = [one.rows_of(Category.KERNEL) for one in (trace, whole)]
    assert {trace.names[name] for name in trace.name[kernels[0]].tolist()} == {"CUDA graph 4"}
    assert (trace.end_ns - trace.start_ns)[kernels[0]].sum() == (whole.end_ns - whole.start_ns)[kernels[1]].sum()
    assert trace.quality.dropped == 1


def test_a_packed_export_and_one_without_texts_say_what_to_do(export: Path, tmp_path: Path) -> None:
    packed, textless = tmp_path / "a.sqlite.gz", tmp_path / "b.sqlite"
    packed.write_bytes(gzip.compress(export.read_bytes()))
    textless.write_bytes(export.read_bytes())
    with closing(sqlite3.connect(textless)) as database:
        database.execute("DROP TABLE StringIds")
        database.commit()
    with pytest.raises(NotATraceError, match="compressed; unpack it"):
        read_ranks(packed)
    with pytest.raises(NotATraceError, match="without its table of texts; export the report again"):
        read_ranks(textless)
