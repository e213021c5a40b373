"""Frames of the Python API: their columns, types and meanings."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

import pandas as pd

from stepscope import api
from stepscope.api import launches
from stepscope.api.figures import FIGURES
from stepscope.api.figures import __doc__ as figures_doc
from stepscope.api.history import History
from stepscope.api.reports import MADE, Report, row_types
from stepscope.api.run import Run
from stepscope.api.tables import column_types
from stepscope.api.tables import table as frame_of
from stepscope.core.documents import analysis
from stepscope.core.documents.run_directory import StepRow
from stepscope.core.vocabulary import Evidence
from stepscope.workflow.nodes.top import TopReport
from stepscope.workflow.trace_info import TraceInfo
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
    """Every frame of a run, of the reports, and of a metric history."""
    of_run = "\n".join(_described(name, kind) for name, kind in ROWS.items()) + _launches()
    of_reports = "\n".join(_of_report(call, document) for call, document in report_calls().items())
    return f"{of_run}\n{of_reports}\n{_of_history()}"


_LATER = {"TopReport": TopReport, "TraceInfo": TraceInfo}
"""Types that the module of reports imports late."""


def report_calls() -> dict[str, type]:
    """Calls that return a report, and calls of a history that do, with the type of its document."""
    calls = {name: getattr(api, name) for name in api.__all__ if inspect.isfunction(getattr(api, name))}
    own = {f"history(...).{name}": method for name, method in inspect.getmembers(History, inspect.isfunction)}
    return {name: get_args(kind)[0] for name, call in {**calls, **own}.items() if _is_report(kind := _returned(call))}


def _returned(call: Callable[..., Any]) -> Any:
    return get_type_hints(call, localns=_LATER).get("return")


def _is_report(kind: Any) -> bool:
    return get_origin(kind) is Report


def _of_report(call: str, document: type) -> str:
    owner, _, name = call.rpartition(".")
    function = getattr(History if owner else api, name)
    parts = [f"## {code(f'stepscope.{call}()')}\n\n{text(_summary(function))}\n"]
    for frame, made in MADE.get(call, {}).items():
        parts.append(f"### {code(f'{call}.{frame}')}\n\n{text(_as_one_line(made.__doc__))}\n")
    for frame, rows in row_types(document).items():
        if frame not in MADE.get(call, {}) and frame != "warnings":
            parts.append(f"### {code(f'{call}.{frame}')}\n\n{table(('column', 'type', 'meaning'), columns(rows))}")
    return "\n".join(parts)


def _of_history() -> str:
    methods = {
        name: method
        for name, method in inspect.getmembers(History, inspect.isfunction)
        if not name.startswith("_") and _returned(method) is pd.DataFrame
    }
    return "\n".join(
        f"## {code(f'stepscope.history(...).{name}()')}\n\n{text(_summary(method))}\n"
        for name, method in methods.items()
    )


def _summary(function: Callable[..., Any]) -> str:
    """What a docstring says before its sections."""
    said = (inspect.getdoc(function) or "").partition("\n\nArgs:")[0].partition("\n\nRaises:")[0]
    return _as_one_line(said)


def _as_one_line(said: str | None) -> str:
    return " ".join((said or "").split())


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
    rows = [row for row in columns(kind) if row[0] not in _WITHOUT.get(name, ())]
    return f"{head}{text(said)}\n\n{table(('column', 'type', 'meaning'), rows)}"


_WITHOUT = {"root_causes": (code("evidence"),)}
"""Fields that are not in the frame."""


def columns(kind: type) -> Iterator[tuple[str, str, str]]:
    """Columns of the frame of a dataclass: name, type and meaning."""
    for column, dtype in frame_of(kind, []).dtypes.items():
        yield code(str(column)), str(dtype), text(_meaning(kind, str(column).split(".")))
    for name, of in column_types(kind).items():
        if get_origin(of) is dict and get_args(of)[1] in (float, int, str):
            dtype = "str" if get_args(of)[1] is str else "float64"
            yield code(f"{name}.*"), dtype, text(f"a column a key: {field_texts(kind)[name]}".removesuffix(": "))


def _meaning(kind: type, names: list[str]) -> str:
    """Meaning of a column: of a field in an object that of both."""
    first, *rest = names
    inner = column_types(kind)[first]
    of_inner = _meaning(inner, rest) if rest and dataclasses.is_dataclass(inner) else ""  # type: ignore[arg-type]
    said = ": ".join(filter(None, (field_texts(kind)[first].removesuffix("."), of_inner)))
    if not said and isinstance(inner, type) and issubclass(inner, Enum):
        return f"one of {', '.join(member.value for member in inner)}"
    return said


def _launches() -> str:
    first, _, rest = (launches.__doc__ or "").partition("\n")
    return f'\n## `run.kernels(by="launch")`\n\n{text(first)}\n\n```text\n{rest.strip()}\n```\n'
