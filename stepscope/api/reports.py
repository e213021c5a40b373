"""Reports: what a command with `--json` finds, as an object and as frames."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from html import escape
from os import fspath
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args

import msgspec
import pandas as pd

from stepscope.api.inputs import Path, path_names, read_entering, read_records
from stepscope.api.tables import column_types, table
from stepscope.core.documents.comparison import Comparison, Difference
from stepscope.core.documents.goodput import GoodputReport
from stepscope.core.documents.hang import HangReport
from stepscope.core.documents.health import HealthList, health_list_document
from stepscope.core.documents.machine_checks import CheckGroup, Doctor, Preflight
from stepscope.core.documents.memory import MemoryComparison, MemoryReport
from stepscope.core.documents.nccl import NcclReport, nccl_document
from stepscope.core.documents.node import NodeView, StatusReport
from stepscope.core.documents.stored_runs import RunList
from stepscope.core.errors import DataError
from stepscope.core.protocol.messages import DEFAULT_SOCKET, SOCKET_VARIABLE
from stepscope.core.text.numbers import unknown_name

if TYPE_CHECKING:
    from stepscope.workflow.nodes.agent_client import AgentClient
    from stepscope.workflow.nodes.top import TopReport
    from stepscope.workflow.trace_info import TraceInfo

Document = TypeVar("Document")
_SHOWN_ROWS = 60


class Report(Generic[Document]):
    """A report.

    Attributes:
        document: as a typed object; its fields are the keys of `--json`.
    """

    def __init__(
        self,
        document: Document,
        main: str,
        encode: Callable[[Any], dict[str, Any]] | None = None,
        made: Mapping[str, Callable[[Any], pd.DataFrame]] | None = None,
    ) -> None:
        """Wrap a document.

        Args:
            main: name of the frame that is shown.
            encode: None: `document_of`.
            made: frames that are not a list of the document, from it.
        """
        self.document = document
        self._main = main
        self._encode = document_of if encode is None else encode
        self._made = made or {}

    def __repr__(self) -> str:
        return f"<{type(self.document).__name__}: {self._headline() or ', '.join(self.tables)}>"

    def _repr_html_(self) -> str:
        """In a notebook: the summary and the main frame."""
        return f"<p><b>{escape(self._headline())}</b></p>{self.table().to_html(max_rows=_SHOWN_ROWS)}"

    def to_dict(self) -> dict[str, Any]:
        """The document of `--json`."""
        document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self._encode(self.document)))
        return document

    @property
    def tables(self) -> list[str]:
        """Names of the frames, the main one first."""
        return sorted({**row_types(type(self.document)), **self._made}, key=lambda name: name != self._main)

    def table(self, name: str | None = None) -> pd.DataFrame:
        """A frame; the main one without a name. Its columns have the names and values of `--json`.

        Raises:
            UsageError: the report has no such frame.
        """
        name = self._main if name is None else name
        if name not in self.tables:
            raise unknown_name("table", name, self.tables)
        if name in self._made:
            return self._made[name](self.document)
        return table(row_types(type(self.document))[name], getattr(self.document, name))

    def _headline(self) -> str:
        verdict = getattr(self.document, "verdict", self.document)
        return str(getattr(verdict, "summary", ""))


def row_types(document: type) -> dict[str, type]:
    """Lists of objects in a document, which are frames: the type of their rows by name."""
    found = {name: _row_type(of) for name, of in column_types(document).items()}
    return {name: row for name, row in found.items() if row is not None}


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
    return Report(compare_paths(fspath(a), fspath(b), fail_on=gates), "differences", made=MADE["compare"])


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


def compare_memory(a: Path, b: Path) -> Report[MemoryComparison]:
    """Compare two memory snapshots, as `stepscope memory --compare`: two times of a process, or two ranks.

    Raises:
        DataError: a path is not one snapshot.
    """
    from stepscope.workflow.memory import read_memory_comparison

    return Report(read_records([a, b], lambda paths: read_memory_comparison(*paths)), "holders")


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


def top(*agents: str, job: str = "", sick: bool = False) -> Report[TopReport]:
    """GPUs of machines at this moment, as `stepscope top --once`; without an address of this machine.

    Args:
        job: name or id: only the GPUs of this job.
        sick: only GPUs and agents with a problem.

    Raises:
        UnreachableError: no agent answers.
    """
    from stepscope.workflow.nodes.answers import answers_of, check_answers
    from stepscope.workflow.nodes.top import top_document, top_of

    answers = answers_of(_clients(agents))
    check_answers(answers)
    return Report(top_of(answers, job=job, sick=sick), "gpus", top_document, MADE["top"])


def doctor(agent: str = "127.0.0.1:9455") -> Report[Doctor]:
    """What stands in the way of measuring on this machine, as `stepscope doctor`; changes nothing, takes some seconds.

    The agent's settings file is not read.

    Args:
        agent: host and port of this machine's agent.
    """
    from stepscope.workflow.doctor import examine

    socket = os.environ.get(SOCKET_VARIABLE, DEFAULT_SOCKET)
    return Report(examine(agent_address=agent, agent_socket=socket), "lines", asdict)


def preflight(
    *, quick: bool = False, checks: Sequence[CheckGroup | str] = (), gpus: Sequence[str] = (), device: str = "cuda"
) -> Report[Preflight]:
    """Measure this node's GPUs, as `stepscope preflight`; keeps them busy for 20 s to minutes.

    Args:
        quick: the short form.
        checks: groups of checks; none: all.
        gpus: indices or UUIDs; none: all.
        device: "cuda", or "cpu" to try the code without GPUs.

    Raises:
        UsageError: there is no such group, or torch is not installed.
        DataError: there is no GPU to measure.
        UnreachableError: the driver does not answer.
    """
    from stepscope.workflow.preflight.phases import run_preflight
    from stepscope.workflow.preflight.workers import PreflightRequest, parse_check_groups, parse_gpu_names

    if device not in ("cuda", "cpu"):
        raise unknown_name("device", str(device), ["cuda", "cpu"])
    groups = parse_check_groups(",".join(map(str, checks))) if checks else frozenset(CheckGroup)
    names = parse_gpu_names(",".join(map(str, gpus))) if gpus else None
    request = PreflightRequest(device_type=device, quick=quick, groups=groups, gpus=names)
    return Report(run_preflight(request), "checks", asdict)


def _clients(agents: Sequence[str]) -> list[AgentClient]:
    from stepscope.workflow.nodes.agent_client import DEFAULT_URL, agent_client

    return [agent_client(address) for address in agents or (DEFAULT_URL,)]


def _differences(comparison: Comparison) -> pd.DataFrame:
    """Every figure of both sides, ms unless its part says otherwise: `a`, `b`, `change` (b - a) and `relative` to a.

    Indexed by `part` of the document and `name` in it; `interval.low` and `interval.high` are the change's 95%
    interval, and `state` says whether it is more than noise.
    """
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


def _nodes(report: TopReport) -> pd.DataFrame:
    """Machines: `agent` (address), `host`, `version` of the agent, `time` (UTC) by the machine, and `error`.

    `error` says why the agent does not answer; the rest is then unknown.
    """
    nodes = [(one, one.node) for one in report.nodes]
    times = pd.Series([None if node is None else node.time_ns for _, node in nodes], dtype="Int64")
    return pd.DataFrame(
        {
            "agent": pd.Series([one.agent for one, _ in nodes], dtype="str"),
            "host": pd.Series([None if node is None else node.host for _, node in nodes], dtype="str"),
            "version": pd.Series([None if node is None else node.version for _, node in nodes], dtype="str"),
            "time": pd.to_datetime(times, unit="ns", utc=True),
            "error": pd.Series([one.error for one, _ in nodes], dtype="str"),
        }
    )


def _gpus(report: TopReport) -> pd.DataFrame:
    """GPUs and MIG instances of machines that answer: `agent`, `host`, and the GPU's entry of `--json`, flat.

    `labels.gpu` and `labels.uuid` say which it is, `values.power_watts` and others its values in the unit of their
    name, `jobs` who has it, `spent.cause` what it spent the last minute on, `health.state` whether it is fit.
    """
    from stepscope.workflow.nodes.top import top_document

    rows = [
        {"agent": one["agent"], "host": one["node"]["host"], **device}
        for one in top_document(report)["nodes"]
        if one["node"] is not None
        for device in one["node"]["devices"]
    ]
    return pd.json_normalize(rows) if rows else pd.DataFrame({"agent": [], "host": []}, dtype="str")


MADE: dict[str, dict[str, Callable[[Any], pd.DataFrame]]] = {
    "compare": {"differences": _differences},
    "top": {"gpus": _gpus, "nodes": _nodes},
}
"""Call -> its frames that are not a list of its document."""
