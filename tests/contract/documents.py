"""JSON documents: what `--json` prints, a run keeps, the agent and the dashboard answer, and socket messages hold."""

from __future__ import annotations

import gc
import io
import json
import sys
import tempfile
import threading
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, replace
from email.message import Message as Headers
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from xml.etree import ElementTree as Xml

import msgspec

from stepscope.agent.captures.capture import CaptureRefusedError
from stepscope.agent.config.configuration import configuration_document, load_configuration
from stepscope.agent.sources import AgentCheck
from stepscope.agent.verdicts.changes import VerdictChange, change_document
from stepscope.agent.web.endpoints import api_routes, capture_routes
from stepscope.agent.web.routes import Request, Route
from stepscope.cli import root
from stepscope.cli.nodes import _capture_document as capture_document
from stepscope.cli.workload.suite import _print_cases as print_cases
from stepscope.core.documents.analysis import Analysis, CaptureAnalyses
from stepscope.core.documents.comparison import Comparison
from stepscope.core.documents.cost import CostReport
from stepscope.core.documents.goodput import GoodputReport
from stepscope.core.documents.hang import RANK_STATE_SCHEMA, STUCK_SCHEMA, HangReport, LiveHang, RankState, StuckReport
from stepscope.core.documents.health import (
    AgentHealth,
    HealthList,
    NodeHealth,
    health_document,
    health_list_document,
)
from stepscope.core.documents.history import HistoryReport, JobsReport
from stepscope.core.documents.machine_checks import DOCTOR_SCHEMA, PREFLIGHT_SCHEMA, Doctor, Preflight
from stepscope.core.documents.memory import MemoryComparison, MemoryReport
from stepscope.core.documents.nccl import NcclReport, nccl_document
from stepscope.core.documents.node import Node, StatusReport
from stepscope.core.documents.run_directory import RankFile, RankPlace, RankTimeline, RunManifest, StepReport
from stepscope.core.documents.stored_runs import PruneReport, RunList, UploadReport
from stepscope.core.documents.upload import NodeUpload
from stepscope.core.documents.what_if import WhatIfReport
from stepscope.core.errors import UsageError
from stepscope.core.protocol.captures import CaptureReport, order_document
from stepscope.core.protocol.messages import Message
from stepscope.core.protocol.messages import encode_message as encode_message
from stepscope.core.protocol.verdicts import LiveVerdict, live_verdict_document
from stepscope.core.vocabulary import Notice
from stepscope.dashboard.api import RUNS_SCHEMA, TILE_SCHEMA, _RunsDocument, _TileDocument, refusal
from stepscope.dashboard.cluster_map import GPU_SCHEMA, MAP_SCHEMA, GpuDocument, MapDocument
from stepscope.reference_workloads.bench.result import BENCH_SCHEMA, Bench
from stepscope.reference_workloads.environment import describe_environment
from stepscope.reference_workloads.plan import ParallelPlan, find_preset
from stepscope.reference_workloads.recipe import Recipe
from stepscope.reference_workloads.suite.report import SuiteReport, encode_suite_report
from stepscope.reference_workloads.suite.results import MARK_FILE, SuiteFolder, SuiteRunResult
from stepscope.store.documents import (
    encode_document,
    encode_timelines,
)
from stepscope.training.hangs.stuck_report import _completed
from stepscope.training.memory.owners import PARAMETERS, MemoryOwners
from stepscope.training.memory.snapshots import MemoryOptions, OutOfMemoryReporter, PeriodicMemorySnapshots
from stepscope.training.run.context import OpenStep
from stepscope.training.run.run_files import write_manifest
from stepscope.training.steps.gradients import CLIPPED_NORM, LOCAL_NORM
from stepscope.training.steps.gradients import _named as loss_scale_figures
from stepscope.training.steps.process_metrics import GcPauses, MemoryFigures
from stepscope.training.steps.telemetry import StepRecord
from stepscope.workflow.junit import checks_as_junit, gates_as_junit
from stepscope.workflow.nodes.answers import NodeAnswer
from stepscope.workflow.nodes.capture import CapturedJob
from stepscope.workflow.nodes.top import TopReport, top_document
from stepscope.workflow.trace_info import TraceInfo
from stepscope.workflow.views.removed_traces import RemovedTraces
from stepscope.workflow.views.view_format import ViewHeader
from tests.contract.samples import ANY_KEY, NUM_VARIANTS, keys_and_kinds, sample, samples

