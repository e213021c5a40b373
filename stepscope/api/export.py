"""Export of a run's frames: one CSV or Parquet file each in a folder, with the columns of the reference."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pandas as pd

from stepscope.api.run import Run
from stepscope.core.errors import DataError, UsageError, from_os_error
from stepscope.core.vocabulary import Notice

TABLES: dict[str, Callable[[Run], pd.DataFrame]] = {
    "breakdown": lambda run: run.breakdown(),
    "breakdown_by_rank": lambda run: run.breakdown(by="rank"),
    "breakdown_by_step": lambda run: run.breakdown(by="step"),
    "phases": lambda run: run.breakdown(by="phase"),
    "steps": Run.steps,
    "root_causes": Run.root_causes,
    "evidence": Run.evidence,
    "kernels": Run.kernels,
    "operators": Run.operators,
    "modules": Run.modules,
    "copies": Run.copies,
    "findings": Run.findings,
    "collectives": Run.collectives,
    "arrivals": Run.arrivals,
    "pipeline": Run.pipeline,
    "what_if": Run.what_if,
    "launches": lambda run: run.kernels(by="launch"),
}
"""Name of a file -> its frame."""


def export_tables(run: Run, folder: Path, kind: Literal["csv", "parquet"]) -> tuple[list[Path], list[Notice]]:
    """Write the frames of a run into a folder, which is made.

    Returns:
        The files, and notices: those of the analysis, and one of each frame that the run does not have.

    Raises:
        DataError: the run cannot be analysed, or a file cannot be written.
    """
    files, notices = [], list(run.warnings)  # what cannot be analysed has no frame at all
    for name, make in TABLES.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of traces that the analysis has named
                frame = make(run)
        except (DataError, UsageError) as error:
            notices.append(Notice("not_exported", f"{name}: {error}"))
            continue
        path = folder / f"{name}.{kind}"
        partial = path.with_name(f".{path.name}.part")
        keeps_index = frame.index.names != [None]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if kind == "csv":
                frame.to_csv(partial, index=keeps_index)
            else:
                frame.to_parquet(partial, index=keeps_index)
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise from_os_error(error, "cannot be written", where=str(path)) from error
        files.append(path)
    return files, notices
