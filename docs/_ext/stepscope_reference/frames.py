"""Frames of the Python API: their columns, types and meanings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from stepscope.api import launches
from stepscope.api.figures import FIGURES
from stepscope.api.figures import __doc__ as figures_doc
from stepscope.api.run import Run
from stepscope.api.tables import table as frame_of
from stepscope.core.documents import analysis
from stepscope.core.documents.run_directory import StepRow
from stepscope.core.vocabulary import Evidence
from stepscope_reference.fields import field_texts
from stepscope_reference.markdown import code, table, text

ROWS: dict[str, type | None] = {
    "breakdown": None,
    "steps": StepRow,
    "root_causes": analysis.RootCause,
    "evidence": Evidence,
    "kernels": analysis.KernelTime,
    "operators": analysis.KernelTime,
    "modules": analysis.KernelTime,
    "copies": analysis.CopyTime,
    "findings": analysis.KernelFinding,
    "collectives": analysis.Collective,
    "arrivals": analysis.RankArrivals,
    "pipeline": analysis.Pipeline,
    "what_if": analysis.WhatIf,
}
"""Method of a run -> type of its rows; None: described by its docstring."""


def frames() -> str:
    """Every frame of a run."""
    return "\n".join(_described(name, kind) for name, kind in ROWS.items()) + _launches()


def figures() -> str:
    """Every figure of a run."""
    lines = (figures_doc or "").splitlines()
    rows = [(code(name), text(line.removeprefix(name))) for name in FIGURES for line in lines if line.startswith(name)]
    return table(("figure", "shows"), rows)


def _described(name: str, kind: type | None) -> str:
    said = inspect.getdoc(getattr(Run, name)) or ""
    head = f"## {code(f'run.{name}()')}\n\n"
    if kind is None:
        first, _, rest = said.partition("\n")
        return f"{head}{text(first)}\n\n```text\n{rest.strip()}\n```\n"
    return f"{head}{text(said)}\n\n{table(('column', 'type', 'meaning'), _columns(kind))}"


def _columns(kind: type) -> Iterator[tuple[str, str, str]]:
    texts = field_texts(kind)
    for column, dtype in frame_of(kind, []).dtypes.items():
        yield code(str(column)), str(dtype), text(texts.get(str(column).split(".")[0], ""))


def _launches() -> str:
    first, _, rest = (launches.__doc__ or "").partition("\n")
    return f'\n## `run.kernels(by="launch")`\n\n{text(first)}\n\n```text\n{rest.strip()}\n```\n'