_SETTLED_NS = 10**18
_FRAME = {"name": "forward", "filename": "train.py", "line": 1}


def documents() -> dict[str, dict[str, str]]:
    """Schema, or what the document is where it has none -> path of each value -> what it is."""
    by_name = {
        **{_schema_of(made[0]): made for made in _with_schema()},
        "ranks/rank*.json": [asdict(place) for place in samples(RankPlace)],
        "steps/rank*.jsonl: one line": list(_step_lines()),
        "GET /sd": [_answer(route, "/sd") for route in _node_routes(samples(Node)[0]) if route.path == "/sd"],
        "POST /api/v1/captures: body": _orders(),
        "dashboard: refused request": [json.loads(bytes(refusal(400, UsageError("what", what_next="next")).body))],
        **{f"socket message: {name}": made for name, made in _messages().items()},
    }
    made = {name: keys_and_kinds(made) for name, made in by_name.items()}
    return made | {
        "compare --junit": _names_in_xml(map(gates_as_junit, samples(Comparison))),
        "preflight --junit": _names_in_xml(map(checks_as_junit, samples(Preflight, schema=PREFLIGHT_SCHEMA))),
    }


def _names_in_xml(documents: Iterable[bytes]) -> dict[str, str]:
    names: dict[str, str] = {}

    def walk(element: Xml.Element, path: str) -> None:
        names[path] = "element"
        names.update({f"{path}@{attribute}": "attribute" for attribute in element.attrib})
        for inner in element:
            walk(inner, f"{path}/{inner.tag}")

    for document in documents:
        root_element = Xml.fromstring(document)
        walk(root_element, root_element.tag)
    return names


def _schema_of(document: Any) -> str:
    schema: str = document["schema"]
    return schema


def _with_schema() -> Iterator[list[Any]]:
    """Documents that tell their schema; each several times, with other members of each union."""
    yield _encoded(Analysis, encode_document)
    yield _encoded(CaptureAnalyses, encode_document)
    yield [_through_json(live_verdict_document(verdict)) for verdict in samples(LiveVerdict)]
    yield [_through_json(change_document(change, "host")) for change in _verdict_changes()]
    yield _encoded(WhatIfReport, encode_document)
    yield _encoded(Comparison, encode_document)
    yield _encoded(NcclReport, lambda report: encode_document(nccl_document(report)))
    for kind in (
        CostReport,
        GoodputReport,
        HistoryReport,
        JobsReport,
        HangReport,
        MemoryReport,
        MemoryComparison,
        NodeUpload,
        PruneReport,
        RunList,
        StepReport,
        TraceInfo,
        UploadReport,
    ):
        yield _encoded(kind, encode_document)
    yield _encoded(_RunsDocument, encode_document, schema=RUNS_SCHEMA)
    yield _encoded(_TileDocument, encode_document, schema=TILE_SCHEMA)
    yield _encoded(MapDocument, encode_document, schema=MAP_SCHEMA)
    yield _encoded(GpuDocument, encode_document, schema=GPU_SCHEMA)
    for made in (samples(LiveHang), samples(StatusReport), samples(AgentCheck)):
        yield [_through_json(asdict(one)) for one in made]
    for made in (samples(Doctor, schema=DOCTOR_SCHEMA), samples(Preflight, schema=PREFLIGHT_SCHEMA)):
        yield [_through_json(asdict(one)) for one in made]
    yield [{"schema": RANK_STATE_SCHEMA} | asdict(one) for one in samples(RankState)]
    yield [json.loads(encode_timelines(samples(RankTimeline)))]
    yield _encoded(ViewHeader, msgspec.json.encode)
    yield _encoded(RemovedTraces, msgspec.json.encode)
    yield _manifests()
    configuration = _through_json(configuration_document(load_configuration()))
    yield [configuration | {"keys": {ANY_KEY: one}} for one in configuration["keys"].values()]
    yield [_with_any_label(_answer(_node_routes(one)[0], "/api/v1/node")) for one in samples(Node)]
    yield from _health()
    yield from _captures()
    top = _through_json(top_document(TopReport(tuple(samples(NodeAnswer)), tuple(samples(Notice)))))
    yield [top | {"nodes": [one | {"node": one["node"] and _with_any_label(one["node"])} for one in top["nodes"]]}]
    yield from _of_training()
    yield from _of_workloads()


