from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.trace.formats.operation_table import COLUMNS, read_operation_table

pyarrow = pytest.importorskip("pyarrow", reason="reading parquet needs pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROW = {
    "dp_rank": 0,
    "stage": 0,
    "rank": 0,
    "step": 3,
    "optype": "forward-compute",
    "start_ts": 0.5,
    "duration": 1.5,
    "seq_id": 0,
    "mc": 0,
    "gmc": 0,
}


def write(path: Path, *rows: dict[str, object], without: str = "") -> Path:
    names = [name for name in COLUMNS if name != without]
    parquet.write_table(pyarrow.table({name: [row[name] for row in rows] for name in names}), path)
    return path


def test_a_table_is_read_with_its_description(tmp_path: Path) -> None:
    path = write(tmp_path / "trace-X.parquet", ROW, ROW | {"optype": "optimizer", "start_ts": 2.0})
    (tmp_path / "meta-X.yaml").write_text("trial_name: X\ndsp_size: 2\nworld_size: 128\n")
    table = read_operation_table(path)
    assert [table.kinds[kind] for kind in table.kind] == ["forward-compute", "optimizer"]
    assert table.start_seconds.tolist() == [0.5, 2.0]
    assert (table.shards_per_replica, table.world_size) == (2, 128)


def test_without_its_description_a_replica_is_not_sharded(tmp_path: Path) -> None:
    table = read_operation_table(write(tmp_path / "trace-X.parquet", ROW))
    assert (table.shards_per_replica, table.world_size) == (1, None)


@pytest.mark.parametrize(
    ("spoilt", "without", "says"),
    [
        ({}, "gmc", "lacks the columns gmc"),
        ({"start_ts": float("nan")}, "", "is not a time"),
        ({"duration": -1.0}, "", "is not a time"),
        ({"duration": 1e308}, "", "is not a time"),
        ({"start_ts": -1e300}, "", "is not a time"),
        ({"stage": None}, "", "lacks a value"),
        ({"seq_id": 1.5}, "", "wrong one"),
    ],
)
def test_a_broken_table_is_refused_in_one_line(
    tmp_path: Path, spoilt: dict[str, object], without: str, says: str
) -> None:
    path = write(tmp_path / "trace-X.parquet", ROW | spoilt, ROW, without=without)
    with pytest.raises(DataError, match=says) as raised:
        read_operation_table(path)
    assert "\n" not in str(raised.value)


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace-X.parquet"
    path.write_bytes(b"not parquet")
    with pytest.raises(DataError, match="not a readable parquet"):
        read_operation_table(path)
