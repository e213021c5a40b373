"""Reader of operation tables: the Parquet tables of ByteDance's StragglerAnalysis.

A table has one row per operation of a rank in a step: its kind (`forward-compute`, `backward-send`, ...), its number
among its kind in the step, start and duration. Tensor-parallel peers share one row.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stepscope.core.errors import DataError
from stepscope.trace.operations import OperationTable

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "gmc")
"""Columns that are read; `mb_id` is not needed."""

_MAX_TIME = 2.0**63
"""Sums of larger times, which only damaged files hold, overflow."""
_WHOLE_NUMBERS = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "gmc")


def meta_path(path: Path) -> Path:
    """Path of a table's description: `meta-X.yaml` beside `trace-X.parquet`."""
    return path.with_name(path.name.replace("trace-", "meta-", 1)).with_suffix(".yaml")


def read_operation_table(path: Path) -> OperationTable:
    """Read `trace-*.parquet` and, if present, the `meta-*.yaml` beside it.

    Raises:
        DataError: not such a table, or the packages that read it are missing.
    """
    try:
        import pyarrow.parquet as parquet
        from pyarrow import ArrowException
    except ImportError as error:
        raise DataError(
            "an operation table needs pyarrow", where=str(path), what_next='pip install "stepscope[tables]"'
        ) from error
    try:
        table = parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise DataError("is not a readable parquet file", where=str(path), what_next="copy it again") from error
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing or not table.num_rows:
        what = f"lacks the columns {', '.join(missing)}" if missing else "holds no operation"
        raise DataError(what, where=str(path), what_next="write it as StragglerAnalysis does, one row an operation")
    try:
        kind = np.asarray(table.column("optype").to_pylist(), dtype=np.str_)
        whole = {name: table.column(name).to_numpy().astype(np.int64, casting="safe") for name in _WHOLE_NUMBERS}
        start, duration = (table.column(name).to_numpy().astype(np.float64) for name in ("start_ts", "duration"))
    except (ValueError, TypeError, ArrowException) as error:
        raise DataError(
            f"has a row that lacks a value or holds a wrong one: {error}", where=str(path), what_next="mend that row"
        ) from error
    is_time = (np.abs(start) < _MAX_TIME) & (duration >= 0) & (duration < _MAX_TIME)
    if not is_time.all():
        raise DataError("has a row whose start or duration is not a time", where=str(path), what_next="mend that row")
    kinds, codes = np.unique(kind, return_inverse=True)
    about = _read_meta(meta_path(path))
    return OperationTable(
        name=str(path),
        kinds=kinds.tolist(),
        kind=codes.astype(np.int64),
        number=whole["seq_id"],
        stage=whole["stage"],
        dp_rank=whole["dp_rank"],
        rank=whole["rank"],
        step=whole["step"],
        chunk=whole["mc"],
        global_chunk=whole["gmc"],
        start_seconds=start,
        duration_seconds=duration,
        world_size=about.get("world_size"),
        shards_per_replica=about.get("dsp_size", 1),
    )


def _read_meta(path: Path) -> dict[str, int]:
    """The whole numbers of the description; empty without one."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    # flat `name: number` lines, so no YAML library is needed
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): int(value) for name, _, value in pairs if value.strip().isdecimal()}
