"""Report on all steps of a run, profiled or not, from the step records that its ranks wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stepscope.analyzer.step_telemetry import gradient_outliers, step_report
from stepscope.collectors.torchtitan_logs import read_torchtitan_steps
from stepscope.core.documents.run_directory import StepReport
from stepscope.core.errors import DataError, from_os_error
from stepscope.store.runs import find_manifest
from stepscope.store.step_records import read_run_steps
from stepscope.workflow.inputs.paths import check_readable, refuse_many_runs


def read_steps(path: str) -> StepReport:
    """Step report of a run directory, or of a folder of torchtitan's structured logs.

    Raises:
        DataError: the folder contains no steps.
    """
    check_readable(path)
    folder = Path(path)
    if not folder.is_dir():
        raise DataError("is not a folder", where=path, what_next="give a run directory")
    try:
        ranks, notices = read_run_steps(folder)
        if not ranks:
            ranks, notices = read_torchtitan_steps(folder)
    except OSError as error:
        raise from_os_error(error, "cannot be read", where=path) from error
    if not any(rank.steps for rank in ranks):
        refuse_many_runs([path])
        raise DataError(
            "holds no steps: neither steps/rank<r>.jsonl nor torchtitan's structured_logs",
            where=path,
            what_next="give the directory of a run that finished a step",
        )
    outliers = gradient_outliers(ranks, are_alike=_is_pure_data_parallel(folder))
    return replace(step_report(ranks), warnings=[*notices, *outliers])


def _is_pure_data_parallel(folder: Path) -> bool:
    """Whether the run's mesh is data-parallel only; without a mesh, ranks may hold different parts of the model."""
    manifest = find_manifest(folder)
    mesh = manifest.mesh if manifest else {}
    return "dp" in mesh and all(size == 1 for name, size in mesh.items() if name != "dp")
