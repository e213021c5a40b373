"""JSON documents: path, type and meaning of each value."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from stepscope.agent.sources import AgentCheck
from stepscope.core.documents.analysis import Analysis, CaptureAnalyses
from stepscope.core.documents.comparison import Comparison
from stepscope.core.documents.cost import CostReport
from stepscope.core.documents.goodput import GoodputReport
from stepscope.core.documents.hang import HangReport, LiveHang, RankState
from stepscope.core.documents.health import HealthList, NodeHealth
from stepscope.core.documents.history import HistoryReport, JobsReport
from stepscope.core.documents.machine_checks import Doctor, Preflight
from stepscope.core.documents.memory import MemoryComparison, MemoryReport
from stepscope.core.documents.nccl import NcclReport
from stepscope.core.documents.node import Node, StatusReport
from stepscope.core.documents.run_directory import RankPlace, RunManifest, Step, StepReport
from stepscope.core.documents.stored_runs import PruneReport, RunList, UploadReport
from stepscope.core.documents.upload import NodeUpload
from stepscope.core.documents.what_if import WhatIfReport
from stepscope.core.protocol.captures import CaptureReport
from stepscope.core.protocol.messages import Message
from stepscope.core.protocol.verdicts import LiveVerdict
from stepscope.reference_workloads.bench.result import Bench
from stepscope.reference_workloads.suite.report import SuiteReport
from stepscope.reference_workloads.suite.results import SuiteRunResult
from stepscope.workflow.trace_info import TraceInfo
from stepscope.workflow.views.removed_traces import RemovedTraces
from stepscope_reference.fields import field_texts
from stepscope_reference.markdown import code, table, text
from stepscope_reference.snapshots import snapshot

_TYPES: Mapping[str, type] = {
    "stepscope.agent-check/1": AgentCheck,
    "stepscope.analysis/1": Analysis,
    "stepscope.bench/1": Bench,
    "stepscope.captures/1": CaptureAnalyses,
    "stepscope.compare/1": Comparison,
    "stepscope.cost/1": CostReport,
    "stepscope.doctor/1": Doctor,
    "stepscope.goodput/1": GoodputReport,
    "stepscope.hang/1": HangReport,
    "stepscope.health-list/1": HealthList,
    "stepscope.health/1": NodeHealth,
    "stepscope.history/1": HistoryReport,
    "stepscope.history-jobs/1": JobsReport,
    "stepscope.live-hang/1": LiveHang,
    "stepscope.live-verdict/1": LiveVerdict,
    "stepscope.memory-comparison/1": MemoryComparison,
    "stepscope.memory/1": MemoryReport,
    "stepscope.nccl/1": NcclReport,
    "stepscope.node-capture/1": CaptureReport,
    "stepscope.node/1": Node,
    "stepscope.preflight/1": Preflight,
    "stepscope.rank-state/1": RankState,
    "stepscope.prune/1": PruneReport,
    "stepscope.removed-traces/1": RemovedTraces,
    "stepscope.run-list/1": RunList,
    "stepscope.run/1": RunManifest,
    "stepscope.status/1": StatusReport,
    "stepscope.steps/1": StepReport,
    "stepscope.suite-run/1": SuiteRunResult,
    "stepscope.suite/1": SuiteReport,
    "stepscope.trace_info/1": TraceInfo,
    "stepscope.upload-report/1": UploadReport,
    "stepscope.upload/1": NodeUpload,
    "stepscope.whatif/1": WhatIfReport,
    "ranks/rank*.json": RankPlace,
    "steps/rank*.jsonl: one line": Step,
    **{f"socket message: {kind.type}": kind for kind in typing.get_args(Message)},
}
"""Document -> the type it is written from; its docstrings say what the values mean."""

_STEP = re.compile(r"[^.\[\]]+|\[\]")


def documents() -> str:
    """All documents; those with a schema first."""
    contract = snapshot("documents") | snapshot("training_documents")
    names = sorted(contract, key=lambda name: (not name.startswith("stepscope."), name))
    return "\n".join(f"## {code(name)}\n\n{_described(contract[name], _TYPES.get(name))}" for name in names)


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    """A field on the way to a value.

    Attributes:
        owner: the type that has the field.
        around: path of the object of that type; empty for the document.
        path: of the field.
        meaning: by the type's docstrings.
    """

    owner: type
    around: str
    path: str
    meaning: str


def _described(paths: Mapping[str, str], kind: type | None) -> str:
    rows: dict[str, tuple[str, str, str]] = {}
    first_places: dict[type, str] = {}
    for path, json_type in paths.items():
        shown, fields = _way(path, kind)
        again = next((one for one in fields if first_places.setdefault(one.owner, one.around) != one.around), None)
        for field in fields[: fields.index(again)] if again else fields[:-1]:
            if field.meaning:
                outer_type = "array" if shown.startswith(f"{field.path}[]") else "object"
                rows.setdefault(field.path, (code(field.path), outer_type, text(field.meaning)))
        if again:
            rows.setdefault(again.around, (code(again.around), "object", f"as {code(first_places[again.owner])}"))
        else:
            meaning = fields[-1].meaning if fields else ""
            rows.setdefault(shown, (code(shown), text(json_type), text(meaning)))
    return table(("value", "type", "meaning"), rows.values())


def _way(path: str, kind: Any) -> tuple[str, list[_Field]]:
    """The path of a value with `*` for keys that are data, and the fields on it."""
    shown = ""
    fields: list[_Field] = []
    for step in _STEP.findall(path):
        owner = next((one for one in _members(kind) if isinstance(one, type) and dataclasses.is_dataclass(one)), None)
        around = shown
        if step == "[]":
            shown, kind = f"{shown}[]", _inside(kind)
        elif owner is None:
            shown, kind = f"{shown}.{'*' if _inside(kind) is not None else step}".removeprefix("."), _inside(kind)
        else:
            shown = f"{shown}.{step}".removeprefix(".")
            fields.append(_Field(owner, around, shown, field_texts(owner).get(step, "")))
            kind = typing.get_type_hints(owner).get(step)
    return shown, fields


def _members(kind: Any) -> Iterator[Any]:
    """Members of a union; a type that is none is its only member."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        yield from (inner for one in typing.get_args(kind) for inner in _members(one))
    else:
        yield kind


def _inside(kind: Any) -> Any:
    """What an array or a mapping of this type holds; None where it is neither."""
    return next((arguments[-1] for one in _members(kind) if (arguments := _arguments(one))), None)


def _arguments(kind: Any) -> tuple[Any, ...]:
    return tuple(one for one in typing.get_args(kind) if one is not Ellipsis)
