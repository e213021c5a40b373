"""Reader of operation tables: the Parquet tables of ByteDance's StragglerAnalysis.

Such a table has one row an operation of one rank in one step: its kind (`forward-compute`, `backward-send`, ...), its
number among its kind in the step, start and duration. Tensor-parallel peers share one row.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stepscope.core.errors import DataError
from stepscope.trace.operations import OperationTable

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "gmc")
"""What the table must hold; `mb_id` is not needed."""

_NO_CLOCK_REACHES = 2.0**63
"""In whatever unit: sums of larger times, as damaged files have them, overflow."""
_WHOLE_NUMBERS = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "gmc")


def meta_path(path: Path) -> Path:
    """Where the description of a table lies: `meta-X.yaml` beside `trace-X.parquet`."""
    return path.with_name(path.name.replace("trace-", "meta-", 1)).with_suffix(".yaml")


def read_operation_table(path: Path) -> OperationTable:
    """Read `trace-*.parquet` and, where it is, the `meta-*.yaml` beside it.

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
    is_time = (np.abs(start) < _NO_CLOCK_REACHES) & (duration >= 0) & (duration < _NO_CLOCK_REACHES)
    if not is_time.all():
        raise DataError("has a row whose start or duration is no time", where=str(path), what_next="mend that row")
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
    """The whole numbers of the description; empty where there is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    # flat `name: number` lines: YAML needs no library for that
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): int(value) for name, _, value in pairs if value.strip().isdecimal()}
