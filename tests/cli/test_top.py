"""`stepscope top` and `stepscope status`: answers of agents, and the right exit code."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.core.documents.jobs import Assignment, Job, JobKind
from stepscope.core.documents.node import RunVerdict
from stepscope.core.hardware.devices import Device
from stepscope.core.hardware.health import Action, Health, HealthState, OperatorNote, Severity
from stepscope.core.protocol.verdicts import LiveVerdict
from tests.workflow.nodes.made_nodes import device, event, node, served

_NOBODY = "http://127.0.0.1:9"
_INTERRUPTED = (  # a test run in the background ignores SIGINT, and its children do
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nfrom stepscope.cli import main; main()"
)


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    told = capsys.readouterr()
    code = ended.value.code or 0
    assert isinstance(code, int)
    return code, told.out, told.err


def test_a_row_for_each_gpu_and_each_agent_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    idle = {"use_state": {"held_but_idle": 1.0}}
    failed = Health(HealthState.FAILED, "no spare rows are left", ("x",))
    sick = device(1, jobs=(), by_label=idle, values={}, health=failed, spent=None)
    silent = device(2, is_up=False, reason="timed_out", age_seconds=42.0)
    with served(node(device(0), sick, silent)) as url:
        code, out, _ = _run(capsys, "top", "--once", "--agent", url, "--agent", _NOBODY)
    assert code == 0
    summary, head, *rows = [line for line in out.splitlines() if line.strip() and "───" not in line]
    assert summary.rstrip() == "2 machines, 3 GPUs, 97% busy, 1.3 kW, 1 agent does not answer"
    assert head.split()[:4] == ["host", "GPU", "job", "class"]
    for part in ("n1", "llama alice", "memory-bound", "97%", "–", "50%", "650/700", "64/80", "61", "1,410", "power"):
        assert part in rows[0]
    assert rows[0].rstrip().endswith("healthy")
    assert "held but idle" in rows[1]
    assert "failed: no spare rows are left" in rows[1]
    assert "0 %" not in rows[1]  # unknown is never zero
    assert "does not answer: timed out (42 s old)" in rows[2]
    assert rows[3].split()[0] == "127.0.0.1:9"
    assert "cannot be reached" in rows[3]


def test_a_lost_gpu_says_who_has_acknowledged_it(capsys: pytest.CaptureFixture[str]) -> None:
    known = replace(event(gpu="0", uuid="GPU-0"), acknowledged=OperatorNote("ann", "ticket 7", 3))
    lost = device(0, is_up=False, reason="gone", health=Health(HealthState.FAILED, "it is lost", ("x",)))
    with served(node(lost, events=(known,))) as url:
        _, out, _ = _run(capsys, "top", "--once", "--agent", url)
    assert "does not answer: gone (acknowledged by ann)" in out


def test_an_acknowledged_failure_is_a_line_of_its_machine(capsys: pytest.CaptureFixture[str]) -> None:
    known = replace(event(gpu="0", uuid="GPU-0"), acknowledged=OperatorNote("ann", "ticket 7", 3))
    with served(node(device(0), events=(known,))) as sick, served(node(device(0), host="n2")) as well:
        _, out, _ = _run(capsys, "top", "--once", "--by", "node", "--agent", sick, "--agent", well)
    row, rest = (line for line in out.splitlines() if line.startswith((" n1 ", " 1 other machine")))
    assert "GPU 0: no spare rows are left (acknowledged by ann)" in row
    assert "acknowledged" not in rest


def test_what_others_have_named_is_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(JobKind.PROCESSES, "1-2", "\x1b]0;mine\x07[/red]", "a\nb")
    named = Assignment(job, Device("GPU-0", "0"))
    with served(node(device(0, jobs=(named,)), host="[/x]\x1b[2J", events=(event(uuid="GPU-\x1b[31m"),))) as url:
        for verb in (["top", "--once"], ["status"]):
            _, out, _ = _run(capsys, *verb, "--agent", url)
            assert "\x1b" not in out
            assert "[/x]" in out
    with served(node(host="[/x]")) as url:
        assert "[/x]" in _run(capsys, "top", "--once", "--agent", url)[1]


def test_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    with served(node(device(0))) as url:
        code, out, _ = _run(capsys, "top", "--json", "--agent", url, "--agent", _NOBODY)
    document = json.loads(out)
    first, second = document["nodes"]
    assert code == 0
    assert [one["code"] for one in document["warnings"]] == ["agent_silent"]
    assert first["node"]["devices"][0]["missing"] == {"tensor_active_ratio": "not_supported"}
    assert (second["node"], bool(second["error"])) == (None, True)


def test_some_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    sick = device(1, jobs=(), health=Health(HealthState.FAILED, "no spare rows are left"))
    with served(node(device(0), sick)) as url:
        for option, gpus in (("--sick", ["1"]), ("--job=llama", ["0"]), ("--job=42", ["0"]), ("--job=other", None)):
            code, out, _ = _run(capsys, "top", "--json", "--agent", url, "--agent", _NOBODY, option)
            nodes = [one["node"] for one in json.loads(out)["nodes"]]
            assert code == 0
            assert [one["labels"]["gpu"] for one in nodes[0]["devices"]] == gpus if gpus else nodes == []
            assert (None in nodes) is (option == "--sick")
        code, out, err = _run(capsys, "top", "--once", "--agent", url, "--job", "other")
        assert (code, out.split("\n")[0]) == (0, "0 machines, 0 GPUs")
        assert err == "stepscope: no GPU of a job called 'other' is known to these agents; --job takes a name or id\n"
        assert _run(capsys, "top", "--once", "--agent", url, "--job", "llama")[2] == ""


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["top", "--once"], ["status"]):
        code, _, err = _run(capsys, *verb, "--agent", _NOBODY)
        assert code == 4
        assert err.count("\n") == 1


def test_status_is_an_exit_code_a_text_and_a_document(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    with served(node(device(0))) as well, served(node(device(0), device(1), events=(event(uuid="GPU-1"),))) as sick:
        agents.write_text(f"# all of them\n{well}\n{sick}  # rack 2\n\n")
        code, out, _ = _run(capsys, "status", "--agent", well)
        assert (code, out) == (0, "1 machine, 1 GPU: nothing is wrong\n")
        code, out, _ = _run(capsys, "status", "--agents", str(agents))
        assert code == 1
        assert out.splitlines() == [
            "2 machines, 3 GPUs: 1 finding, 1 GPU not well",
            f"critical: n1 GPU 1 (GPU-1): no spare rows are left; {Action.REPLACE.line}",
        ]
        code, out, _ = _run(capsys, "status", "--json", "--agent", sick, "--agent", _NOBODY)
    document = json.loads(out)
    assert (code, document["schema"]) == (1, "stepscope.status/1")
    assert [one["code"] for one in document["warnings"]] == ["agent_silent"]
    assert "row_remap_failed" in {one["code"] for one in document["findings"]}


def test_findings_of_one_kind_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    agents.write_text("".join(f"127.0.0.{number}:9\n" for number in range(1, 31)))
    sick = node(device(0), device(1), events=(event(uuid="GPU-1"), event(uuid="GPU-0")))
    with served(sick) as url, served(node(device(0))) as well:
        many = ["--agents", str(agents), "--agent", url, "--agent", well]
        code, out, _ = _run(capsys, "status", *many)
        assert code == 1
        head, first, second = out.splitlines()
        assert head == (
            "32 machines, 3 GPUs: 32 findings, 2 GPUs not well, 30 machines unknown, 1 machine without a finding"
        )
        assert first.startswith("critical: 30 machines (127.0.0.1:9, 127.0.0.2:9, ")
        assert "Connection refused" in first
        assert second.startswith("critical: 2 GPUs of 1 machine (n1 GPU 1, n1 GPU 0): no spare rows are left; ")
        code, out, _ = _run(capsys, "status", "--by", "job", "--agent", url)
        assert out.splitlines()[1].startswith("critical: llama (42, alice): 2 GPUs of 1 machine (")
        code, out, _ = _run(capsys, "status", "--by", "node", "--agent", url)
        assert out.splitlines()[1].startswith("critical: n1 GPU 1, 0: no spare rows are left; ")
        code, out, _ = _run(capsys, "status", "--by", "rack", "--rack-from", "[a-z]", "--agent", url)
        assert out.splitlines()[1].startswith("critical: n: 2 GPUs of 1 machine (")
        assert _run(capsys, "status", "--rack-from", "(", "--agent", url)[0] == 2


def test_groups_with_a_problem_have_a_row_and_others_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    sick = node(device(0), host="n7", events=(event(uuid="GPU-0"),))
    with served(sick) as url, served(node(device(0))) as well, served(node(device(0), host="n2")) as other:
        asked = ["top", "--once", "--agent", url, "--agent", well, "--agent", other, "--agent", _NOBODY]
        rows = [line.split() for line in _run(capsys, *asked, "--by", "node")[1].splitlines() if line.strip()]
        assert rows[3][:3] == ["127.0.0.1:9", "0", "–"]
        assert rows[4][0] == "n7"
        assert " ".join(rows[4]).endswith("GPU 0: no spare rows are left")
        assert rows[5][:4] == ["2", "other", "machines", "2"]
        assert len(rows) == 6
        rows = [line.split() for line in _run(capsys, *asked, "--by", "node", "--all")[1].splitlines() if line.strip()]
        assert [row[0] for row in rows[3:]] == ["127.0.0.1:9", "n7", "n1", "n2"]
        rows = [line.split() for line in _run(capsys, *asked, "--by", "job")[1].splitlines() if line.strip()]
        assert [" ".join(row[:3]) for row in rows[3:]] == ["no known job", "llama (42, alice)"]
        assert rows[4][3:5] == ["3", "3"]
        many = node(*(device(index, jobs=()) for index in range(101)))
        with served(many) as crowd:
            out = _run(capsys, "top", "--once", "--agent", crowd)[1]
        assert "1 other machine" in out
        assert len(out.splitlines()) < 8


def test_a_note_is_said_and_is_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    note = replace(event(Severity.INFO, uuid="GPU-0", gpu="0"), code="xid_earlier", message="XID 79 stood there")
    noted = device(0, health=Health(HealthState.HEALTHY, "XID 79 stood there", ("xid_earlier",)))
    with served(node(noted, events=(note,))) as url:
        code, out, _ = _run(capsys, "status", "--agent", url)
        assert code == 0
        assert out.splitlines() == [
            "1 machine, 1 GPU: 0 findings, 1 note",
            f"info: n1 GPU 0 (GPU-0): XID 79 stood there; {Action.REPLACE.line}",
        ]
        assert "healthy: XID 79 stood there" in _run(capsys, "top", "--once", "--agent", url)[1]


def test_the_table_lives_until_it_is_interrupted() -> None:
    with served(node(device(0))) as url:
        terminal, other_end = pty.openpty()
        command = [sys.executable, "-c", _INTERRUPTED, "top", "--agent", url]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "24"}
        with subprocess.Popen(command, stdout=other_end, stdin=other_end, env=environment) as process:
            os.close(other_end)
            seen = b""
            while b"llama alice" not in seen:
                seen += os.read(terminal, 1 << 16)
            process.send_signal(signal.SIGINT)
            try:
                while os.read(terminal, 1 << 16):
                    pass
            except OSError:  # how a terminal says that the other end is closed
                pass
            assert process.wait(20) == 130
        os.close(terminal)


def test_an_acknowledged_event_is_said_to_be_so(capsys: pytest.CaptureFixture[str]) -> None:
    failed = Health(HealthState.FAILED, "no spare rows are left", ("row_remap_failed",))
    known = replace(event(gpu="0", uuid="GPU-0"), acknowledged=OperatorNote("ann", "ticket 7", 3))
    with served(node(device(0, health=failed), events=(known,))) as url:
        code, out, _ = _run(capsys, "status", "--agent", url)
        _, table, _ = _run(capsys, "top", "--once", "--agent", url)
    assert code == 0
    head, line = out.splitlines()
    assert head == "1 machine, 1 GPU: 0 findings, 1 acknowledged"
    assert line == "critical: n1 GPU 0 (GPU-0): no spare rows are left; acknowledged by ann: ticket 7"
    assert "failed: no spare rows are left (acknowledged by ann)" in " ".join(table.split())


def test_below_the_table_are_the_verdicts_of_running_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    now_ns = 10**18
    slow = LiveVerdict(
        "gpt", now_ns - 9 * 10**9, "data_loading", 0.9, "Data loading: 40.0%", (), (), True, 0.4, 100.0, 60.0
    )
    well = LiveVerdict("bert", now_ns, "compute_bound", 0.9, "compute-bound", (), (), False)
    old = replace(slow, time_ns=1, cause="copy", summary="Copies")
    job = Assignment(Job(JobKind.SLURM, "42", "llama", "alice"), Device("GPU-0", "0"), pids=(11,))
    first = node(
        device(0, jobs=(job,)), time_ns=now_ns, verdicts=(RunVerdict(slow, 7, (11,)), RunVerdict(well, 7, (12,)))
    )
    second = node(device(1, jobs=()), host="n2", time_ns=now_ns, verdicts=(RunVerdict(old, 7, (13,)),))
    with served(first) as one, served(second) as two:
        for grouping in ([], ["--by", "node", "--all"]):
            _, out, _ = _run(capsys, "top", "--once", "--agent", one, "--agent", two, *grouping)
            assert [line.rstrip() for line in out.splitlines()[-2:]] == [
                "bert  NO BOTTLENECK  compute-bound (0 s ago)",
                "gpt  BOTTLENECK  Data loading: 40.0%; without it 60.0 ms per step (9 s ago)",
            ]
        _, out, _ = _run(capsys, "top", "--once", "--agent", one, "--agent", two, "--job", "llama")
        assert "gpt  BOTTLENECK" in out
        assert "bert" not in out
        _, out, _ = _run(capsys, "top", "--json", "--agent", one)
        assert json.loads(out)["nodes"][0]["node"]["verdicts"][0]["verdict"]["cause"] == "data_loading"
        code, out, _ = _run(capsys, "status", "--agent", one)
        assert "info: n1: run gpt: Data loading: 40.0%; stepscope analyze" in out
        assert code == 0
