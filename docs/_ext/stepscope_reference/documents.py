"""JSON documents: path, type and meaning of each value."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from stepscope.agent.check import AgentCheck
from stepscope.core.documents.analysis import Analysis
from stepscope.core.documents.comparison import Comparison
from stepscope.core.documents.hang import HangReport, LiveHang, RankState
from stepscope.core.documents.machine_checks import Doctor, Preflight
from stepscope.core.documents.memory import MemoryReport
from stepscope.core.documents.nccl import NcclReport
from stepscope.core.documents.node import Node, StatusReport
from stepscope.core.documents.run_directory import RunManifest
from stepscope.core.documents.steps import StepReport
from stepscope.core.documents.what_if import WhatIfReport
from stepscope.core.protocol.captures import CaptureReport
from stepscope.core.protocol.messages import Message
from stepscope.reference_workloads.bench.result import Bench
from stepscope.reference_workloads.suite.report import SuiteReport
from stepscope.reference_workloads.suite.results import RunResult
from stepscope.workflow.trace_info import TraceInfo
from stepscope_reference.fields import field_texts
from stepscope_reference.markdown import code, table, text
from stepscope_reference.snapshots import snapshot

_TYPES: Mapping[str, type] = {
    "stepscope.agent-check/1": AgentCheck,
    "stepscope.analysis/1": Analysis,
    "stepscope.bench/1": Bench,
    "stepscope.compare/1": Comparison,
    "stepscope.doctor/1": Doctor,
    "stepscope.hang/1": HangReport,
    "stepscope.live-hang/1": LiveHang,
    "stepscope.memory/1": MemoryReport,
    "stepscope.nccl/1": NcclReport,
    "stepscope.node-capture/1": CaptureReport,
    "stepscope.node/1": Node,
    "stepscope.preflight/1": Preflight,
    "stepscope.rank-state/1": RankState,
    "stepscope.run/1": RunManifest,
    "stepscope.status/1": StatusReport,
    "stepscope.steps/1": StepReport,
    "stepscope.suite-run/1": RunResult,
    "stepscope.suite/1": SuiteReport,
    "stepscope.trace_info/1": TraceInfo,
    "stepscope.whatif/1": WhatIfReport,
    **{f"socket message: {kind.type}": kind for kind in typing.get_args(Message)},
}
"""Document -> the type it is written from; its docstrings say what the values mean."""

_STEP = re.compile(r"[^.\[\]]+|\[\]")


def documents() -> str:
    """All documents; those with a schema first."""
    contract = snapshot("documents") | snapshot("training_documents")
    names = sorted(contract, key=lambda name: (not name.startswith("stepscope."), name))
    return "\n".join(f"## {text(name)}\n\n{_described(contract[name], _TYPES.get(name))}" for name in names)


def _described(paths: Mapping[str, str], kind: type | None) -> str:
    rows: dict[str, tuple[str, str, str]] = {}
    for path, json_type in paths.items():
        *around, (shown, meaning) = _fields_on(path, kind) if kind else [(path, "")]
        for outer, outer_meaning in around:
            if outer_meaning:
                outer_type = "array" if shown.startswith(f"{outer}[]") else "object"
                rows.setdefault(outer, (code(outer), outer_type, text(outer_meaning)))
        rows.setdefault(shown, (code(shown), text(json_type), text(meaning)))
    return table(("value", "type", "meaning"), rows.values())


def _fields_on(path: str, kind: Any) -> list[tuple[str, str]]:
    """Fields on the way to a value: the path of each, with `*` for keys that are data, and its meaning."""
    fields: list[tuple[str, str]] = []
    shown = ""
    for step in _STEP.findall(path):
        owner = next((one for one in _members(kind) if isinstance(one, type) and dataclasses.is_dataclass(one)), None)
        if step == "[]":
            shown, kind = f"{shown}[]", _inside(kind)
            fields[-1] = (shown, fields[-1][1]) if path.endswith(shown) else fields[-1]
        elif owner is None:
            key = "*" if _inside(kind) is not None else step
            shown, kind = f"{shown}.{key}", _inside(kind)
            fields[-1] = (shown, fields[-1][1])
        else:
            shown = f"{shown}.{step}" if shown else step
            fields.append((shown, field_texts(owner).get(step, "")))
            kind = typing.get_type_hints(owner).get(step)
    return fields


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