def _encoded(kind: Any, encode_message: Callable[[Any], bytes], **values: Any) -> list[Any]:
    return [json.loads(encode_message(one)) for one in samples(kind, **values)]


def _through_json(document: Any) -> Any:
    return json.loads(json.dumps(document))


def _printed(print_document: Callable[[], object]) -> list[Any]:
    output = io.BytesIO()
    with io.TextIOWrapper(output) as text, redirect_stdout(text):  # takes bytes as well, as a real stdout does
        print_document()
        text.flush()
        return [json.loads(output.getvalue())]


def printed_by(*arguments: str) -> list[Any]:
    return _printed(lambda: root.main([*arguments, "--json"], standalone_mode=False))


def _manifests() -> list[Any]:
    made = []
    with tempfile.TemporaryDirectory() as folder:
        for manifest in samples(RunManifest):
            write_manifest(Path(folder), manifest)
            made.append(json.loads(Path(folder, "run.json").read_bytes()))
    return made


def _node_routes(node: Node) -> tuple[Route, ...]:
    return api_routes(lambda _: node, scheme="http", host="node7")


def _answer(route: Route, path: str, body: bytes = b"") -> Any:
    headers = Headers()
    headers["Host"], headers["Content-Type"] = "node7:9500", "application/json"
    return json.loads(route.answer(Request(route.method, path, headers, body, {"id": "c-1"})).body)


def _with_any_label(node: Any) -> Any:
    """A node with one label and one share for any: which there are depends on the device."""
    classes = [one["spent"] for one in node["devices"]] + [one["told"] for one in node["job_classes"]]
    for one in (*node["devices"], *node["events"]):
        one["labels"] = {ANY_KEY: next(iter(one["labels"].values()))}
    for one in filter(None, classes):
        one["shares"] = {ANY_KEY: next(iter(one["shares"].values()), 0.5)}
    return node


def _health() -> Iterator[list[Any]]:
    """Of one machine, and of several."""
    healths = samples(NodeHealth)
    yield [_through_json(health_document(_with_any_labels(one))) for one in healths]
    nodes = tuple(AgentHealth("a", "", _with_any_labels(one)) for one in healths)
    yield [_through_json(health_list_document(HealthList((*nodes, AgentHealth("a", "e", None)), (sample(Notice),))))]


def _with_any_labels(health: NodeHealth) -> NodeHealth:
    gpus = tuple(replace(one, labels={ANY_KEY: "1"}) for one in health.gpus)
    return replace(health, gpus=gpus, events=tuple(replace(one, labels=((ANY_KEY, "1"),)) for one in health.events))


def _captures() -> Iterator[list[Any]]:
    """Of one capture at one agent, of all there, of a refused one, and of one at all agents."""
    reports = samples(CaptureReport)
    path = "/api/v1/captures"

    def refuse(*_: object, **__: object) -> CaptureReport:
        raise CaptureRefusedError(HTTPStatus.NOT_FOUND, "there is no such capture")

    report = reports[0]
    coordinator: Any = SimpleNamespace(
        request=lambda *_, **__: report, cancel=lambda *_, **__: report, report=refuse, reports=lambda: reports
    )
    create, show_all, show, cancel = capture_routes(coordinator)
    order = json.dumps(order_document(report.order)).encode()
    yield [_answer(create, path, order), _answer(cancel, f"{path}/c-1"), *_answer(show_all, path)["captures"]]
    yield [_answer(show_all, path)]
    yield [_answer(show, f"{path}/c-1")]
    jobs = [*samples(CapturedJob), sample(CapturedJob, reports={})]
    yield [_through_json(capture_document(one)) for one in jobs]


