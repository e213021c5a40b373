"""`stepscope history`: a recorder as a process, and what can be asked of its history afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli import main
from tests.workflow.history.sinks import PageServer, answer, closed_port

pytest.importorskip("duckdb")

_POWER = "stepscope_gpu_power_watts"


def _page(power: float = 100.0, *, gpus: int = 4, sick: bool = False, cause: str = "data_loading") -> bytes:
    lines = [f'{_POWER}{{gpu="{gpu}",uuid="GPU-{gpu}"}} {power - 40.0 * (gpu == 3)}' for gpu in range(gpus)]
    lines += [
        f'stepscope_gpu_job_info{{gpu="{gpu}",job_id="42",job_kind="slurm",share="exclusive",uuid="GPU-{gpu}"}} 1'
        for gpu in range(gpus)
    ]
    lines += ['stepscope_job_info{job_id="42",job_kind="slurm",job_name="llama",user="ann"} 1']
    lines += [f'stepscope_training_bottleneck_ratio{{cause="{cause}",run="llama"}} 0.4']
    health = 'stepscope_gpu_health_event{action="reboot",code="xid_79",gpu="3",severity="critical",uuid="GPU-3"} 1'
    return "\n".join([*lines, *([health] if sick else []), ""]).encode()


@contextmanager
def _recorder(
    store: Path, *options: str, end: int = signal.SIGTERM
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A running recorder whose page is served, and the lines of its log once it has ended."""
    command = [sys.executable, "-m", "stepscope", "history", "run", "--history", str(store), "--interval", "1"]
    command += ["--listen", "127.0.0.1:0", *options]
    lines: list[str] = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            while "serves" not in (line := process.stderr.readline()):
                assert line, lines
                lines.append(line)
            lines.append(line)
            yield process, lines
        finally:
            process.send_signal(end)
            lines += process.stderr.read().splitlines()
            process.wait(20)


def _own(lines: list[str]) -> dict[str, float]:
    match = re.search(r":(\d+)/metrics", "".join(lines))
    assert match is not None
    connection = HTTPConnection("127.0.0.1", int(match[1]), timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    rows = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name.removeprefix("stepscope_history_"): float(value) for name, _, value in rows}


def _wait(lines: list[str], scrapes: int) -> None:
    end = time.monotonic() + 30
    while _own(lines)["scrapes_total"] < scrapes:
        assert time.monotonic() < end
        time.sleep(0.1)


