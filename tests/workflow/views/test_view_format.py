"""Files of views: what comes back is what went in, and anything else is refused."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stepscope.analyzer.rank_view import RankView
from stepscope.workflow.fan_out.tasks import FileTask, view_file
from stepscope.workflow.inputs.trace_stamps import TraceStamp
from stepscope.workflow.views.kept_views import VIEWS, KeptViews
from stepscope.workflow.views.view_checks import check_view
from stepscope.workflow.views.view_format import (
    MAGIC,
    UnusableViewError,
    ViewFormat,
    ViewOptions,
    split,
    with_header,
)
from tests.workflow.views.comparing import assert_same
from tests.workflow.written_traces import write_trace

STAMP = TraceStamp(1, 2, 3, 4, "5")


def kept_of(path: Path) -> KeptViews:
    result = view_file(FileTask(str(path), 0))
    assert result.error is None
    return KeptViews(result.views, result.tells_rank, result.process, result.span_ns)


def file_of(kept: KeptViews) -> bytes:
    return VIEWS.encode(kept, [("rank0.json", STAMP)], ViewOptions(), made_ns=1)


def body_of(content: bytes) -> KeptViews:
    header, packed = split(content, where="here")
    kept = VIEWS.decode(header, packed, where="here")
    for view in kept.views:
        check_view(view, where="here")
    return kept


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> KeptViews:
    return kept_of(write_trace(tmp_path_factory.mktemp("traces") / "rank0.json"))


def test_a_view_comes_back_field_by_field(kept: KeptViews) -> None:
    assert_same(kept, body_of(file_of(kept)))


RECORDED = (
    "h100x2/pp_few/pp_few.rank0.json.gz",
    "h100x2/launch_bound/launch_bound.rank1.json.gz",
    "public/cpu3d/fsdp_1f1b/rank0.json.gz",
    "public/torch213_gloo/rank0.json.gz",
    "public/kineto/resnet50_num_workers_0.pt.trace.json.gz",
    "public/tracelens/mi355_vllm_graph_execution.json.gz",
    "public/hta/a100_2rank_rank0_nccl_args.json.gz",
)


@pytest.mark.shared
@pytest.mark.parametrize("name", RECORDED)
def test_views_of_recorded_traces_come_back(name: str, shared_traces: Path) -> None:
    kept = kept_of(shared_traces / name)
    content = file_of(kept)
    assert_same(kept, body_of(content))
    assert len(content) < 600_000


@dataclass(frozen=True, slots=True)
class Columns:
    integers: npt.NDArray[np.int64]
    figures: npt.NDArray[np.float64]
    flags: npt.NDArray[np.bool_]


COLUMNS = ViewFormat(Columns)
SHAPES = arrays.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=90)
INTEGERS = st.sampled_from((np.int8, np.int16, np.int32, np.int64))


@given(
    INTEGERS.flatmap(lambda dtype: arrays.arrays(dtype, SHAPES)),
    arrays.arrays(np.float64, SHAPES),
    arrays.arrays(np.bool_, SHAPES),
    st.booleans(),
)
def test_arrays_keep_their_values_types_and_shapes(integers: Any, figures: Any, flags: Any, ascending: bool) -> None:
    columns = Columns(np.sort(integers, axis=None) if ascending else integers, figures, flags)
    assert_same(columns, columns_of(columns))


@pytest.mark.parametrize("column", [np.arange(9) * 1.5, np.array(["x"]), np.zeros(3, np.complex128)])
def test_an_array_of_another_kind_is_refused(column: Any) -> None:
    columns = Columns(column, np.zeros(0), np.zeros(0, np.bool_))
    with pytest.raises(UnusableViewError):
        columns_of(columns)


def columns_of(columns: Columns) -> Columns:
    header, packed = split(COLUMNS.encode(columns, [], ViewOptions(), made_ns=1), where="here")
    return COLUMNS.decode(header, packed, where="here")


@given(st.data())
def test_a_damaged_file_is_refused(kept: KeptViews, data: st.DataObject) -> None:
    content = file_of(kept)
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        damaged = content[:place]
    else:
        flipped = content[place] ^ 1 << data.draw(st.integers(0, 7))
        damaged = content[:place] + bytes([flipped]) + content[place + 1 :]
    with pytest.raises(UnusableViewError):
        body_of(damaged)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(content: bytes) -> None:
    for text in (content, MAGIC + content, sealed(MAGIC + content)):
        with pytest.raises(UnusableViewError):
            body_of(text)


def sealed(content: bytes) -> bytes:
    """A file whose checksum is right: somebody made it so."""
    return content + hashlib.sha256(content).digest()


@given(st.data())
def test_a_forged_body_is_refused_or_fits_together(kept: KeptViews, data: st.DataObject) -> None:
    """Random changes of the inflated body under a right checksum: never anything but a refusal or a checked view."""
    header, _ = split(file_of(kept), where="here")
    body = bytearray(VIEWS._encoder.encode(kept))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    from isal import isal_zlib

    text = msgspec.json.encode(header)
    content = sealed(MAGIC + struct.pack("<I", len(text)) + text + isal_zlib.compress(bytes(body), 1))
    try:
        forged = body_of(content)
    except UnusableViewError:
        return
    assert all(isinstance(view, RankView) for view in forged.views)


def test_a_newer_schema_a_pickle_and_a_bomb_are_refused(kept: KeptViews) -> None:
    content = file_of(kept)
    newer = with_header(content, schema="stepscope.view/2")
    with pytest.raises(UnusableViewError, match=r"has schema 'stepscope.view/2', this version reads"):
        split(newer, where="here")
    with pytest.raises(UnusableViewError, match="is not a file of views"):
        split(pickle.dumps(kept), where="here")
    with pytest.raises(UnusableViewError, match="claims a body"):
        split(with_header(content, body_bytes=1 << 40), where="here")
    header, packed = split(with_header(content, body_bytes=100), where="here")
    with pytest.raises(UnusableViewError, match="another length"):
        VIEWS.decode(header, packed, where="here")
    with pytest.raises(UnusableViewError, match="keeps other data"):
        VIEWS.decode(replace(header, layout="0"), packed, where="here")


def test_parts_that_do_not_fit_together_are_refused(kept: KeptViews) -> None:
    (view,) = kept.views
    segments, window = view.segments, view.window
    assert view.graph is not None
    misfits = [
        replace(view, segments=replace(segments, category=segments.category + 100)),
        replace(view, segments=replace(segments, cause=segments.cause[1:])),
        replace(view, segments=replace(segments, start_ns=segments.start_ns[::-1].copy())),
        replace(view, window=replace(window, end_ns=window.start_ns)),
        replace(view, window=replace(window, end_ns=2**63 - 1)),
        replace(view, optimizer_ns=view.optimizer_ns[1:]),
        replace(view, graph=replace(view.graph, boundaries=view.graph.boundaries + 10**6)),
        replace(view, graph=replace(view.graph, stream_gap_ns=view.graph.stream_gap_ns[1:])),
        replace(view, kernel_sums=replace(view.kernel_sums, total=view.kernel_sums.total[1:])),
    ]
    for misfit in misfits:
        with pytest.raises(UnusableViewError, match="do not fit together"):
            body_of(file_of(replace(kept, views=[misfit])))


def test_the_header_is_json_that_other_tools_can_read(kept: KeptViews) -> None:
    content = file_of(kept)
    (length,) = struct.unpack_from("<I", content, len(MAGIC))
    header = json.loads(content[len(MAGIC) + 4 :][:length])
    assert header["schema"] == "stepscope.view/1"
    assert header["traces"][0] == [
        "rank0.json",
        {"num_bytes": 1, "modified_ns": 2, "changed_ns": 3, "inode": 4, "digest": "5", "of_store": ""},
    ]