def _verdict_changes() -> list[VerdictChange]:
    return [*samples(VerdictChange), *samples(VerdictChange, before="")]


def _orders() -> list[Any]:
    """What a POST of a capture takes: the fields of the order that its own report tells."""
    return [_through_json(order_document(report.order)) for report in samples(CaptureReport)]


def _messages() -> dict[str, list[Any]]:
    kinds = typing.get_args(Message)
    return {kind.type: [json.loads(encode_message(one)) for one in samples(kind)] for kind in kinds}


def _step_lines() -> Iterator[Any]:
    """Lines of steps with all figures that are measured without being asked for, and one of the training code's own."""
    for number, record in enumerate(
        samples(
            StepRecord,
            deferred=[],
            device=None,
            data_waits=[],
            phase_intervals={},
            attempt=2,
            figures={ANY_KEY: float("nan")},
        )
    ):
        if number:
            record.figures = {ANY_KEY: 0.5}
            record.export_ns = record.prepare_ns = record.num_compilations = record.compile_ns = 0
            record.device_ns = record.exposed_data_wait_ns = record.run_delay_ns = None
            record.exposed_phases = {}
            record.anomalies, record.attempt = [], 1
        else:
            record.figures |= {
                CLIPPED_NORM: 1.0,
                LOCAL_NORM: 1.0,
                **loss_scale_figures({"loss_scale": 1.0, "found 0": 0}),
            }
            record.end_ns = _SETTLED_NS
            with _fake_torch():
                pauses = GcPauses()
                gc.collect()
                for listener in (pauses, MemoryFigures(), _memory_snapshots(Path("/nowhere"))):
                    listener.steps_ended([record])
                pauses.close()
        yield json.loads(record.as_line())


def _of_training() -> Iterator[list[Any]]:
    """What a training process leaves of a stuck step, of memory that ran out, and of memory snapshots."""
    collective = {"name": "nccl:all_reduce", "group": "0", "sequence": 1, "since_ns": 1}
    reports = samples(StuckReport, ended_ns=None)
    stuck = [
        {"schema": STUCK_SCHEMA}
        | asdict(_completed(one, _context(Path("/nowhere")), threading.get_ident(), collective if number else None))
        for number, one in enumerate(reports)
    ]
    yield _through_json([*stuck, stuck[0] | {"ended_ns": 1}])
    record = StepRecord(1, 0, _SETTLED_NS)
    with tempfile.TemporaryDirectory() as folder:
        report_path = Path(folder, RankFile.OOM_REPORT.path(0))
        context = _context(Path(folder))
        context.open_step = lambda: OpenStep(1, 0.0, 1)
        evidence = OutOfMemoryReporter(context, MemoryOptions(), _owners())
        with _fake_torch():
            snapshots = _memory_snapshots(Path(folder))
            snapshots.steps_ended([record])
            snapshots.run_task()
            yield [json.loads(Path(folder, RankFile.MEMORY_OWNERS.path(0, 1)).read_bytes())]
            MemoryFigures().steps_ended([record])
            evidence.steps_ended([record])
            evidence.ran_out(0, 1, 1, 1)
            evidence.close()
            report = json.loads(report_path.read_bytes())
        with _fake_torch(knows_blocks=False):
            evidence = OutOfMemoryReporter(_context(Path(folder)), MemoryOptions(), _owners())
            evidence.left_by(type("OutOfMemoryError", (RuntimeError,), {})("out of memory"))
        yield [report, json.loads(report_path.read_bytes())]


