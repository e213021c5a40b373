"""Reports of the Python API: the documents of `--json`, and their lists as frames."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import stepscope
from stepscope import api
from stepscope.cli import root
from stepscope.core.errors import DataError, UnreachableError, UsageError
from tests.collectors.fake_allocator import Allocator
from tests.workflow.nodes.made_nodes import device, node, served

_TESTS = Path(__file__).parents[1]
_RECORDED = _TESTS / "reference_workloads/suite/recorded"


def _json(*arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(CliRunner().invoke(root, [*arguments, "--json"]).stdout)
    return document


def test_stored_runs_and_goodput(tmp_path: Path) -> None:
    for name in ("ddp-straggler", "ddp-slow_loader"):
        shutil.copytree(_RECORDED / name, tmp_path / name)
    listed, document = stepscope.runs(tmp_path), _json("runs", "list", str(tmp_path))
    assert listed.to_dict() == document
    assert listed.table()["name"].tolist() == [run["name"] for run in document["runs"]]
    assert listed.table()["bytes.traces"].tolist() == [run["bytes"]["traces"] for run in document["runs"]]
    lost = stepscope.goodput(tmp_path)
    assert lost.to_dict() == _json("goodput", str(tmp_path))
    assert len(lost.table("jobs")) == 2


def test_contents_of_a_trace() -> None:
    path = str(next((_RECORDED / "ddp-straggler").rglob("rank0.json.gz")))
    info, document = stepscope.trace_info(path), _json("trace", "info", path)
    assert info.to_dict() == document
    assert info.table()["rank"].tolist() == [0]


def test_a_table_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    shutil.copytree(_RECORDED / "ddp-straggler", tmp_path / "a")
    with pytest.raises(UsageError, match="known: runs"):
        stepscope.runs(tmp_path).table("sizes")


@pytest.mark.parametrize("call", [stepscope.hang, stepscope.memory, stepscope.nccl, stepscope.goodput])
def test_what_cannot_be_read_raises_the_commands_line(call: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        call(tmp_path / "none")
    assert "\n" not in str(caught.value)


def test_a_machine_without_an_agent_is_a_finding() -> None:
    report = stepscope.status("http://127.0.0.1:1")
    assert len(report.document.warnings) == 1
    assert "warnings" in report.tables


def test_gpus_of_machines() -> None:
    with served(node(device(0), device(1, jobs=()))) as url:
        report, document = stepscope.top(url), _json("top", "--agent", url)
        assert stepscope.top(url, job="nobody").document.warnings[0].code == "job_unknown"
    assert _without_ages(report.to_dict()) == _without_ages(document)
    gpus = report.table()
    assert gpus["labels.gpu"].tolist() == ["0", "1"]
    assert gpus["values.power_watts"].tolist() == [
        gpu["values"]["power_watts"] for gpu in document["nodes"][0]["node"]["devices"]
    ]
    assert report.table("nodes")["error"].tolist() == [""]
    with pytest.raises(UnreachableError):
        stepscope.top("http://127.0.0.1:1")


def _without_ages(document: Any) -> Any:
    if isinstance(document, list):
        return [_without_ages(one) for one in document]
    if isinstance(document, dict):
        return {key: _without_ages(one) for key, one in document.items() if key not in ("time_ns", "age_seconds")}
    return document


def test_what_stands_in_the_way_here() -> None:
    report = stepscope.doctor("127.0.0.1:1")
    assert report.to_dict()["schema"] == "stepscope.doctor/1"
    assert {"topic", "state", "found", "what_next"} == set(report.table())
    assert set(report.table()["state"]) <= {"ok", "warn", "fail"}


def test_a_preflight_of_unknown_checks_or_devices_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="matmul"):
        stepscope.preflight(checks=["speed"])
    with pytest.raises(UsageError, match="cuda"):
        stepscope.preflight(device="tpu")


def test_two_memory_snapshots(tmp_path: Path) -> None:
    paths = [tmp_path / "a.pickle", tmp_path / "b.pickle"]
    for path, size in zip(paths, (1 << 20, 3 << 20), strict=True):
        allocator = Allocator()
        allocator.segment(0, 64 << 20)
        allocator.alloc(0, size, "forward")
        path.write_bytes(allocator.pickled())
    compared, document = stepscope.compare_memory(*paths), _json("memory", "--compare", *map(str, paths))
    assert compared.to_dict() == document
    assert compared.table().columns[0] == next(iter(document["holders"][0]))


def test_the_types_of_the_package_are_those_of_its_calls() -> None:
    stub = (Path(stepscope.__file__).parent / "__init__.pyi").read_text()
    calls = {name for name in api.__all__ if name[0].islower()}
    assert set(re.findall(r"^from stepscope\.api import (\w+) as \1$", stub, re.MULTILINE)) == calls
    assert calls <= set(stepscope.__all__)


CALLS = {
    "analyze": stepscope.load,
    "compare": stepscope.compare,
    "cost": api.History.cost,
    "doctor": stepscope.doctor,
    "goodput": stepscope.goodput,
    "hang": stepscope.hang,
    "health list": stepscope.health,
    "history jobs": api.History.jobs,
    "history query": api.History.range,
    "memory": stepscope.memory,
    "nccl": stepscope.nccl,
    "preflight": stepscope.preflight,
    "runs list": stepscope.runs,
    "status": stepscope.status,
    "steps": api.Run.steps,
    "top": stepscope.top,
    "trace info": stepscope.trace_info,
    "whatif": api.Run.what_if_report,
}
WITHOUT_CALL = {
    "agent check": "of the agent's settings",
    "agent config show": "of the agent's settings",
    "capture": "acts on a running job",
    "demo": "trains",
    "health ack": "changes an agent's state",
    "health set-healthy": "changes an agent's state",
    "runs prune": "deletes",
    "runs upload": "uploads",
    "workload bench": "trains",
    "workload faults": "a list of the reference workloads",
    "workload plan": "of the reference workloads' layouts",
    "workload run": "trains",
    "workload suite": "trains",
}
"""Commands that print JSON and have no call, and why."""


def test_every_command_that_prints_json_has_its_call_or_a_reason() -> None:
    assert set(_commands_with_json(root, [])) == CALLS.keys() | WITHOUT_CALL.keys()


def _commands_with_json(command: click.Command, path: list[str]) -> Iterator[str]:
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands_with_json(inner, [*path, name])
    elif any("--json" in parameter.opts for parameter in command.params):
        yield " ".join(path)