def _asked(capsys: pytest.CaptureFixture[str], store: Path | str, *arguments: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(["history", "query", *arguments, "--history", str(store), "--json"])
    assert ended.value.code in (None, 0)
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A history of a machine with four GPUs, of which the last is slow and sick, and of one that never answered."""
    store = tmp_path_factory.mktemp("recorded") / "history"
    with PageServer(answer(_page(sick=True))) as server, closed_port() as closed:
        targets = store.parent / "targets.json"
        targets.write_text(json.dumps([{"targets": [server.address], "labels": {"rack": "r7"}}]))
        with _recorder(store, "--targets", str(targets), "--agent", closed, "--label", "cluster=east") as (
            process,
            lines,
        ):
            _wait(lines, 8)
    assert process.returncode == 0, lines
    return store, server.address, closed


def test_a_metric_by_gpu(recorded: tuple[Path, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    store, address, _ = recorded
    told = _asked(capsys, store, _POWER, "--last", "10min", "--step", "10s")
    assert told["schema"] == "stepscope.history/1"
    assert told["metric"] == {"name": _POWER, "kind": "gauge", "unit": "watts"}
    assert [(one["labels"]["gpu"], one["labels"]["instance"], one["last"]) for one in told["groups"]] == [
        ("0", address, 100.0),
        ("1", address, 100.0),
        ("2", address, 100.0),
        ("3", address, 60.0),
    ]
    assert len(told["times_ns"]) == len(told["groups"][0]["values"]) in (60, 61)
    assert told["groups"][0]["values"][0] is None
    assert told["events"] is None


@pytest.mark.parametrize(
    ("by", "labels"),
    [
        ("node", [{"instance": "ADDRESS"}]),
        ("rack", [{"rack": "r7"}]),
        ("job", [{"job_id": "42", "job_kind": "slurm"}]),
        ("user", [{"user": "ann"}]),
        ("none", [{}]),
    ],
)
def test_a_metric_by_other_groups(
    by: str, labels: list[dict[str, str]], recorded: tuple[Path, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    store, address, _ = recorded
    told = _asked(capsys, store, _POWER, "--by", by, "--statistic", "sum", "--last", "10min", "--step", "10s")
    assert [one["labels"] for one in told["groups"]] == [
        {name: address if value == "ADDRESS" else value for name, value in one.items()} for one in labels
    ]
    assert [one["last"] for one in told["groups"]] == [360.0]


def test_where_and_top(recorded: tuple[Path, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    store, *_ = recorded
    told = _asked(capsys, store, _POWER, "--where", "gpu=0", "--where", "gpu=3", "--last", "10min", "--step", "10s")
    assert [one["labels"]["gpu"] for one in told["groups"]] == ["0", "3"]
    assert told["where"] == {"gpu": ["0", "3"]}
    told = _asked(capsys, store, _POWER, "--top", "1", "--last", "10min", "--step", "10s")
    (worst,) = told["groups"]
    assert (worst["labels"]["gpu"], worst["labels"]["job_id"]) == ("3", "42")
    assert (worst["deviation"], worst["deviation_ratio"], told["num_groups"]) == (-40.0, -0.4, 4)


def test_jobs_of_the_last_hours(recorded: tuple[Path, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["history", "jobs", "--history", str(recorded[0]), "--last", "12h", "--json"])
    assert ended.value.code in (None, 0)
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert (job["kind"], job["id"], job["user"], job["num_gpus"]) == ("slurm", "42", "ann", 4)


def test_events(recorded: tuple[Path, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    store, _, closed = recorded
    told = _asked(capsys, store, _POWER, "--events", "--last", "10min", "--step", "10s")
    found = {one["kind"]: one for one in told["events"]}
    assert {kind: one["code"] for kind, one in found.items()} == {
        "gap": "refused",
        "health": "xid_79",
        "verdict": "data_loading",
    }
    assert found["gap"]["labels"] == {"cluster": "east", "instance": closed}
    assert found["verdict"]["text"] == "Data loading: 40.0% of training time"
    assert all(one["end_ns"] is None for one in told["events"])


def test_a_table_for_people(recorded: tuple[Path, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    store, *_ = recorded
    with pytest.raises(SystemExit) as ended:
        main(["history", "query", _POWER, "--history", str(store), "--last", "10min", "--top", "2", "--events"])
    assert ended.value.code in (None, 0)
    text = capsys.readouterr().out
    assert f"{_POWER} in watts: mean by gpu; " in text
    assert "-40 (-40.0%)" in text
    assert "of 4 groups, those that deviate most" in text
    assert "3 events" in text


def test_a_second_recorder_is_refused_and_a_killed_one_is_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "history"
    with PageServer(answer(_page(sick=True))) as server:
        with _recorder(store, "--agent", server.address) as (process, lines):
            command = [sys.executable, "-m", "stepscope", "history", "run", "--history", str(store)]
            second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert (second.returncode, second.stderr.count("\n")) == (3, 1), second.stderr
            assert str(store) in second.stderr
            _wait(lines, 3)
        assert process.returncode == 0
        with _recorder(store, "--agent", server.address, end=signal.SIGKILL) as (process, lines):
            end = time.monotonic() + 60
            while not _own(lines)["flushes_total"]:
                assert time.monotonic() < end
                time.sleep(0.1)
        assert process.returncode == -signal.SIGKILL
        with _recorder(store, "--agent", server.address) as (process, lines):
            server.behave = answer(_page(cause="straggler"))
            _wait(lines, 2)
        assert process.returncode == 0
    told = _asked(capsys, store, _POWER, "--events", "--last", "10min", "--step", "1s")
    kinds = [(one["kind"], one["code"], one["end_ns"] is None) for one in told["events"]]
    assert [one for one in kinds if one[0] != "gap"] == [
        ("health", "xid_79", False),
        ("verdict", "data_loading", False),
        ("verdict", "straggler", True),
    ]
    assert {code for kind, code, _ in kinds if kind == "gap"} <= {"not_recorded"}


def test_sigterm_ends_it_while_agents_hang(tmp_path: Path) -> None:
    with (
        PageServer(lambda _: time.sleep(30)) as server,
        _recorder(tmp_path / "history", "--agent", server.address, "--timeout", "0.9") as (process, lines),
    ):
        _wait(lines, 1)
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        assert time.monotonic() - begin < 10


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["query", _POWER, "--history", "nowhere"], 3, "nowhere"),
        (["query", _POWER, "--history", "http://127.0.0.1:9"], 4, "127.0.0.1:9"),
        (
            ["query", _POWER, "--by", "gpus"],
            2,
            "--by takes gpu, node, job, rack, user, team, model, mig_profile, rank or none, not 'gpus'",
        ),
        (["query", _POWER, "--start", "yesterday"], 2, "--start takes a time such as 2026-12-01T08:00Z (UTC)"),
        (["query", _POWER, "--start", "2026-12-01", "--end", "2026-11-01"], 2, "2026-12-01 is not before 2026-11-01"),
        (["query", _POWER, "--step", "0s"], 2, "--step must be more than 0 s"),
        (["query", _POWER, "--last", "ten"], 2, "'ten' is not a span of time such as 90min, 12h or 30d"),
        (["query", _POWER, "--where", "rack"], 2, "--where takes NAME=VALUE, not 'rack'"),
        (["run", "--interval", "5", "--timeout", "5"], 2, "--timeout 5 must be less than --interval 5"),
        (["run", "--label", "a b=c"], 2, "--label takes NAME=VALUE, not 'a b=c'"),
        (["run", "--keep", "0d"], 2, "--keep 0 would delete all that is recorded"),
        (["run", "--max-size", "0"], 2, "--max-size 0 would delete all that is recorded"),
        (["run", "--label", "instance=n0"], 2, "--label instance would make all agents one"),
        (["run", "--targets", "nosuch:x"], 2, "is not a source of targets"),
        (["run", "--listen", "0.0.0.0:0"], 2, "other machines can reach this address"),
    ],
)
def test_one_line_says_what_is_wrong(
    arguments: list[str],
    code: int,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["history", *arguments])
    assert ended.value.code == code
    text = capfd.readouterr().err
    assert line in text
    assert text.count("\n") == 1


def test_an_unknown_metric_names_the_nearest(
    recorded: tuple[Path, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    store, *_ = recorded
    with pytest.raises(SystemExit) as ended:
        main(["history", "query", "stepscope_gpu_power_watt", "--history", str(store)])
    assert ended.value.code == 2
    assert _POWER in capsys.readouterr().err


def test_the_location_may_come_from_the_environment(
    recorded: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(os.environ, "STEPSCOPE_HISTORY", str(recorded[0]))
    with pytest.raises(SystemExit):
        main(["history", "query", _POWER, "--last", "10min", "--json"])
    assert len(json.loads(capsys.readouterr().out)["groups"]) == 4
