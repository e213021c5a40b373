"""`stepscope doctor`: one line per finding with what to do, and exit status 0 whatever it finds."""

from __future__ import annotations

import json

import pytest

from stepscope.cli import main


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    return int(ended.value.code or 0)


def test_this_machine_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "stepscope.doctor/1"
    assert document["warnings"] == []
    topics = [line["topic"] for line in document["lines"]]
    assert topics[:3] == ["python", "stepscope", "torch"]
    assert {"driver", "kernel log", "/dev/shm", "open files", "CPU", "clock", "container", "agent"} <= set(topics)
    assert {line["state"] for line in document["lines"]} <= {"ok", "warn", "fail"}
    assert all(line["found"] for line in document["lines"])


def test_as_lines_with_wrong_settings(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_AGENT__GPUS__INTERVAL", "often")
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    assert run() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok    python ")
    assert any(line.startswith("warn  NCCL_P2P_DISABLE ") and "not NVLink" in line for line in lines)
    assert any(line.startswith("fail  agent's settings ") and "INTERVAL" in line for line in lines)
    assert lines[-1].endswith(" warn")


def test_wrong_use_ends_with_2() -> None:
    assert run("--thorough") == 2
