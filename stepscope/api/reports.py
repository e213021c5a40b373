"""Reports: what a command with `--json` finds, as an object and as frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, is_dataclass
from html import escape
from os import fspath
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args

import pandas as pd

from stepscope.api.inputs import Path, path_names, read_entering, read_records
from stepscope.api.tables import column_types, table
from stepscope.core.documents.comparison import Comparison, Difference
from stepscope.core.documents.goodput import GoodputReport
from stepscope.core.documents.hang import HangReport
from stepscope.core.documents.health import HealthList, health_list_document
from stepscope.core.documents.memory import MemoryReport
from stepscope.core.documents.nccl import NcclReport, nccl_document
from stepscope.core.documents.node import NodeView, StatusReport
from stepscope.core.documents.stored_runs import RunList
from stepscope.core.errors import DataError
from stepscope.core.text.numbers import unknown_name

if TYPE_CHECKING:
    from stepscope.workflow.nodes.agent_client import AgentClient
    from stepscope.workflow.trace_info import TraceInfo

Document = TypeVar("Document")
_SHOWN_ROWS = 60


class Report(Generic[Document]):
    """A report.

    Attributes:
        document: as a typed object; its fields are the keys of `--json`.
    """

    def __init__(self, document: Document, main: str, encode: Callable[[Any], dict[str, Any]] | None = None) -> None:
        self.document = document
        self._main = main
        self._encode = document_of if encode is None else encode

    def __repr__(self) -> str:
        return f"<{type(self.document).__name__}: {self._headline() or ', '.join(self.tables)}>"

    def _repr_html_(self) -> str:
        """In a notebook: the summary and the main frame."""
        return f"<p><b>{escape(self._headline())}</b></p>{self.table().to_html(max_rows=_SHOWN_ROWS)}"

    def to_dict(self) -> dict[str, Any]:
        """The document of `--json`."""
        return self._encode(self.document)

    @property
    def tables(self) -> list[str]:
        """Names of the frames, the main one first."""
        names = [name for name, of in column_types(type(self.document)).items() if _row_type(of) is not None]
        names += ["differences"] if isinstance(self.document, Comparison) else []
        return sorted(names, key=lambda name: name != self._main)

    def table(self, name: str | None = None) -> pd.DataFrame:
        """A frame; the main one without a name. Its columns have the names and values of `--json`.

        Raises:
            UsageError: the report has no such frame.
        """
        name = self._main if name is None else name
        if name not in self.tables:
            raise unknown_name("table", name, self.tables)
        if isinstance(self.document, Comparison) and name == "differences":
            return _differences(self.document)
        row_type = _row_type(column_types(type(self.document))[name])
        assert row_type is not None
        return table(row_type, getattr(self.document, name))

    def _headline(self) -> str:
        verdict = getattr(self.document, "verdict", self.document)
        return str(getattr(verdict, "summary", ""))


def _row_type(of: Any) -> type | None:
    """The dataclass that a list or tuple holds; None of anything else."""
    arguments = [one for one in get_args(of) if one is not Ellipsis]
    return arguments[0] if len(arguments) == 1 and is_dataclass(arguments[0]) else None  # type: ignore[return-value]


def document_of(report: Any) -> dict[str, Any]:
    """The JSON document of a typed report."""
    import json

    from stepscope.store.documents import encode_document

    document: dict[str, Any] = json.loads(encode_document(report))
    return document


def compare(a: Path, b: Path, *, fail_on: str | Sequence[str] = ()) -> Report[Comparison]:
    """Compare two runs, or sets of runs separated by commas, as `stepscope compare`; `a` is the reference.

    The main frame has every figure of both sides; `.document.gates` the result of each condition in `fail_on`.

    Raises:
        UsageError: a gate is malformed.
        DataError: no run of a side can be used.
    """
    from stepscope.workflow.compare import compare as compare_paths

    gates = [fail_on] if isinstance(fail_on, str) else fail_on
    return Report(compare_paths(fspath(a), fspath(b), fail_on=gates), "differences")


def hang(*paths: Path) -> Report[HangReport]:
    """Explain a hang from flight-recorder dumps, as `stepscope hang`.

    Raises:
        DataError: there is no dump that can be read.
    """
    from stepscope.workflow.run_records import read_hang

    return Report(read_records(paths, read_hang), "groups")


def nccl(*paths: Path) -> Report[NcclReport]:
    """Explain how a job's GPUs communicate from NCCL's logs, as `stepscope nccl`.

    Raises:
        DataError: NCCL wrote none of the files.
    """
    from stepscope.workflow.nccl import read_nccl

    return Report(read_records(paths, read_nccl), "transports", nccl_document)


def memory(path: Path) -> Report[MemoryReport]:
    """Explain what held a GPU's memory from one memory snapshot, as `stepscope memory`.

    Raises:
        DataError: it is not a snapshot, or a folder of several.
    """
    from stepscope.workflow.memory import read_memory

    reports = read_records([path], read_memory)
    if len(reports) > 1:
        names = ", ".join(name for name, _ in reports)
        raise DataError(f"holds several snapshots: {names}", where=fspath(path), what_next="give one of them")
    return Report(reports[0][1], "at_peak")


def goodput(*paths: Path) -> Report[GoodputReport]:
    """Goodput of the jobs in run directories, or in folders of them, as `stepscope goodput`.

    Raises:
        DataError: there is no run.
    """
    from stepscope.workflow.goodput import read_goodput

    return Report(read_records(paths, read_goodput), "jobs")


def trace_info(*paths: Path) -> Report[TraceInfo]:
    """Contents of trace files, as `stepscope trace info`.

    Raises:
        DataError: no file can be read.
    """
    from stepscope.workflow.trace_info import read_trace_info

    return Report(read_entering(path_names(paths), read_trace_info), "files")


def runs(where: Path = "runs") -> Report[RunList]:
    """Stored runs in a folder or below a URL with their sizes, as `stepscope runs list`.

    Raises:
        DataError: it cannot be read.
        UnreachableError: the URL's store does not answer.
    """
    from stepscope.workflow.stored_runs.prune import list_runs

    return Report(list_runs(fspath(where)), "runs")


def status(*agents: str) -> Report[StatusReport]:
    """What is wrong with the GPUs of machines, as `stepscope status`; without an address of this machine.

    An agent that does not answer is a finding.
    """
    from stepscope.workflow.nodes.answers import answers_of
    from stepscope.workflow.nodes.status import status_of

    return Report(status_of(answers_of(_clients(agents), view=NodeView.STATUS)), "findings", asdict)


def health(*agents: str) -> Report[HealthList]:
    """Health events of machines, open and ended, as `stepscope health list`; without an address of this machine.

    Raises:
        UnreachableError: no agent answers.
    """
    from stepscope.workflow.nodes.health import health_of

    return Report(health_of(_clients(agents)), "nodes", health_list_document)


def _clients(agents: Sequence[str]) -> list[AgentClient]:
    from stepscope.workflow.nodes.agent_client import DEFAULT_URL, agent_client

    return [agent_client(address) for address in agents or (DEFAULT_URL,)]


def _differences(comparison: Comparison) -> pd.DataFrame:
    """Every figure of a comparison: part of the document, name in it, and the difference."""
    rows: list[tuple[str, str, Difference]] = []
    for field in fields(comparison):
        value = getattr(comparison, field.name)
        if isinstance(value, Difference):
            rows.append((field.name, "", value))
        elif field.name in ("headings", "causes", "recorded", "kernels", "calls"):
            rows += [(field.name, _name_of(row), row.ms) for row in value]
    frame = table(Difference, [difference for _, _, difference in rows])
    index = [[part for part, _, _ in rows], [name for _, name, _ in rows]]
    return frame.set_index(pd.MultiIndex.from_arrays(index, names=["part", "name"]))


def _name_of(row: Any) -> str:
    return str(next(getattr(row, name) for name in ("heading", "cause", "name") if hasattr(row, name)))