def _memory_snapshots(folder: Path) -> PeriodicMemorySnapshots:
    return PeriodicMemorySnapshots(_context(folder), 1, _owners())


def _owners() -> Any:
    """As if the only block in use were a parameter's."""
    storages = MemoryOwners().storages
    return SimpleNamespace(storages=lambda: storages() | {PARAMETERS: [(0, 512)]})


def _context(folder: Path) -> Any:
    """What is known of a run in `folder`."""
    return SimpleNamespace(
        run_directory=folder,
        identity=SimpleNamespace(rank=0, host="node7"),
        open_spans=lambda: ["prof.data"],
        open_step=lambda: None,
    )


@contextmanager
def _fake_torch(*, knows_blocks: bool = True) -> Iterator[None]:
    """As if this process used a GPU, also where no torch is installed."""
    counts = {"current": 1, "peak": 1}
    stats = {name: {"all": counts} for name in ("allocated_bytes", "reserved_bytes")}
    block = {"address": 0, "size": 512, "requested_size": 512, "state": "active_allocated"}
    memory = {"segments": [{"device": 0, "address": 0, "total_size": 512, "blocks": [block]}], "device_traces": [[]]}
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: 0,
        device_count=lambda: 1,
        memory_stats_as_nested_dict=lambda _: stats | {"num_alloc_retries": 0, "num_ooms": 0},
        memory=SimpleNamespace(_snapshot=lambda: memory) if knows_blocks else None,
    )
    optim = SimpleNamespace(Optimizer=type("Optimizer", (), {}))
    fake: Any = SimpleNamespace(cuda=cuda, optim=optim, _C=SimpleNamespace())
    with mock.patch.dict(sys.modules, {"torch": fake}):
        yield


def _of_workloads() -> Iterator[list[Any]]:
    """What the verbs of `stepscope workload` print and keep, but for those that train."""
    recipe = ("--max-gradient-norm", "1", "--bucket-mb", "25", "--checkpoint-every", "10", "--loader-workers", "2")
    layout = ("--pp", "2", "--dp", "2", "--layers", "1,1", "--zero", "1")
    yield [
        *printed_by("workload", "plan", "gpt", *layout, *recipe, "--tokens", "1B", "--price-per-gpu-hour", "2"),
        *printed_by("workload", "plan", "llama"),
        *printed_by("workload", "plan", "llama", "--preset", "node", "--gpu", "T4"),
    ]
    (faults,) = printed_by("workload", "faults")
    for fault in faults["faults"]:
        fault["severity"] = dict.fromkeys(fault["severity"] and [ANY_KEY], 1)
    yield [faults]
    case: Any = SimpleNamespace(name="a", layout="b", control=SimpleNamespace(name="c"))
    yield _printed(lambda: print_cases([case], "tiny", as_json=True))
    yield _encoded(SuiteReport, encode_suite_report)
    yield [msgspec.json.decode(msgspec.json.encode(one)) for one in samples(SuiteRunResult)]
    with tempfile.TemporaryDirectory() as folder:
        suite = SuiteFolder(Path(folder, "suite"))
        with suite.held():
            yield [json.loads((suite.path / MARK_FILE).read_bytes())]
    yield [json.loads(msgspec.json.encode(_bench(variant))) for variant in range(NUM_VARIANTS)]


def _bench(variant: int) -> Bench:
    environment = "stepscope.reference_workloads.environment"
    with mock.patch(f"{environment}._output", return_value=None):  # git and nvidia-smi
        described = describe_environment("cpu")
    unknown_where_not_told = {"cpu": None if variant else "model", "commit": None if variant else "1234"}
    bench: Bench = sample(
        Bench,
        variant,
        schema=BENCH_SCHEMA,
        model=asdict(find_preset("tiny")),
        plan=asdict(ParallelPlan()),
        recipe=asdict(sample(Recipe, variant, activation_checkpointing="none", checkpoint_mode="sync")),
        environment=described | unknown_where_not_told | {"versions": {ANY_KEY: "1"}, "variables": {ANY_KEY: "1"}},
    )
    return bench
